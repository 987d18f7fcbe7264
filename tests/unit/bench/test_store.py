"""The store benchmark runs and has a figure for everything it promises."""

from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import SystemClock
from bench.store import MEASUREMENTS, Bench, measure_all, table


def test_each_measurement_gives_a_rate_on_the_memory_store() -> None:
    rates = asyncio.run(measure_all(None, 0.1, memory=True))
    assert rates["memory"].keys() == MEASUREMENTS.keys()
    assert all(rate > 0 for rate in rates["memory"].values())


async def test_a_measurement_whose_time_is_over_before_it_begins_still_counts_a_call() -> None:
    called = []

    async def work(number: int) -> None:
        called.append(number)

    bench = Bench(MemoryStore(MemoryState(SystemClock())), seconds=0)
    assert await bench.repeat(work, at_once=3) > 0
    assert sorted(called) == [0, 1, 2]


def test_the_table_shows_both_stores_and_their_ratio() -> None:
    rates = {"memory": dict.fromkeys(MEASUREMENTS, 30.0), "etcd": dict.fromkeys(MEASUREMENTS, 10.0)}
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(rates))
    text = console.export_text()
    assert all(what in text for what in MEASUREMENTS)
    assert text.count("3.0") == len(MEASUREMENTS)
