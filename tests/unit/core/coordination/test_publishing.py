"""A generation is published once all writes of its plan are known to be in; one write of the plan record at a time."""

from __future__ import annotations

import msgspec

from assigner.core.conditions import OversizedWrites
from assigner.core.coordination.publishing import LAG, PlanPublisher
from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.work_queue import RETRY
from assigner.core.writes import Purpose, Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Plan, decode
from assigner.store import Put
from tests.support.core.leader_scene import context_of
from tests.support.core.plan_scene import Scene

T0 = TopicPartition("t", 0)


class Publishing:
    def __init__(self, plan: Plan | None = None) -> None:
        self.scene = Scene()
        self.scene.topic("t", 1)
        self.scene.consumer("a")
        self.scene.plan(plan or Plan(generation=4))
        self.context: LeaderContext = context_of(self.scene)
        self.failures, self.oversized = WarmFailures(self.scene.state), OversizedWrites()
        self.publisher = PlanPublisher(self.context, self.failures, self.oversized)
        self.begun = self.context.transitions.assign([T0], self.scene.state.consumers["a"], Cause.JOINED)

    def due(self, now: float = 1.0, *, plan_is_out: bool = True) -> list[Write]:
        return self.publisher.writes(now, plan_is_out=plan_is_out)

    def published(self, now: float = 1.0) -> Plan:
        """The plan that is written next."""
        (write,) = self.due(now)
        (put,) = write.operations
        assert isinstance(put, Put)
        return decode(Plan, put.value)[0]

    def write_a_plan(self) -> Write:
        self.publisher.begun(self.begun)
        return self.begun


def test_a_plan_that_changed_nothing_is_no_new_generation() -> None:
    assert not Publishing().due()


def test_a_generation_is_published_when_the_last_write_of_its_plan_is_in() -> None:
    one = Publishing()
    write = one.write_a_plan()
    one.context.pending.add(write)
    assert not one.due(), "its outcome is not known"
    one.publisher.ended(write, applied=True)
    assert one.publisher.generation == 5
    assert not one.due(), "the mirror does not show it yet"
    one.context.pending.settle(write)
    assert not one.due(plan_is_out=False), "others have not begun"
    assert one.published().generation == 5
    assert not one.due(), "it was asked for once"


def test_a_write_that_did_not_go_in_is_no_new_generation() -> None:
    one = Publishing()
    one.publisher.ended(one.write_a_plan(), applied=False)
    assert not one.due()
    assert one.publisher.generation == 4


def test_a_write_of_unknown_outcome_counts_if_the_mirror_shows_it() -> None:
    one = Publishing()
    write = one.write_a_plan()
    one.scene.owned("a", 0)
    one.publisher.ended(write, applied=None)
    assert one.published().generation == 5


def test_a_write_of_unknown_outcome_may_arrive_late() -> None:
    one = Publishing()
    one.publisher.ended(one.write_a_plan(), applied=None)
    assert not one.due()
    one.publisher.observe(T0)
    assert one.published().generation == 5


def test_a_write_that_arrives_late_is_covered_by_a_generation_being_published() -> None:
    one = Publishing()
    one.publisher.ended(one.write_a_plan(), applied=None)
    one.context.pending.add(one.context.transitions.publish(Plan(generation=5), Purpose.PLAN))
    one.publisher.observe(T0)
    assert not one.publisher.has_unpublished


def test_a_generation_that_was_refused_is_published_again_after_a_moment() -> None:
    one = Publishing()
    one.publisher.ended(one.write_a_plan(), applied=True)
    (write,) = one.due()
    one.publisher.refused(write, 1.0)
    assert one.publisher.generation == 5
    assert not one.due(1.0), "until the mirror shows what it conflicted with"
    one.context.work.wake(1.0 + RETRY)
    assert one.published(1.0 + RETRY).generation == 5


def test_a_change_of_the_quarantine_is_published_and_takes_the_floor_along() -> None:
    one = Publishing(Plan(generation=4, epoch_floor=0))
    one.scene.owned("a", 0)
    for name in "abcdef":
        one.failures.add(T0, name, "no disk")
    plan = one.published()
    assert (plan.generation, plan.epoch_floor) == (5, 1)
    assert [(found.topic, found.partition) for found in plan.quarantined] == [("t", 0)]


def test_conditions_are_published_without_a_new_generation() -> None:
    one = Publishing()
    one.oversized.add(one.begun, "too large")
    plan = one.published()
    assert plan.generation == 4
    assert [found.kind for found in plan.conditions] == ["write_too_large"]


def test_the_floor_follows_an_epoch_after_a_moment() -> None:
    one = Publishing()
    one.scene.owned("a", 0)
    assert not one.due(1.0)
    assert one.context.work.timers.next() == 1.0 + LAG
    (write,) = one.due(1.0 + LAG)
    assert write.purpose is Purpose.FLOOR
    one.scene.plan(msgspec.structs.replace(one.scene.state.plan, epoch_floor=1))
    assert not one.due(9.0)
