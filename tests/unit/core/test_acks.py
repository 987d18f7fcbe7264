"""What Ready and Released do to a handoff, edge by edge: which acks advance it, and which change nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assigner.core.group import GroupState
from assigner.core.handoff.acks import check_may_be_late, check_partition, ready, released
from assigner.core.handoff.lifecycle import slowest
from assigner.core.writes import Write
from assigner.errors import NotTheTarget, UnknownTopic
from assigner.model.commands import Ack
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import (
    Assignment,
    Consumer,
    Handoff,
    Phase,
    Step,
    Stored,
    TopicConfig,
    decode,
    encode,
)
from assigner.store import Delete, Entry, ModRevisionIs, Put, PutEvent

KEYS = Keys("/r/", default_group="g", default_prefix="").group("g")
TP = TopicPartition("t", 0)
OLD = Consumer(consumer_name="old", session="o1")
NEW = Consumer(consumer_name="new", session="n1")
ACK = Ack(TP, "h1")
NOT_WARMING = [step for step in Step if step is not Step.WARMING]
NOT_TO_RELEASE = [step for step in Step if step not in (Step.RELEASING, Step.COMPLETE)]


def handoff(step: Step, extra: dict[str, Any] | None = None, **fields: Any) -> Stored[Handoff]:
    record = Handoff(
        topic="t",
        partition=0,
        old_owner="old",
        old_session="o1",
        new_owner="new",
        new_session="n1",
        handoff_id="h1",
        step=step,
        phase=step.phase,
    )
    return Stored(msgspec.structs.replace(record, **fields), KEYS.handoff(TP), 7, 5, extra=extra or {})


def after(write: Write | None) -> Handoff:
    """The handoff that the write puts, which must be all it does."""
    assert write is not None
    (put,) = write.operations
    assert isinstance(put, Put)
    assert put.key == KEYS.handoff(TP)
    return decode(Handoff, put.value)[0]


def again(write: Write | None) -> Stored[Handoff]:
    return Stored(after(write), KEYS.handoff(TP), 8, 5)


# --- Ready -------------------------------------------------------------------------------------------------------


def test_ready_advances_a_warming_handoff() -> None:
    moved = after(ready(handoff(Step.WARMING), NEW, ACK))
    assert (moved.at, moved.phase, moved.failure) == (Step.READY, Phase.READY, "")


def test_a_failed_warm_is_recorded_with_its_reason() -> None:
    moved = after(ready(handoff(Step.WARMING), NEW, Ack(TP, "h1", "disk full")))
    assert (moved.at, moved.phase, moved.failure) == (Step.FAILED, Phase.WARMING, "disk full")


def test_an_ack_changes_nothing_else_of_the_handoff() -> None:
    before = handoff(Step.WARMING, old_epoch=3, started_at=11, warm=True)
    moved = after(ready(before, NEW, ACK))
    assert msgspec.structs.replace(moved, step=Step.WARMING, phase=Phase.WARMING) == before.record


def test_an_ack_keeps_fields_of_other_releases() -> None:
    write = ready(handoff(Step.WARMING, extra={"colour": "blue"}), NEW, ACK)
    assert write is not None
    (put,) = write.operations
    assert isinstance(put, Put)
    assert decode(Handoff, put.value)[1] == {"colour": "blue"}


@pytest.mark.parametrize("step", NOT_WARMING)
def test_ready_in_any_other_step_changes_nothing(step: Step) -> None:
    assert ready(handoff(step), NEW, ACK) is None


@pytest.mark.parametrize("failure", ["", "disk full"])
def test_a_duplicate_ready_changes_nothing(failure: str) -> None:
    ack = Ack(TP, "h1", failure)
    assert ready(again(ready(handoff(Step.WARMING), NEW, ack)), NEW, ack) is None


def test_a_failure_reported_after_ready_does_not_undo_it() -> None:
    assert ready(again(ready(handoff(Step.WARMING), NEW, ACK)), NEW, Ack(TP, "h1", "disk full")) is None


def test_a_ready_reported_after_a_failure_does_not_undo_it() -> None:
    failed = again(ready(handoff(Step.WARMING), NEW, Ack(TP, "h1", "disk full")))
    assert ready(failed, NEW, ACK) is None


@pytest.mark.parametrize(
    "sender",
    [OLD, Consumer(consumer_name="new", session="n2"), Consumer(consumer_name="third", session="n1")],
    ids=["the old owner", "another session of the name", "another name"],
)
def test_only_the_session_that_was_asked_may_say_ready(sender: Consumer) -> None:
    assert ready(handoff(Step.WARMING), sender, ACK) is None


def test_a_ready_for_a_superseded_handoff_changes_nothing() -> None:
    assert ready(handoff(Step.WARMING, handoff_id="h2"), NEW, ACK) is None


def test_a_ready_without_an_id_counts_for_the_handoff_that_is_warming() -> None:
    assert after(ready(handoff(Step.WARMING), NEW, Ack(TP))).at is Step.READY


def test_a_ready_counts_for_a_record_that_knows_only_phases() -> None:
    bare = Handoff(topic="t", partition=0, old_owner="old", new_owner="new", new_session="n1", phase=Phase.WARMING)
    assert after(ready(Stored(bare, KEYS.handoff(TP), 7, 5), NEW, Ack(TP))).at is Step.READY


# --- Released ----------------------------------------------------------------------------------------------------


def test_released_advances_an_exclusive_handoff_for_the_leader_to_flip() -> None:
    moved = after(released(handoff(Step.RELEASING), OLD, ACK))
    assert (moved.at, moved.phase) == (Step.RELEASED, Phase.READY)


def test_released_ends_a_handoff_whose_owner_was_replaced_already() -> None:
    write = released(handoff(Step.COMPLETE), OLD, ACK)
    assert write is not None
    assert write.operations == (Delete(KEYS.handoff(TP)),)


def test_released_counts_where_nobody_takes_over() -> None:
    assert after(released(handoff(Step.RELEASING, new_owner="", new_session=""), OLD, ACK)).at is Step.RELEASED


@pytest.mark.parametrize("step", NOT_TO_RELEASE)
def test_released_before_it_was_asked_for_or_twice_changes_nothing(step: Step) -> None:
    assert released(handoff(step), OLD, ACK) is None


def test_a_duplicate_released_changes_nothing() -> None:
    assert released(again(released(handoff(Step.RELEASING), OLD, ACK)), OLD, ACK) is None


@pytest.mark.parametrize("step", [Step.RELEASING, Step.COMPLETE])
@pytest.mark.parametrize(
    "sender",
    [NEW, Consumer(consumer_name="old", session="o2"), Consumer(consumer_name="third", session="o1")],
    ids=["the new owner", "another session of the name", "another name"],
)
def test_only_the_session_that_holds_the_partition_may_release_it(step: Step, sender: Consumer) -> None:
    assert released(handoff(step), sender, ACK) is None


@pytest.mark.parametrize("step", [Step.RELEASING, Step.COMPLETE])
def test_a_released_for_a_superseded_handoff_changes_nothing(step: Step) -> None:
    assert released(handoff(step, handoff_id="h2"), OLD, ACK) is None


@pytest.mark.parametrize("step", [Step.RELEASING, Step.COMPLETE])
def test_a_released_without_an_id_counts_for_the_handoff_that_asks_for_it(step: Step) -> None:
    assert released(handoff(step), OLD, Ack(TP)) is not None


def test_a_consumer_that_is_both_ends_of_different_handoffs_acks_each_as_what_it_is_there() -> None:
    back = handoff(Step.WARMING, old_owner="new", old_session="n1", new_owner="old", new_session="o1")
    assert ready(back, NEW, ACK) is None
    assert after(ready(back, OLD, ACK)).at is Step.READY


# --- both --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        ready(handoff(Step.WARMING), NEW, ACK),
        released(handoff(Step.RELEASING), OLD, ACK),
        released(handoff(Step.COMPLETE), OLD, ACK),
    ],
    ids=["ready", "released", "released after the flip"],
)
def test_every_ack_compares_the_handoff_it_was_decided_by(write: Write | None) -> None:
    assert write is not None
    assert write.compares == (ModRevisionIs(KEYS.handoff(TP), 7),)


def test_partitions_that_move_as_one_are_acked_one_by_one_and_wait_for_the_slowest() -> None:
    steps = [Step.WARMING, Step.WARMING]
    for number in range(2):
        tp = TopicPartition(f"t{number}", 0)
        one = msgspec.structs.replace(handoff(Step.WARMING), key=KEYS.handoff(tp))
        write = ready(one, NEW, Ack(tp, "h1"))
        assert write is not None
        (put,) = write.operations
        assert isinstance(put, Put)
        assert put.key == KEYS.handoff(tp)
        steps[number] = decode(Handoff, put.value)[0].at
        assert slowest(steps) is (Step.WARMING if number == 0 else Step.READY)


# --- acks that match no handoff ----------------------------------------------------------------------------------


def group(*records: tuple[str, Assignment | Handoff | TopicConfig]) -> GroupState:
    state = GroupState(KEYS)
    for number, (key, record) in enumerate(records, 1):
        state.apply(PutEvent(Entry(key, encode(record), number, number, 1)))
    return state


def owned_by(name: str) -> tuple[str, Assignment]:
    return KEYS.assignment(TP), Assignment(topic="t", partition=0, owner=name, session="x", epoch=1)


def test_a_ready_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(NotTheTarget, match="was not asked to warm"):
        check_may_be_late(group(owned_by("old")), NEW, Ack(TP), set())


@pytest.mark.parametrize(
    ("state", "ack", "targeted"),
    [
        (group(), Ack(TP), {TP}),
        (group(), Ack(TP), None),
        (group(), ACK, set()),
        (group(owned_by("new")), Ack(TP), set()),
    ],
    ids=["it was asked", "its stream is elsewhere", "it names a handoff", "it owns the partition by now"],
)
def test_a_ready_that_may_be_late_is_not_refused(
    state: GroupState, ack: Ack, targeted: set[TopicPartition] | None
) -> None:
    check_may_be_late(state, NEW, ack, targeted)


def test_an_ack_for_a_topic_or_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownTopic, match="'t' is not known in group 'g'"):
        check_partition(group(), TP)
    with pytest.raises(UnknownTopic, match="partitions 0 to 1"):
        check_partition(group((KEYS.topic("t"), TopicConfig(topic="t", partition_count=2))), TopicPartition("t", 2))


@pytest.mark.parametrize(
    "state",
    [
        group((KEYS.topic("t"), TopicConfig(topic="t", partition_count=1))),
        group(owned_by("old")),
        group((KEYS.handoff(TP), handoff(Step.WARMING).record)),
    ],
    ids=["of a known topic", "still owned", "still handed over"],
)
def test_an_ack_for_a_partition_there_is_is_not_refused(state: GroupState) -> None:
    check_partition(state, TP)
