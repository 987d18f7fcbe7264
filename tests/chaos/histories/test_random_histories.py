"""Random courses of events; see `random_histories`. `COURSES=500 COURSES_FROM=1000 pytest -n 2 ...` tries others."""

from __future__ import annotations

import os

import pytest

from assigner.model.records import HandoffMode
from tests.chaos.histories.random_histories import course

FIRST, MANY = int(os.environ.get("COURSES_FROM", "1")), int(os.environ.get("COURSES", "25"))


@pytest.mark.virtual_time
@pytest.mark.parametrize("topics", [("t",), ("t", "u")], ids=["single", "together"])
@pytest.mark.parametrize("mode", list(HandoffMode), ids=[mode.value for mode in HandoffMode])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + MANY))
async def test_a_random_course_breaks_no_rule_and_settles(
    seed: int, mode: HandoffMode, topics: tuple[str, ...]
) -> None:
    async with course(seed, mode, topics) as running:
        await running.run(steps=40)
