"""The store benchmark runs and has a figure for everything it promises."""

from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from bench.store import MEASUREMENTS, measure_all, table


def test_each_measurement_gives_a_rate_on_the_memory_store() -> None:
    rates = asyncio.run(measure_all(None, 0.1, memory=True))
    assert rates["memory"].keys() == MEASUREMENTS.keys()
    assert all(rate > 0 for rate in rates["memory"].values())


def test_the_table_shows_both_stores_and_their_ratio() -> None:
    rates = {"memory": dict.fromkeys(MEASUREMENTS, 30.0), "etcd": dict.fromkeys(MEASUREMENTS, 10.0)}
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(rates))
    text = console.export_text()
    assert all(what in text for what in MEASUREMENTS)
    assert text.count("3.0") == len(MEASUREMENTS)
