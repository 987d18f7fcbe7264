"""The benchmark of identity has a figure for each case, and each case comes to what its name says."""

from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from bench.auth import PEER, measure, table


def test_each_case_has_a_figure_and_a_row() -> None:
    costs = asyncio.run(measure(runs=2, times=30))
    assert PEER in costs
    assert all(cost.longest >= cost.p99 >= cost.median >= 0 for cost in costs.values())
    assert costs["good token, the first time"].median > 0
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(costs, runs=2, times=30))
    text = console.export_text()
    assert all(name in text for name in costs)
