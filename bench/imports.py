"""What importing the client costs: `python -m bench.imports [--processes N]` prints the CPU time of fresh processes.

A bare interpreter, grpclib and the client take turns, each in a process of its own, so that other load on the machine
hits all of them alike. Each has run once before, so that bytecode is cached; it is CPU time of user and system as
the kernel counts it, and waiting for a core is not in it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

import msgspec
from rich.console import Console
from rich.table import Table

PROGRAMS = {
    "bare interpreter": "pass",
    "grpclib": "import grpclib",
    "grpclib.client": "import grpclib.client",
    "assigner.client": "import assigner.client",
}
BESIDE = ("grpclib", "grpclib.client")
"""What the others are compared with: the package alone, and what every client of a gRPC service imports of it."""


class Cost(msgspec.Struct, frozen=True):
    """CPU time of one program's processes, in milliseconds."""

    best: float
    median: float


def measure(processes: int) -> dict[str, Cost]:
    for program in PROGRAMS.values():
        _cpu_ms(program)
    spent: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(processes):
        for name, program in PROGRAMS.items():
            spent[name].append(_cpu_ms(program))
    return {name: Cost(min(figures), statistics.median(figures)) for name, figures in spent.items()}


def _cpu_ms(program: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", program], environment)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"python -c {program!r} failed: its message is above")
    return (usage.ru_utime + usage.ru_stime) * 1e3


def table(costs: dict[str, Cost], processes: int) -> Table:
    made = Table(title=f"CPU time of a process that imports, ms, {processes} processes each")
    made.add_column("import")
    for column in ("best", "median", *(f"best beyond {name}" for name in BESIDE)):
        made.add_column(column, justify="right")
    for name, cost in costs.items():
        beyond = (f"{cost.best - costs[other].best:+.0f}" for other in BESIDE)
        made.add_row(name, f"{cost.best:.0f}", f"{cost.median:.0f}", *beyond)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=20)
    processes = parser.parse_args().processes
    Console().print(table(measure(processes), processes))


if __name__ == "__main__":
    main()
