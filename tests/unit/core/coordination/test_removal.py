"""Ownership records are removed below a raised epoch floor, and kept if somebody may still need them."""

from __future__ import annotations

from assigner.core.conditions import OversizedWrites
from assigner.core.coordination.publishing import PlanPublisher
from assigner.core.coordination.removal import OwnershipRemoval
from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.work_queue import RETRY, Timer
from assigner.core.writes import PlanSubject, Purpose, Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Plan
from tests.support.core.leader_scene import TTL, context_of
from tests.support.core.plan_scene import KEYS, Scene

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def removal(scene: Scene) -> tuple[OwnershipRemoval, LeaderContext]:
    context = context_of(scene)
    publisher = PlanPublisher(context, WarmFailures(scene.state), OversizedWrites())
    return OwnershipRemoval(context, publisher), context


def owned(floor: int = 1) -> Scene:
    scene = Scene()
    scene.topic("t", 2)
    scene.owned("a", 0, 1)
    scene.owned("a", 0, topic="u")
    scene.plan(Plan(generation=1, epoch_floor=floor))
    return scene


def purposes(writes: list[Write]) -> list[Purpose]:
    return [write.purpose for write in writes]


def test_the_floor_is_raised_before_anything_is_deleted() -> None:
    scene = owned(floor=0)
    removing, context = removal(scene)
    removing.add((T0, T1))
    (write,) = removing.writes(10)
    assert write.purpose is Purpose.FLOOR
    context.pending.add(write)
    assert not list(removing.writes(10)), "one write of the plan record at a time"
    context.pending.settle(write)
    scene.plan(Plan(generation=1, epoch_floor=1))
    assert purposes(list(removing.writes(10))) == [Purpose.REMOVE, Purpose.REMOVE]


def test_no_more_is_removed_than_the_budget_allows_and_nothing_twice_at_a_time() -> None:
    removing, context = removal(owned())
    removing.add((T0, T1, U0))
    first, second = removing.writes(2)
    assert (first.partitions, second.partitions) == ((T0,), (T1,))
    context.pending.add(first)
    assert [write.partitions for write in removing.writes(10)] == [(T1,), (U0,)]


def test_what_has_no_records_any_more_is_done() -> None:
    removing, _ = removal(owned())
    removing.add((TopicPartition("t", 7),))
    assert len(removing) == 1
    assert not list(removing.writes(10))
    assert not len(removing)


def test_who_registers_in_time_keeps_everything() -> None:
    removing, context = removal(owned())
    context.work.timers.set(Timer.EMPTY, 60.0)
    removing.add((T0, U0))
    removing.cancel()
    assert not list(removing.writes(10))
    assert set(context.work.dirty) == {T0, U0}, "they are examined again"
    assert Timer.EMPTY not in context.work.timers


def test_a_topic_that_changed_keeps_its_records_where_there_are_consumers() -> None:
    scene = owned()
    removing, _ = removal(scene)
    removing.add((T0, U0))
    removing.cancel_topic("t")
    assert len(removing) == 2, "in an abandoned group they go all the same"
    scene.consumer("b")
    removing.cancel_topic("t")
    assert [write.partitions for write in removing.writes(10)] == [(U0,)]


def test_a_group_is_abandoned_after_two_ttls_without_consumers() -> None:
    scene = owned()
    removing, context = removal(scene)
    removing.watch_if_empty(5.0)
    assert context.work.timers.next() == 5.0 + 2 * TTL
    removing.watch_if_empty(9.0)
    assert context.work.timers.next() == 5.0 + 2 * TTL, "from when it became empty"
    removing.remove_all_if_empty()
    assert len(removing) == 3


def test_a_group_with_consumers_is_never_abandoned() -> None:
    scene = owned()
    scene.consumer("a")
    removing, context = removal(scene)
    removing.watch_if_empty(5.0)
    removing.remove_all_if_empty()
    assert context.work.timers.next() is None
    assert not len(removing)


def test_a_removal_that_was_overtaken_waits_until_the_mirror_shows_by_what() -> None:
    removing, context = removal(owned())
    removing.add((T0,))
    (write,) = removing.writes(10)
    removing.refused(write, 7.0)
    assert not list(removing.writes(10))
    assert context.work.timers.next() == 7.0 + RETRY


def test_nothing_is_removed_while_the_plan_record_is_being_written() -> None:
    removing, context = removal(owned())
    removing.add((T0,))
    published = context.transitions.publish(Plan(generation=2), Purpose.PLAN)
    context.pending.add(published)
    assert context.pending.concerns(PlanSubject())
    assert not list(removing.writes(10))
    assert KEYS.plan in {operation.key for operation in published.operations}
