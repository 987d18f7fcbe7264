"""Random courses of events in groups with standbys; see `random_histories`.

When the faults end every partition has its copies, on consumers that are there and know it.
"""

from __future__ import annotations

import os

import pytest

from assigner.model.records import HandoffMode
from tests.chaos.histories.random_histories import course

FIRST, MANY = int(os.environ.get("COURSES_FROM", "1")), int(os.environ.get("COURSES", "2"))


@pytest.mark.virtual_time
@pytest.mark.parametrize("topics", [("t",), ("t", "u")], ids=["single", "together"])
@pytest.mark.parametrize("mode", list(HandoffMode), ids=[mode.value for mode in HandoffMode])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + MANY))
async def test_after_a_random_course_everything_has_its_copies(
    seed: int, mode: HandoffMode, topics: tuple[str, ...]
) -> None:
    async with course(seed, mode, topics, standbys=1 + seed % 2) as running:
        await running.run(steps=40)
        assert not running.mistakes
