"""What a router's ack does to a handoff at each of its steps, and what it is recorded under."""

from __future__ import annotations

import msgspec
import pytest

from assigner.core.routers.acks import check_ack, freeze_ack
from assigner.core.writes import Write
from assigner.errors import FailedPrecondition, InvalidInput
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Handoff, Router, RouterAck, Step, Stored, decode
from assigner.model.routes import FreezeAck
from assigner.store import ModRevisionIs, Put

KEYS = Keys("/r/").group("g")
TP = TopicPartition("t", 0)
ROUTER = Stored(Router(router_name="r1", session="s1"), KEYS.router("r1"), 5, 5, lease=42)
ACK = FreezeAck(TP, "h1")


def handoff(step: Step, handoff_id: str = "h1") -> Stored[Handoff]:
    record = Handoff(
        topic="t",
        partition=0,
        old_owner="a",
        new_owner="b",
        handoff_id=handoff_id,
        step=step,
        phase=step.phase,
        old_epoch=7,
    )
    return Stored(record, KEYS.handoff(TP), 9, 3)


def decided(step: Step, ack: FreezeAck = ACK, known: Stored[RouterAck] | None = None) -> Write | None:
    return freeze_ack(KEYS, handoff(step), ROUTER, known, ack, 1700)


def recorded(write: Write | None) -> tuple[RouterAck, Put]:
    assert write is not None
    (put,) = write.operations
    assert isinstance(put, Put)
    return decode(RouterAck, put.value)[0], put


@pytest.mark.parametrize("step", [Step.READY, Step.FREEZING])
def test_an_ack_of_a_freeze_is_recorded_under_the_routers_lease(step: Step) -> None:
    record, put = recorded(decided(step))
    assert put.key == KEYS.ack(TP, "r1")
    assert put.lease == 42
    assert (record.handoff_id, record.session, record.epoch, record.acked_at) == ("h1", "s1", 7, 1700)


def test_an_ack_is_recorded_only_if_handoff_and_registration_are_what_it_was_decided_on() -> None:
    write = decided(Step.FREEZING)
    assert write
    assert set(write.compares) == {ModRevisionIs(KEYS.handoff(TP), 9), ModRevisionIs(KEYS.router("r1"), 5)}


@pytest.mark.parametrize("step", [Step.RELEASING, Step.RELEASED, Step.COMPLETE])
def test_an_ack_after_the_freeze_changes_nothing(step: Step) -> None:
    assert decided(step) is None


@pytest.mark.parametrize("step", list(Step))
def test_an_ack_of_another_handoff_changes_nothing_at_any_step(step: Step) -> None:
    assert decided(step, FreezeAck(TP, "h0")) is None


@pytest.mark.parametrize("step", [Step.WARMING, Step.FAILED])
def test_an_ack_of_a_handoff_that_froze_nothing_is_refused(step: Step) -> None:
    with pytest.raises(FailedPrecondition, match="h1 is at"):
        decided(step)


def test_an_ack_that_is_on_record_is_not_written_again_unless_its_lease_is_another() -> None:
    record, put = recorded(decided(Step.FREEZING))
    assert decided(Step.FREEZING, known=Stored(record, put.key, 10, 10, lease=42)) is None
    assert decided(Step.FREEZING, known=Stored(record, put.key, 10, 10, lease=41)) is not None


@pytest.mark.parametrize("other", [{"handoff_id": "h0"}, {"session": "s0"}], ids=["handoff", "session"])
def test_an_ack_takes_the_place_of_one_for_another_handoff_or_session(other: dict[str, str]) -> None:
    record, put = recorded(decided(Step.FREEZING))
    known = Stored(msgspec.structs.replace(record, **other), put.key, 10, 10, lease=42)
    assert recorded(decided(Step.FREEZING, known=known))[0] == record


def test_a_handoff_of_upstream_is_acked_by_its_two_owners() -> None:
    old = handoff(Step.FREEZING, handoff_id="")
    assert freeze_ack(KEYS, old, ROUTER, None, FreezeAck(TP, "a>b"), 0) is not None


def test_an_ack_that_names_no_handoff_is_refused() -> None:
    with pytest.raises(InvalidInput, match="names no handoff"):
        check_ack(FreezeAck(TP, ""))
    check_ack(ACK)
