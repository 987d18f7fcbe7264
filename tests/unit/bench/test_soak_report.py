"""What a soak concludes from its samples: flat is flat, and a leak is found however much the samples jump."""

from __future__ import annotations

import random
from io import StringIO

import pytest
from rich.console import Console

from bench.soak.report import TOLERANCES, Sample, Tolerance, compare, shortcomings, table

SERIES = ("a rss_mb", "a descriptors", "a tasks", "leases")


def samples(count: int = 60, grow: str = "", by: float = 0.0) -> list[Sample]:
    """Values that jump by a tenth, one of them growing by that much over the whole time."""
    chance = random.Random(3)
    found = []
    for number in range(count):
        values = {series: 100 * chance.uniform(0.9, 1.1) for series in SERIES}
        if grow:
            values[grow] += by * number / count
        found.append(Sample(float(number), values))
    return found


def test_what_jumps_without_growing_is_flat() -> None:
    comparisons = compare(samples())
    assert [one.series for one in comparisons] == sorted(SERIES)
    assert not shortcomings(comparisons, SERIES)


@pytest.mark.parametrize("series", SERIES)
def test_what_grows_past_its_tolerance_is_named(series: str) -> None:
    tolerance = TOLERANCES[series.rpartition(" ")[2]]
    leak = 3 * (100 * tolerance.share + tolerance.amount)
    (found,) = shortcomings(compare(samples(grow=series, by=leak)), SERIES)
    assert found.startswith(f"{series} is not flat")


def test_growth_in_the_warm_up_does_not_count() -> None:
    run = samples()
    risen = [Sample(one.at, {name: value * one.at / 10 for name, value in one.values.items()}) for one in run[:10]]
    assert not shortcomings(compare(risen + run[10:]), SERIES)


def test_what_shrinks_is_flat() -> None:
    assert Tolerance(0.0, 0.0).allows(10, 9)
    assert not Tolerance(0.0, 0.0).allows(10, 11)
    assert not shortcomings(compare(samples(grow="leases", by=-90)), SERIES)


def test_too_few_samples_are_no_success() -> None:
    assert len(shortcomings(compare(samples(4)), SERIES)) == len(SERIES)
    gaps = [Sample(one.at, {"leases": 1.0}) for one in samples()]
    assert shortcomings(compare(gaps), SERIES) == [f"{series}: too few samples to tell" for series in SERIES[:3]]


def test_the_table_has_the_samples_the_thirds_and_the_verdict() -> None:
    run = samples(grow="leases", by=200)
    console = Console(width=160, record=True, file=StringIO())
    console.print(table(run, compare(run)))
    text = console.export_text()
    for word in ("rss_mb", "first third", "last third", "tolerance", "NOT FLAT", "flat"):
        assert word in text
    assert len(text.splitlines()) < 40
