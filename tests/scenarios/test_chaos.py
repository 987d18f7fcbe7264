"""Seeded chaos in virtual time: whatever happens, nobody owns what another one owns, and it all settles in the end.

A failing seed is in the test's name and its story in the message. To see the same course again, fix the order of sets
too: `PYTHONHASHSEED=0 pytest tests/scenarios/test_chaos.py -k seed-17`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import pytest

from assigner.records import GroupOptions, HandoffMode
from tests.chaos import Chaos
from tests.world import world_on

pytestmark = pytest.mark.virtual_time
SEEDS = range(int(os.environ.get("CHAOS_SEEDS", "30")))
STEPS = int(os.environ.get("CHAOS_STEPS", "150"))


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread takes as long as it takes, and a course from a seed must not depend on that."""

    async def here(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return work(*args)

    monkeypatch.setattr(anyio.to_thread, "run_sync", here)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
async def test_chaos(seed: int) -> None:
    options = GroupOptions(
        handoff_mode=HandoffMode.EXCLUSIVE if seed % 2 else HandoffMode.OVERLAP,
        debounce=0.2,
        warming_timeout=15.0,
        release_timeout=8.0,
        balance_backoff=5.0,
        quarantine_after=1000,
    )
    async with world_on("memory", ttl=9.0, options=options) as world:
        chaos = Chaos(world, seed)
        try:
            await chaos.run(STEPS)
        except BaseException as error:
            error.add_note("\n".join((f"seed {seed}", *chaos.story[-60:])))
            raise
