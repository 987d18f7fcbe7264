"""The comparison of gateway and broker: its table, also where a measurement failed."""

from __future__ import annotations

from bench.gateway.__main__ import QUICK, sheet
from bench.sheets import page


def test_the_table_shows_each_figure_beside_the_brokers_and_their_ratio() -> None:
    shown = page(sheet({"broker": {"commits": 4_000.0}, "gateway, etcd": {"commits": 1_000.0}}, QUICK))
    assert "| what | broker | gateway, etcd | ratio |" in shown
    assert "| commits | 4,000 | 1,000 | 0.25 |" in shown


def test_a_figure_that_one_of_them_lacks_is_a_dash() -> None:
    shown = page(sheet({"broker": {"commits": 4_000.0}, "gateway, etcd": {"joins": 1.0}}, QUICK))
    assert "| commits | 4,000 | - |  |" in shown
    assert "| joins | - | 1.00 |  |" in shown
