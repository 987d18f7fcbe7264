"""Peak memory of planning a million partitions, each plan in a fresh process.

The parent starts `python -m bench.strategies.memory SHAPE...` for each shape; the child builds the problem, plans once
and says how much memory it had resident at most, imports and the problem itself included. Not measured: names, because
strategies see numbers only.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from assigner.strategy.registry import load
from bench.strategies.grid import Operation, Shape, Sizes, Subscriptions, changed, dealt, fresh

PARTITIONS = 1_000_000
MOST_MB = 500
STRATEGY = "sticky_balanced"

SHAPES = (
    Shape(1_000, 10, PARTITIONS),
    Shape(1_000, 1_000, PARTITIONS),
    Shape(10_000, 100, PARTITIONS),
    Shape(10_000, 1_000, PARTITIONS),
    Shape(1_000, 1_000, PARTITIONS, Sizes.SKEWED),
    Shape(1_000, 100, PARTITIONS, subscriptions=Subscriptions.NESTED),
    Shape(1_000, 100, PARTITIONS, racks=True),
)
OPERATIONS = (Operation.FULL, Operation.JOIN_ONE)


class Peak(msgspec.Struct, frozen=True):
    group: str
    operation: str
    balance: str
    imports_mb: float
    peak_mb: float
    seconds: float
    failure: str = ""

    @property
    def fits(self) -> bool:
        return not self.failure and self.peak_mb <= MOST_MB


def peaks(shapes: Sequence[Shape], tell: Callable[[str], None], *, patience: float = 600.0) -> list[Peak]:
    found = []
    for shape in shapes:
        for operation in OPERATIONS:
            for balance in ("both", "global"):
                tell(f"memory: {shape}, {operation}, {balance}")
                found.append(_in_a_fresh_process(shape, operation, balance, patience))
    return found


def _in_a_fresh_process(shape: Shape, operation: Operation, balance: str, patience: float) -> Peak:
    words = [
        str(shape.members),
        str(shape.topics),
        str(shape.partitions),
        shape.sizes.value,
        shape.subscriptions.value,
        str(int(shape.racks)),
        operation.value,
        balance,
    ]
    command = [sys.executable, "-m", "bench.strategies.memory", *words]
    nothing = Peak(str(shape), operation.value, balance, 0.0, 0.0, 0.0)
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return msgspec.structs.replace(nothing, failure=f"more than {patience:.0f} s")
    except subprocess.CalledProcessError as error:
        return msgspec.structs.replace(nothing, failure=(error.stderr.strip().splitlines() or ["failed"])[-1])
    return msgspec.convert(json.loads(done.stdout), Peak)


def main(words: Sequence[str]) -> None:
    members, topics, partitions, sizes, subscriptions, racks, operation, balance = words
    shape = Shape(
        int(members), int(topics), int(partitions), Sizes(sizes), Subscriptions(subscriptions), bool(int(racks))
    )
    change = Operation(operation)
    strategy = load(STRATEGY)
    imports = _peak_mb()
    problem = fresh(shape) if change is Operation.FULL else changed(shape, change, dealt(shape, change))
    began = time.perf_counter()
    strategy.assign(replace(problem, options={"balance": balance}))
    seconds = time.perf_counter() - began
    peak = Peak(str(shape), change.value, balance, round(imports, 1), round(_peak_mb(), 1), round(seconds, 3))
    print(msgspec.json.encode(peak).decode())


def _peak_mb() -> float:
    """Of this program alone: `getrusage` on Linux remembers what the process was before, a copy of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1:])
