"""Leases that a session's death depends on are asked about at intervals, and only as long as they do."""

from __future__ import annotations

from assigner.core.coordination.lease_checks import INTERVAL, LeaseChecks
from assigner.core.leader_context import LeaderContext
from assigner.core.liveness import SessionState
from tests.support.core.leader_scene import TTL, context_of
from tests.support.core.plan_scene import Scene


def with_missing_owner() -> tuple[LeaseChecks, LeaderContext, int]:
    """An exclusive group whose owner's registration is gone, and its lease."""
    scene = Scene(handoff_mode="exclusive")
    scene.topic("t", 1)
    scene.consumer("abc")
    scene.owned("abc", 0)
    context = context_of(scene)
    consumer = scene.state.consumers["abc"]
    context.liveness.seen(consumer)
    scene.gone("abc")
    return LeaseChecks(context.liveness, context.work), context, consumer.lease


def state_of(context: LeaderContext, now: float) -> SessionState:
    return context.liveness.session_state("abc", "s-abc", now)


def test_nothing_is_asked_while_no_lease_is_waited_for() -> None:
    checks, context, _ = with_missing_owner()
    assert checks.due(1.0) == ()
    assert context.work.timers.next() is None


def test_a_lease_is_asked_about_once_per_interval() -> None:
    checks, context, lease = with_missing_owner()
    assert state_of(context, 1.0) is SessionState.UNKNOWN
    assert checks.due(1.0) == (lease,)
    assert checks.due(1.0) == ()
    checks.answered(lease, over=False, now=1.2)
    assert context.work.timers.next() == 1.0 + INTERVAL, "an answer postpones nothing"
    context.work.wake(1.0 + INTERVAL)
    assert checks.due(1.0 + INTERVAL) == (lease,)


def test_a_response_that_comes_after_the_interval_asks_again_later() -> None:
    checks, context, lease = with_missing_owner()
    state_of(context, 1.0)
    checks.due(1.0)
    context.work.wake(9.0)
    checks.answered(lease, over=False, now=9.0)
    assert context.work.timers.next() == 9.0 + INTERVAL


def test_a_session_is_dead_when_its_lease_is_over() -> None:
    checks, context, lease = with_missing_owner()
    assert state_of(context, TTL + 1) is SessionState.UNKNOWN, "whatever the clock says"
    checks.due(1.0)
    checks.answered(lease, over=True, now=1.2)
    assert state_of(context, 1.2) is SessionState.DEAD
    context.work.wake(1.0 + INTERVAL)
    assert checks.due(1.0 + INTERVAL) == ()
