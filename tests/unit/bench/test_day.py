"""The simulated day makes sense, and its picture depends on nothing else."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from bench.day.picture import draw
from bench.day.simulation import Day, a_day, live
from bench.strategies.models import MODELS


def test_a_day_has_no_member_leave_that_is_not_there_and_ends_as_it_began() -> None:
    first, events = a_day()
    there = set(first)
    for before, event in pairwise(events):
        assert before.hour <= event.hour < 24
    for event in events:
        assert set(event.leaves) <= there
        assert not set(event.joins) & there
        there = (there | set(event.joins)) - set(event.leaves)
    assert len(there) == len(first)


def test_the_same_day_gives_the_same_picture(tmp_path: Path) -> None:
    first, events = a_day()
    lives = [live(name, model, first, events) for name, model in MODELS.items()]
    day = Day(events, [len(first)] * (len(events) + 1), lives)
    for name in ("one.svg", "two.svg"):
        draw(day, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
