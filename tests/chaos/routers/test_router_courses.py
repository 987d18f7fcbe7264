"""Random courses with routers: no request is lost, served by a stale owner or out of its order; see `course`.

A failing seed is in the test's name and its story in the message. To see the same course again, fix the order of sets
too: `PYTHONHASHSEED=0 pytest tests/chaos/routers/test_router_courses.py -k seed-17`. `make chaos SEEDS=2000` tries many
more.
"""

from __future__ import annotations

import os

import pytest

from tests.chaos.routers.course import course

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("no_threads")]
SEEDS = range(int(os.environ.get("CHAOS_SEEDS", "200")))
"""Half of them are of exclusive groups, half of overlap groups."""
STEPS = int(os.environ.get("CHAOS_STEPS", "20"))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
async def test_overlapping_joins_leaves_and_router_deaths_lose_no_request(seed: int) -> None:
    await course(seed, steps=STEPS)
