"""What a coordinator and a mirror keep is bounded by what is there, not by what ever was."""

from __future__ import annotations

from collections.abc import Iterator

from assigner.core.coordination.machine import Coordination
from assigner.core.planning.request import OwnerTarget
from assigner.core.standbys import StandbyTarget
from assigner.core.writes import Purpose
from assigner.model.keys import TopicPartition
from assigner.model.records import Step
from assigner.store import DeleteEvent
from tests.support.core.plan_scene import KEYS, Scene

NAMES = 10_000
T0 = TopicPartition("t", 0)


def coordination(scene: Scene) -> Coordination:
    return Coordination(scene.state, term=1, ttl=30.0, now=0.0, offset_key=str)


def everybody_in_turn() -> Iterator[str]:
    yield from (f"pod-{number}" for number in range(NAMES))


def test_a_mirror_forgets_the_names_of_those_who_have_nothing_any_more() -> None:
    scene = Scene()
    scene.topic("t", 1)
    for name in everybody_in_turn():
        scene.owned(name, 0)
        scene.handoff(0, name, f"{name}-next")
        scene.copies(0, name)
    state = scene.state
    assert [len(table) for table in (state.owned, state.incoming, state.outgoing, state.copies)] == [1, 1, 1, 1]
    for key in (KEYS.assignment(T0), KEYS.handoff(T0), KEYS.standby(T0)):
        state.apply(DeleteEvent(key, 10**6))
    assert not any((state.owned, state.incoming, state.outgoing, state.copies))
    assert not state.involved()


def test_to_ask_what_a_consumer_has_leaves_no_trace() -> None:
    state = Scene().state
    for name in everybody_in_turn():
        assert not state.owned[name] | state.incoming[name] | state.outgoing[name] | state.copies[name]
    assert not any((state.owned, state.incoming, state.outgoing, state.copies))


def test_a_leader_forgets_who_warmed_something() -> None:
    scene = Scene()
    scene.topic("t", 1)
    scene.owned("a", 0)
    core = coordination(scene)
    for name in everybody_in_turn():
        for step in (Step.WARMING, Step.READY):
            core.observe(scene.handoff(0, "a", name, step), 1.0)
    assert not core._in_flight._warming


def test_a_write_that_is_too_large_is_not_waited_for_for_ever() -> None:
    """Or no generation would be published any more."""
    scene = Scene()
    scene.topic("t", 1)
    scene.consumer("a")
    core = coordination(scene)
    request = core.decide(0.0, 0.0).solve
    assert request is not None
    core.solved([OwnerTarget(T0, "a")])
    (write,) = core.decide(1.0, 1.0).writes
    assert core._publisher.waits
    core.too_large(write, "larger than the store takes", 1.0)
    assert not core._publisher.waits


def test_a_standby_record_that_was_overtaken_is_not_written_again_at_once() -> None:
    """Until the mirror shows what overtook it, it would be refused again, as fast as the store answers."""
    scene = Scene(standby_count=1)
    scene.topic("t", 1)
    scene.consumer("a")
    scene.consumer("b")
    scene.consumer("c")
    scene.owned("a", 0)
    scene.handoff(0, "a", "b")
    core = coordination(scene)
    core.decide(0.0, 0.0)
    core.solved([], [StandbyTarget(T0, "b", ("c",))])
    (write,) = core.decide(0.5, 0.5).writes
    assert write.purpose is Purpose.STANDBYS
    core.refused(write, 0.5)
    assert not core.decide(0.5, 0.5).writes
    again = core.decide(2.0, 2.0)
    assert again.solve is not None, "another plan says what is to be on record"
