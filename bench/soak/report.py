"""What a soak has seen: samples over time, whether they are flat, and the table that shows it.

Flat means: the median of the last third is not above that of the first third, both after a warm-up, by more than a
stated share and a stated amount. Pure arithmetic; `churn` brings the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
from rich.table import Table

WARM_UP = 1 / 6
"""Of the samples: caches fill, code is imported, the allocator finds its size."""
FEWEST = 6
"""Samples after the warm-up without which nothing can be said."""
ROWS = 16
"""Of the table: more samples than these are thinned out."""


class Tolerance(msgspec.Struct, frozen=True):
    share: float
    amount: float

    def allows(self, before: float, after: float) -> bool:
        return after <= before * (1 + self.share) + self.amount

    def __str__(self) -> str:
        return f"{self.share:.0%} + {self.amount:g}"


TOLERANCES = {
    "rss_mb": Tolerance(0.10, 5),
    "descriptors": Tolerance(0.25, 10),
    "tasks": Tolerance(0.25, 30),
    "leases": Tolerance(0.25, 10),
}
"""By what was measured, the word after the last space of a series' name."""


class Sample(msgspec.Struct, frozen=True):
    at: float
    """Seconds since the churn began."""
    values: Mapping[str, float]
    """Such as `{"soak-1 rss_mb": 90.5, "leases": 24}`. What could not be read is left out."""


class Comparison(msgspec.Struct, frozen=True):
    series: str
    first: float
    last: float
    tolerance: Tolerance

    @property
    def is_flat(self) -> bool:
        return self.tolerance.allows(self.first, self.last)


def compare(samples: Sequence[Sample]) -> list[Comparison]:
    """The first and the last third after the warm-up, for each series that has a tolerance."""
    counted = samples[round(len(samples) * WARM_UP) :]
    found = []
    for series in sorted({name for sample in counted for name in sample.values}):
        tolerance = TOLERANCES.get(series.rpartition(" ")[2])
        values = [sample.values[series] for sample in counted if series in sample.values]
        if tolerance is None or len(values) < FEWEST:
            continue
        third = len(values) // 3
        found.append(Comparison(series, median(values[:third]), median(values[-third:]), tolerance))
    return found


def shortcomings(comparisons: Sequence[Comparison], expected: Sequence[str]) -> list[str]:
    """What is not flat, and what could not be told."""
    told = {comparison.series for comparison in comparisons}
    missing = [f"{series}: too few samples to tell" for series in expected if series not in told]
    grown = [
        f"{one.series} is not flat: {one.first:,.1f} became {one.last:,.1f}, more than {one.tolerance} above"
        for one in comparisons
        if not one.is_flat
    ]
    return missing + grown


def table(samples: Sequence[Sample], comparisons: Sequence[Comparison]) -> Table:
    columns = sorted({name for sample in samples for name in sample.values})
    shown = Table(title="soak: samples over time (descriptors and tasks: beyond one for each open stream)")
    shown.add_column("seconds", justify="right")
    for column in columns:
        shown.add_column(column.replace(" ", "\n"), justify="right")
    step = max(1, -(-len(samples) // ROWS))
    for sample in samples[::step]:
        shown.add_row(f"{sample.at:,.0f}", *[_cell(sample.values.get(column)) for column in columns])
    by_series = {comparison.series: comparison for comparison in comparisons}
    shown.add_section()
    for label, read in (("first third", "first"), ("last third", "last")):
        cells = [getattr(by_series[column], read) if column in by_series else None for column in columns]
        shown.add_row(label, *map(_cell, cells))
    shown.add_row("tolerance", *[str(by_series[column].tolerance) if column in by_series else "" for column in columns])
    flat = [("flat" if by_series[column].is_flat else "NOT FLAT") if column in by_series else "" for column in columns]
    shown.add_row("", *flat)
    return shown


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}".removesuffix(".0")
