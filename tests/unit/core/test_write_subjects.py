"""A consumer may have any name, also that of something the leader writes about."""

from __future__ import annotations

import pytest

from assigner.core.coordination.machine import Decisions
from assigner.core.work_queue import Timer
from assigner.core.writes import ConsumerSubject, PendingWrites, PlanSubject, Purpose, Write
from assigner.model.records import Plan, Step
from tests.support.core.coordination_scene import KEYS, Scene

NAMES = ["worker", "plan"]


def overdue(name: str) -> Scene:
    """`name` was asked long ago to release what is `b`'s by now."""
    scene = Scene(partitions=1, names="b")
    scene.put(KEYS.plan, Plan(generation=4))
    scene.join(name)
    scene.own(0, "b")
    scene.handoff(0, name, "b", Step.COMPLETE)
    scene.lead()
    scene.settle()
    scene.now += scene.state.options.release_timeout + 1
    return scene


def evictions(scene: Scene) -> list[Write]:
    return [write for write in scene.decide().writes if write.purpose is Purpose.EVICT]


@pytest.mark.parametrize("name", NAMES)
def test_the_eviction_of_a_consumer_is_no_plan_being_published(name: str) -> None:
    scene = overdue(name)
    assert len(evictions(scene)) == 1
    assert scene.core
    assert scene.core.generation == 4


@pytest.mark.parametrize("name", NAMES)
def test_an_eviction_does_not_wait_for_a_plan_that_is_being_published(name: str) -> None:
    scene = overdue(name)
    assert scene.core
    scene.core._emit(Decisions(), [scene.core._transitions.publish(Plan(generation=5), Purpose.PLAN)])
    assert len(evictions(scene)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_eviction_in_flight_is_not_asked_for_twice(name: str) -> None:
    scene = overdue(name)
    assert len(evictions(scene)) == 1
    scene.now += 2 * scene.state.options.release_timeout
    assert not evictions(scene)


@pytest.mark.parametrize("name", NAMES)
def test_writes_about_a_consumer_and_about_the_plan_are_kept_apart(name: str) -> None:
    scene = overdue(name)
    core = scene.lead()
    about_plan = core._transitions.publish(Plan(generation=5), Purpose.PLAN)
    about_consumer = core._transitions.evict(scene.state.consumers[name], "late")
    pending = PendingWrites()
    pending.add(about_plan)
    assert not pending.concerns(ConsumerSubject(name))
    pending.add(about_consumer)
    assert len(pending) == 2
    assert pending.purpose(PlanSubject()) is Purpose.PLAN
    assert pending.purpose(ConsumerSubject(name)) is Purpose.EVICT
    pending.settle(about_consumer)
    assert pending.concerns(PlanSubject())
    assert not pending.concerns(ConsumerSubject(name))


@pytest.mark.parametrize("name", NAMES)
def test_an_eviction_that_was_refused_holds_no_plan_back(name: str) -> None:
    scene = overdue(name)
    assert scene.core
    (write,) = evictions(scene)
    scene.core.refused(write, scene.now)
    assert Timer.PLAN not in scene.core._work.timers
    scene.core.too_large(write, "larger than the store takes", scene.now)
    assert Timer.PLAN not in scene.core._work.timers
