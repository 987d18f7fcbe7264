"""Handoffs count against the limits from the moment they are decided, each once."""

from __future__ import annotations

from assigner.core.planning.in_flight import HandoffsInFlight
from assigner.core.writes import Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Step
from tests.support.core.leader_scene import context_of
from tests.support.core.plan_scene import Scene


def group() -> Scene:
    scene = Scene()
    scene.topic("t", 4)
    for name in "ab":
        scene.consumer(name)
    scene.owned("a", 0, 1, 2, 3)
    return scene


def start(scene: Scene, *partitions: int) -> Write:
    tps = [TopicPartition("t", number) for number in partitions]
    return context_of(scene).transitions.start(tps, scene.state.consumers["b"], Cause.JOINED, 0)


def test_stored_handoffs_are_counted_from_the_beginning() -> None:
    scene = group()
    scene.handoff(0, "a", "b")
    scene.handoff(1, "a", "b", Step.READY)
    counts = HandoffsInFlight(scene.state)
    assert (len(counts), counts.warming("b"), counts.warming("a")) == (2, 1, 0)


def test_a_handoff_counts_before_it_is_stored_and_only_once_after() -> None:
    scene = group()
    counts = HandoffsInFlight(scene.state)
    write = start(scene, 0, 1)
    counts.begin(write, "b")
    assert (len(counts), counts.warming("b")) == (2, 2)
    assert counts.is_starting(TopicPartition("t", 0))
    for number in (0, 1):
        counts.observe(scene.handoff(number, "a", "b"))
    assert len(counts) == 2
    counts.settle(write)
    assert (len(counts), counts.warming("b")) == (2, 2)
    assert not counts.is_starting(TopicPartition("t", 0))


def test_a_handoff_that_was_not_stored_does_not_count_any_more() -> None:
    scene = group()
    counts = HandoffsInFlight(scene.state)
    write = start(scene, 0)
    counts.begin(write, "b")
    counts.settle(write)
    counts.settle(write)
    assert (len(counts), counts.warming("b")) == (0, 0)


def test_writes_that_start_no_handoff_are_none_of_its_business() -> None:
    scene = group()
    counts = HandoffsInFlight(scene.state)
    counts.settle(start(scene, 0))
    assert (len(counts), counts.warming("b")) == (0, 0)


def test_what_has_left_warming_leaves_room_for_others() -> None:
    scene = group()
    counts = HandoffsInFlight(scene.state)
    counts.observe(scene.handoff(0, "a", "b"))
    assert counts.warming("b") == 1
    counts.observe(scene.handoff(0, "a", "b", Step.READY))
    assert (len(counts), counts.warming("b")) == (1, 0)


def test_handoffs_to_nobody_and_those_of_unknown_topics_do_not_count() -> None:
    scene = group()
    counts = HandoffsInFlight(scene.state)
    counts.observe(scene.handoff(0, "a", "", Step.RELEASING))
    assert len(counts) == 0
    counts.observe(scene.handoff(1, "a", "b"))
    del scene.state.topics["t"]
    assert len(counts) == 0
