"""The benchmark of encoding compares ways that give the same bytes."""

from __future__ import annotations

import pytest

from bench.encoding import Case, cases, measure


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_each_way_gives_the_same_bytes_and_a_figure(case: Case) -> None:
    figures = measure(case, repetitions=1)
    assert figures.keys() == case.ways.keys()
    assert all(figure > 0 for figure in figures.values())
