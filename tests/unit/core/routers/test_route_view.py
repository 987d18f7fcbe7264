"""What a router is told of a partition, and which changes it is told of."""

from __future__ import annotations

import msgspec
import pytest

from assigner.core.group import Change
from assigner.core.routers.route_view import route_of, topic_count, touched
from assigner.model.keys import AssignmentKey, ConsumerKey, HandoffKey
from assigner.model.records import Consumer, Step
from assigner.model.routes import Route
from tests.support.core.coordination_scene import KEYS, Scene, tp

ON = tp(0)


def scene_with(step: Step | None = None) -> Scene:
    scene = Scene(partitions=2, names="b")
    scene.join("a", address="10.0.0.1:1")
    scene.own(0, "a")
    if step:
        scene.handoff(0, "a", "b", step)
    return scene


def test_a_partition_without_an_owner_has_no_route() -> None:
    assert route_of(scene_with().state, tp(1)) is None


def test_a_route_names_the_owner_its_address_and_its_epoch() -> None:
    assert route_of(scene_with().state, ON) == Route("a", "10.0.0.1:1", 1)


@pytest.mark.parametrize(
    ("step", "handoff_id", "is_frozen"),
    [
        (Step.WARMING, "h0", False),
        (Step.FAILED, "h0", False),
        (Step.READY, "h0", True),
        (Step.FREEZING, "h0", True),
        (Step.RELEASING, "h0", True),
        (Step.RELEASED, "h0", True),
        (Step.COMPLETE, "", False),
    ],
)
def test_a_partition_is_frozen_from_ready_to_the_flip(step: Step, handoff_id: str, is_frozen: bool) -> None:
    route = route_of(scene_with(step).state, ON)
    assert route
    assert (route.handoff_id, route.frozen) == (handoff_id, is_frozen)


def test_an_owner_that_was_never_seen_has_no_address() -> None:
    scene = scene_with()
    scene.own(1, "b")
    scene.delete(KEYS.consumer("b"))
    scene.state.departed.clear()
    assert route_of(scene.state, tp(1)) == Route("b", "", 1)


def test_the_address_is_that_of_the_owning_session_and_stays_known_when_it_is_gone() -> None:
    scene = scene_with()
    scene.delete(KEYS.consumer("a"))
    assert route_of(scene.state, ON) == Route("a", "10.0.0.1:1", 1)
    scene.put(KEYS.consumer("a"), Consumer(consumer_name="a", session="a2", address="10.0.0.9:1"))
    assert route_of(scene.state, ON) == Route("a", "", 1), "another process has the name: it owns nothing yet"


# --- what changes -------------------------------------------------------------------------------------------------


def test_steps_that_mean_nothing_to_a_router_are_not_told() -> None:
    before = scene_with(Step.FREEZING).state.handoffs[ON]
    for step in (Step.READY, Step.RELEASING, Step.RELEASED):
        after = msgspec.structs.replace(
            before, record=msgspec.structs.replace(before.record, step=step, phase=step.phase)
        )
        assert touched(scene_with().state, Change(HandoffKey(ON), before, after)) == ()
    assert touched(scene_with().state, Change(HandoffKey(ON), before, None)) == (ON,)


def test_an_assignment_that_is_written_again_as_it_was_is_not_told() -> None:
    scene = scene_with()
    held = scene.state.assignments[ON]
    assert touched(scene.state, Change(AssignmentKey(ON), held, held)) == ()
    raised = msgspec.structs.replace(held, record=msgspec.structs.replace(held.record, epoch=2))
    assert touched(scene.state, Change(AssignmentKey(ON), held, raised)) == (ON,)


def test_a_registration_is_told_if_its_address_is_another_one() -> None:
    scene = scene_with()
    known = scene.state.consumers["a"]
    moved = msgspec.structs.replace(known, record=msgspec.structs.replace(known.record, address="10.0.0.9:1"))
    drained = msgspec.structs.replace(known, record=msgspec.structs.replace(known.record, instance="i9"))
    key = ConsumerKey("a")
    assert set(touched(scene.state, Change(key, known, moved))) == {ON}
    assert not touched(scene.state, Change(key, known, drained))
    assert not touched(scene.state, Change(key, known, None)), "its address stays known"
    assert set(touched(scene.state, Change(key, None, known))) == {ON}


def test_a_topic_is_gone_only_if_its_config_is() -> None:
    scene = scene_with()
    assert topic_count(scene.state, "t") == 2
    scene.put(KEYS.topic("t"), Consumer(consumer_name="x"), b"{")
    assert topic_count(scene.state, "t") is None
    scene.delete(KEYS.topic("t"))
    assert topic_count(scene.state, "t") == 0
