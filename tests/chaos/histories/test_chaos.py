"""Seeded chaos in virtual time: whatever happens, nobody owns what another one owns, and it all settles in the end.

A failing seed is in the test's name and its story in the message. To see the same course again, fix the order of sets
too: `PYTHONHASHSEED=0 pytest tests/chaos/histories/test_chaos.py -k seed-17`. `make chaos SEEDS=2000` tries many more.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from assigner.model.records import HandoffMode
from tests.chaos.ablation.mutations import consumers, leaders, sessions, writes
from tests.chaos.histories.group_life import course

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("no_threads")]
SEEDS = range(int(os.environ.get("CHAOS_SEEDS", "100")))
STEPS = int(os.environ.get("CHAOS_STEPS", "50"))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed-{seed}")
async def test_chaos(seed: int) -> None:
    await course(seed, steps=STEPS)


@pytest.mark.parametrize(
    "switch_off",
    [
        writes.takeovers_keep_the_epoch,
        sessions.exclusive_does_not_wait_for_the_lease,
        consumers.gates_do_not_look_at_the_clock,
        writes.commits_do_not_compare_what_they_replace,
        leaders.every_plan_is_a_new_generation,
    ],
)
async def test_chaos_notices_a_missing_rule_before_long(
    switch_off: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    noticed = False
    seeds = iter(range(100))
    while not noticed:
        try:
            await course(next(seeds), HandoffMode.EXCLUSIVE, steps=150)
        except* AssertionError:
            noticed = True
