"""What the gate costs a routed request: `python -m bench.gate` prints the time of one admission by epoch, each way.

An empty `async with` is the peer: what any block around a request costs. All ways take turns in the same run, on one
event loop, and the time is the CPU time of its thread, so that waiting for a core is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

import msgspec
from rich.console import Console
from rich.table import Table

from assigner.client.gate import ADMIT_WITHIN
from assigner.client.handler import Handler
from assigner.client.runner import Runner
from assigner.clock import SystemClock
from assigner.model.keys import TopicPartition

TP = TopicPartition("orders", 3)
EPOCH = 5
AIM_US = 2.0


class Owner:
    """The part of a consumer that admits requests, with one partition whose gate is open."""

    def __init__(self) -> None:
        clock = SystemClock()
        runner = Runner(Handler(), clock, handler_concurrency=1, warm_concurrency=1)
        self.lease = runner.state.lease
        self.lease.renewed(clock.now(), 3_600.0)
        self.state = runner.state.gate(TP)
        self.state.open(EPOCH)
        self.gate = runner.gate(TP)
        self.requests = runner.requests


class Nothing:
    """An async block that does nothing."""

    __slots__ = ()

    async def __aenter__(self) -> int:
        return EPOCH

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


# --- the ways --------------------------------------------------------------------------------------------------------


async def empty_block(owner: Owner, times: int) -> None:
    for _ in range(times):
        async with Nothing():
            pass


async def admit(owner: Owner, times: int) -> None:
    for _ in range(times):
        owner.gate.admit(EPOCH)


async def enter(owner: Owner, times: int) -> None:
    for _ in range(times):
        with owner.gate.enter(EPOCH):
            pass


async def entering(owner: Owner, times: int) -> None:
    for _ in range(times):
        async with owner.gate.entering(EPOCH):
            pass


async def entering_by_name(owner: Owner, times: int) -> None:
    """What `AssignerConsumer.entering` does: find the gate, then enter it."""
    for _ in range(times):
        async with owner.requests.entering(TopicPartition(TP.topic, TP.partition), EPOCH, ADMIT_WITHIN):
            pass


PEER = "empty `async with`"
WAYS: dict[str, Callable[[Owner, int], Awaitable[None]]] = {
    PEER: empty_block,
    "`gate.admit(epoch)`": admit,
    "`with gate.enter(epoch)`": enter,
    "`async with gate.entering(epoch)`": entering,
    "`async with consumer.entering(topic, partition, epoch)`": entering_by_name,
}


class Cost(msgspec.Struct, frozen=True):
    """CPU time of one admission, in microseconds."""

    best: float
    median: float


async def measure(*, runs: int, times: int) -> dict[str, Cost]:
    owner = Owner()
    spent: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(runs):
        for name, way in WAYS.items():
            began = time.thread_time()
            await way(owner, times)
            spent[name].append((time.thread_time() - began) / times * 1e6)
    return {name: Cost(min(figures), statistics.median(figures)) for name, figures in spent.items()}


def table(costs: dict[str, Cost], *, runs: int, times: int) -> Table:
    made = Table(title=f"CPU time of one admission, us, {runs} runs of {times:,}; the aim is {AIM_US:g}")
    made.add_column("what")
    for column in ("best", "median", "median beyond the empty block"):
        made.add_column(column, justify="right")
    for name, cost in costs.items():
        beyond = cost.median - costs[PEER].median
        made.add_row(name, f"{cost.best:.2f}", f"{cost.median:.2f}", f"{beyond:+.2f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.gate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--times", type=int, default=20_000, help="admissions in each run")
    options = parser.parse_args()
    costs = asyncio.run(measure(runs=options.runs, times=options.times))
    console = Console()
    console.width = max(console.width, 120)
    console.print(table(costs, runs=options.runs, times=options.times))


if __name__ == "__main__":
    main()
