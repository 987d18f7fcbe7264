"""A handoff that leads nowhere is ended, so that it takes no room from those that do."""

from __future__ import annotations

import pytest

from assigner.model.records import Plan, Quarantined, Step
from tests.support.core.coordination_scene import KEYS, TTL, Scene, tp


@pytest.mark.parametrize("step", [Step.WARMING, Step.FAILED, Step.READY])
def test_a_handoff_of_a_quarantined_partition_ends_when_both_its_owners_are_gone(step: Step) -> None:
    """No plan names a new owner for it: with room for one handoff it would stop the group for good."""
    scene = Scene(names="cd", max_concurrent_handoffs=1)
    failed = Quarantined(topic="t", partition=0, failed=("x",), reason="no luck")
    scene.put(KEYS.plan, Plan(generation=3, quarantined=(failed,)))
    scene.own(0, "a")
    scene.handoff(0, "a", "b", step)
    scene.lead()
    if step is not Step.FAILED:
        scene.decide(carry_out=True)
        assert tp(0) in scene.state.handoffs, "they may come back"
    scene.now = 2 * TTL
    scene.decide(carry_out=True)
    assert tp(0) not in scene.state.handoffs
    assert scene.state.assignments[tp(0)].record.owner == "a"


def test_a_handoff_of_any_other_partition_waits_for_the_plan_that_names_a_new_owner() -> None:
    scene = Scene(names="cd", max_concurrent_handoffs=1)
    scene.own(0, "a")
    scene.handoff(0, "a", "b", Step.FAILED)
    scene.lead()
    scene.now = 2 * TTL
    scene.decide(carry_out=True)
    assert tp(0) in scene.state.handoffs
