"""A plan has its causes from the moment it is wanted until it is carried out, and is made again where it fell short."""

from __future__ import annotations

from assigner.core.coordination.plan_cycle import PlanCycle
from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.loads.trigger import LoadTrigger
from assigner.core.planning.request import Request, flat_partitions
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause
from tests.support.core.leader_scene import TTL, context_of
from tests.support.core.plan_scene import Scene

T0 = TopicPartition("t", 0)


def group(**options: object) -> Scene:
    scene = Scene(debounce=2.0, **options)
    scene.topic("t", 3)
    scene.consumer("a")
    scene.owned("a", 0)
    return scene


def cycle(scene: Scene) -> tuple[PlanCycle, LeaderContext]:
    context = context_of(scene)
    for consumer in scene.state.consumers.values():
        context.liveness.seen(consumer)
    loads = LoadTrigger(scene.state, context.work)
    plans = PlanCycle(context, WarmFailures(scene.state), loads, lambda: flat_partitions(scene.state))
    return plans, context


def made(plans: PlanCycle, now: float) -> Request:
    assert plans.is_due(now)
    request = plans.step(now, 0.0)
    assert request is not None
    return request


def test_a_plan_is_made_when_it_is_due_and_once() -> None:
    plans, context = cycle(group())
    assert not plans.is_due(1.0)
    context.work.want_plan(Cause.JOINED, 1.0)
    assert not plans.is_due(2.9)
    assert made(plans, 3.0).members == ("a",)
    assert plans.is_solving
    context.work.want_plan(Cause.LEFT, 3.0, 0.0)
    assert not plans.is_due(9.0), "one at a time"
    assert plans.solved() == {Cause.JOINED}
    assert plans.is_due(9.0)


def test_a_large_group_is_taken_in_step_by_step() -> None:
    scene = group()
    scene.topic("t", 1_200)
    plans, context = cycle(scene)
    context.work.want_plan(Cause.JOINED, 0.0)
    assert plans.is_due(5.0)
    steps = 1
    while (request := plans.step(5.0, 0.0)) is None:
        assert plans.is_building
        assert plans.is_due(5.0), "what has begun goes on"
        steps += 1
    assert not plans.is_building
    assert steps > 2
    assert len(request.partitions) == 1_200


def test_no_plan_is_made_for_nobody_or_while_paused() -> None:
    scene = group()
    scene.gone("a")
    plans, context = cycle(scene)
    context.work.want_plan(Cause.LEFT, 0.0)
    assert plans.step(5.0, 0.0) is None
    assert not plans.is_solving
    plans, context = cycle(group(paused=True))
    context.work.want_plan(Cause.LEFT, 0.0)
    assert not plans.is_due(5.0)


def test_a_plan_that_failed_is_wanted_again_for_its_causes() -> None:
    plans, context = cycle(group())
    context.work.want_plan(Cause.DRAINING, 0.0)
    made(plans, 5.0)
    plans.failed(6.0)
    assert not plans.is_solving
    assert context.work.next_wake(plans=True) == 8.0
    assert context.work.take_plan(8.0) == {Cause.DRAINING}


def test_a_plan_made_while_moves_were_in_flight_is_repeated_for_the_same_causes() -> None:
    scene = group()
    scene.consumer("b")
    scene.handoff(0, "a", "b")
    plans, context = cycle(scene)
    context.work.want_plan(Cause.JOINED, 0.0)
    made(plans, 5.0)
    waits = [plans.waits_for_moves]
    plans.solved()
    waits.append(plans.waits_for_moves)
    plans.replan_after_moves(6.0)
    waits.append(plans.waits_for_moves)
    assert waits == [False, True, False]
    assert context.work.take_plan(8.0) == {Cause.JOINED}


def test_a_plan_made_with_nothing_in_flight_is_not_repeated() -> None:
    plans, context = cycle(group())
    context.work.want_plan(Cause.JOINED, 0.0)
    made(plans, 5.0)
    plans.solved()
    assert not plans.waits_for_moves


def test_balance_that_was_left_for_later_is_planned_when_the_grace_period_is_over() -> None:
    scene = group()
    scene.owned("missing", 1)
    plans, context = cycle(scene)
    context.work.want_plan(Cause.OPERATOR, 0.0)
    assert not made(plans, 5.0).all_are_back
    plans.solved()
    assert context.work.timers.next() == TTL
    plans.replan_after_grace_period(TTL)
    assert context.work.next_wake(plans=True) == TTL, "at once"
    assert context.work.take_plan(TTL) == {Cause.OPERATOR, Cause.LEFT}


def test_a_partition_in_cooldown_stays_unless_its_owner_is_leaving() -> None:
    scene = group()
    plans, context = cycle(scene)
    assert not plans.must_stay(T0, 1.0)
    context.work.cooldowns.set(T0, 10.0)
    assert plans.must_stay(T0, 9.0)
    assert not plans.must_stay(T0, 10.0)
    scene.consumer("a", status="Draining")
    assert not plans.must_stay(T0, 9.0)


def test_a_partition_with_a_write_in_flight_stays_even_if_its_owner_is_leaving() -> None:
    scene = group()
    scene.consumer("a", status="Draining")
    plans, context = cycle(scene)
    context.pending.add(context.transitions.bump_epoch([T0], scene.state.consumers["a"]))
    assert plans.must_stay(T0, 1.0)
