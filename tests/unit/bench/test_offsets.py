"""The benchmark of offsets runs and has a figure for everything it promises."""

from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from bench.offsets import MEASUREMENTS, measure, table


def test_each_measurement_gives_a_rate_on_the_memory_store() -> None:
    rates = asyncio.run(measure("memory", None, 0.01))
    assert rates.keys() == MEASUREMENTS.keys()
    assert all(rate > 0 for rate in rates.values())


def test_the_table_shows_both_stores() -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(table({"memory": dict.fromkeys(MEASUREMENTS, 30_000.0), "etcd": dict.fromkeys(MEASUREMENTS, 7.0)}))
    text = console.export_text()
    assert all(what in text for what in MEASUREMENTS)
    assert text.count("30,000") == len(MEASUREMENTS)
