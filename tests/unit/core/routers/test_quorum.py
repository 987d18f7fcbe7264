"""Which routers a freeze waits for, by the records alone, and what the leader makes of that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assigner.core.group import GroupState
from assigner.core.routers import quorum
from assigner.core.writes import Purpose, Write
from assigner.model.records import FreezeOverdue, Handoff, HandoffMode, Router, RouterAck, Step
from assigner.store import Entry, PutEvent
from tests.support.core.coordination_scene import KEYS, Scene, tp

ON = tp(0)


def router(scene: Scene, name: str, session: str = "s1", *, displaced: bool = False) -> None:
    key = KEYS.displaced_router(name, session) if displaced else KEYS.router(name)
    scene.put(key, Router(router_name=name, session=session))


def ack(scene: Scene, name: str, *, session: str = "s1", handoff_id: str = "h0", epoch: int = 1) -> None:
    record = RouterAck(router_name=name, topic="t", partition=0, handoff_id=handoff_id, session=session, epoch=epoch)
    scene.put(KEYS.ack(ON, name), record)


def frozen(step: Step = Step.FREEZING, **options: Any) -> Scene:
    """Partition 0 moves from `a` to `b` and is frozen."""
    scene = Scene(partitions=1, names="ab", **options)
    scene.own(0, "a")
    scene.handoff(0, "a", "b", step)
    return scene


def writes(scene: Scene, purpose: Purpose) -> list[Write]:
    return [write for write in scene.decide().writes if write.purpose is purpose]


# --- who counts --------------------------------------------------------------------------------------------------


def test_without_routers_nobody_is_missing() -> None:
    scene = frozen()
    assert quorum.missing(scene.state, ON) == []
    assert quorum.unacked(scene.state) == {}


def test_every_registered_router_is_missing_until_it_has_acked() -> None:
    scene = frozen()
    router(scene, "r2")
    router(scene, "r1")
    assert quorum.missing(scene.state, ON) == ["r1", "r2"]
    ack(scene, "r2")
    assert quorum.missing(scene.state, ON) == ["r1"]
    assert quorum.unacked(scene.state) == {"r1": 1, "r2": 0}
    ack(scene, "r1")
    assert quorum.missing(scene.state, ON) == []
    assert quorum.unacked(scene.state) == {"r1": 0, "r2": 0}


@pytest.mark.parametrize("wrong", [{"session": "s0"}, {"session": ""}, {"handoff_id": "h9"}, {"handoff_id": ""}])
def test_an_ack_of_another_session_or_handoff_does_not_count(wrong: dict[str, str]) -> None:
    scene = frozen()
    router(scene, "r1")
    ack(scene, "r1", **wrong)  # type: ignore[arg-type]
    assert quorum.missing(scene.state, ON) == ["r1"]


def test_a_session_that_lost_its_name_counts_whatever_the_one_that_has_it_acked() -> None:
    scene = frozen()
    router(scene, "r1", "s1")
    router(scene, "r1", "s0", displaced=True)
    ack(scene, "r1")
    assert quorum.missing(scene.state, ON) == ["r1"]
    scene.delete(KEYS.displaced_router("r1", "s0"))
    assert quorum.missing(scene.state, ON) == []


def test_a_record_that_cannot_be_read_counts_and_no_ack_of_it_does() -> None:
    scene = frozen()
    scene.put(KEYS.router("r1"), Router(router_name="r1"), b"{")
    ack(scene, "r1")
    assert quorum.missing(scene.state, ON) == ["r1"]
    router(scene, "r1")
    assert quorum.missing(scene.state, ON) == []


def test_an_ack_under_the_key_of_another_router_is_none() -> None:
    scene = frozen()
    router(scene, "r1")
    record = RouterAck(router_name="r2", topic="t", partition=0, handoff_id="h0", session="s1")
    scene.put(KEYS.ack(ON, "r1"), record)
    assert quorum.missing(scene.state, ON) == ["r1"]


def test_of_many_routers_the_first_are_named_and_the_rest_is_counted() -> None:
    assert quorum.listed(["a", "b"]) == "'a', 'b'"
    assert quorum.listed("abcde") == "'a', 'b', 'c', 'd', 'e'"
    assert quorum.listed([str(number) for number in range(8)]) == "'0', '1', '2', '3', '4' and 3 more"
    most = [f"{number:02}" for number in range(quorum.NAMED_IN_RECORDS)]
    assert quorum.abridged(most) == tuple(most)
    assert quorum.abridged([*most, "x", "y"]) == (*most, "and 2 more")


def test_what_is_not_frozen_waits_for_nobody() -> None:
    scene = frozen()
    router(scene, "r1")
    scene.handoff(1, "a", "b", Step.WARMING)
    assert quorum.unacked(scene.state) == {"r1": 1}


# --- what the leader makes of it ---------------------------------------------------------------------------------


def test_the_departure_of_the_last_missing_router_flips_at_once() -> None:
    scene = frozen()
    router(scene, "r1")
    scene.lead()
    assert not writes(scene, Purpose.FLIP)
    scene.delete(KEYS.router("r1"))
    assert len(writes(scene, Purpose.FLIP)) == 1


@pytest.mark.parametrize("missed", ["departure", "ack"])
def test_a_missed_event_delays_the_flip_to_the_next_reconcile_pass_and_no_longer(missed: str) -> None:
    scene = frozen()
    router(scene, "r1")
    core = scene.lead()
    scene.decide()
    scene.core = None  # Nobody tells the leader of the next event.
    if missed == "departure":
        scene.delete(KEYS.router("r1"))
    else:
        ack(scene, "r1")
    scene.core = core
    assert not writes(scene, Purpose.FLIP)
    core.reconcile(scene.now)
    assert len(writes(scene, Purpose.FLIP)) == 1


def test_an_overdue_freeze_is_reaffirmed_or_goes_on_as_the_group_says() -> None:
    for option, expected in ((FreezeOverdue.ABANDON, Purpose.REASSERT_OWNER), (FreezeOverdue.PROCEED, Purpose.FLIP)):
        scene = frozen(freeze_overdue=option)
        router(scene, "silent")
        scene.lead()
        scene.decide()
        scene.now += scene.state.options.freeze_timeout + 1
        said = scene.decide()
        assert expected in [write.purpose for write in said.writes]
        (note,) = [note for note in said.notes if note.event == "freeze_overdue"]
        assert "'silent'" in note.reason


def test_an_overdue_exclusive_freeze_that_goes_on_remembers_whose_acks_it_lacks() -> None:
    scene = frozen(freeze_overdue=FreezeOverdue.PROCEED, handoff_mode=HandoffMode.EXCLUSIVE)
    router(scene, "silent")
    scene.lead()
    scene.decide()
    scene.now += scene.state.options.freeze_timeout + 1
    scene.decide(carry_out=True)
    record = scene.state.handoffs[ON].record
    assert (record.at, record.unacked) == (Step.RELEASING, ("silent",))


def test_complete_acks_win_over_a_deadline_that_has_passed() -> None:
    scene = frozen()
    router(scene, "r1")
    scene.lead()
    scene.decide()
    ack(scene, "r1")
    scene.now += scene.state.options.freeze_timeout + 1
    said = scene.decide()
    assert Purpose.FLIP in [write.purpose for write in said.writes]
    assert not [note for note in said.notes if note.event == "freeze_overdue"]


# --- handoffs that others deleted --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [Step.READY, Step.FREEZING, Step.RELEASING, Step.RELEASED])
def test_a_frozen_handoff_that_is_deleted_costs_the_owner_its_epoch(step: Step) -> None:
    scene = frozen(Step.WARMING, handoff_mode=HandoffMode.EXCLUSIVE)
    scene.lead()
    scene.decide()
    scene.put(KEYS.handoff(ON), _at(scene, step))
    scene.delete(KEYS.handoff(ON))
    scene.decide(carry_out=True)
    assert scene.state.assignments[ON].record.epoch == 2
    assert scene.state.assignments[ON].record.owner == "a"
    assert not writes(scene, Purpose.REASSERT_OWNER), "once"


def test_the_deletion_of_a_warming_handoff_costs_nothing() -> None:
    scene = frozen(Step.WARMING)
    scene.lead()
    scene.decide()
    scene.delete(KEYS.handoff(ON))
    assert not writes(scene, Purpose.REASSERT_OWNER)


def test_a_new_leader_finds_the_deletion_by_the_acks_and_deletes_them() -> None:
    scene = frozen()
    router(scene, "r1")
    ack(scene, "r1")
    scene.delete(KEYS.handoff(ON))
    scene.lead()
    (repair,) = writes(scene, Purpose.REASSERT_OWNER)
    scene.commit(repair)
    assert scene.state.assignments[ON].record.epoch == 2


def test_acks_of_a_handoff_that_ended_well_are_deleted_and_cost_nothing() -> None:
    scene = frozen()
    router(scene, "r1")
    ack(scene, "r1", epoch=0)
    scene.delete(KEYS.handoff(ON))
    scene.lead()
    said = scene.decide(carry_out=True)
    assert [write.purpose for write in said.writes if write.purpose is not Purpose.PLAN] == [Purpose.DROP_ACKS]
    assert not scene.state.acks
    assert scene.state.assignments[ON].record.epoch == 1


def test_an_owner_that_is_gone_gets_no_epoch_for_a_deleted_freeze() -> None:
    scene = frozen(Step.WARMING)
    scene.lead()
    scene.decide()
    scene.put(KEYS.handoff(ON), _at(scene, Step.FREEZING))
    scene.delete(KEYS.handoff(ON))
    scene.delete(KEYS.consumer("a"))
    assert not writes(scene, Purpose.REASSERT_OWNER)


def _at(scene: Scene, step: Step) -> Handoff:
    return msgspec.structs.replace(scene.state.handoffs[ON].record, step=step, phase=step.phase, old_epoch=1)


# --- listings ----------------------------------------------------------------------------------------------------


def test_of_a_listing_routers_are_applied_before_anything_that_could_become_ready() -> None:
    """A listing is applied in slices, between which the leader may decide."""
    listed = frozen(Step.READY)
    router(listed, "r1")
    router(listed, "r1", "s0", displaced=True)
    state = GroupState(KEYS)
    events = state.replace([Entry(key, value, 1, 1, 1) for key, value in sorted(listed.values.items())])
    keys = [event.entry.key for event in events if isinstance(event, PutEvent)]
    assert keys[:2] == [KEYS.router("r1"), KEYS.displaced_router("r1", "s0")]
    assert set(keys) == set(listed.values)
