"""Connections beyond the limits: the silent ones are closed first, then old ones without a consumer."""

from __future__ import annotations

import pytest

from assigner.server.transport.admission import MAX_SILENT, Admission, ConnectionStage, Slot


class AdmissionScene:
    """An admission whose closed connections are kept by name."""

    def __init__(self, most: int, per_address: int = 1_000) -> None:
        self.admission = Admission(most, per_address)
        self.closed: list[str] = []

    def admit(
        self, name: str, host: str = "10.0.0.1", stage: ConnectionStage = ConnectionStage.SILENT, now: float = 0.0
    ) -> Slot | None:
        slot = self.admission.admit(host, now)
        if slot is not None:
            slot.close = lambda: self.closed.append(name)
            self.admission.move(slot, stage, now)
        return slot


def test_there_is_room_until_the_bound_and_again_when_one_left() -> None:
    scene = AdmissionScene(2)
    first, second = (scene.admit(name, stage=ConnectionStage.CONSUMERS) for name in "ab")
    assert first is not None
    assert second is not None
    assert scene.admit("c") is None
    scene.admission.leave(first)
    scene.admission.leave(first)
    assert len(scene.admission) == 1
    assert scene.admit("c") is not None
    assert not scene.closed


def test_the_connection_that_has_been_silent_longest_is_closed_first() -> None:
    scene = AdmissionScene(3)
    scene.admit("stranger", stage=ConnectionStage.NO_CONSUMER)
    scene.admit("silent", now=1.0)
    scene.admit("later", now=2.0)
    assert scene.admit("new", now=100.0) is not None
    assert scene.closed == ["silent"]
    assert len(scene.admission) == 3


def test_only_so_many_are_silent_at_a_time() -> None:
    scene = AdmissionScene(10_000, per_address=10_000)
    for number in range(MAX_SILENT + 2):
        scene.admit(str(number))
    assert scene.closed == ["0", "1"]
    assert len(scene.admission) == MAX_SILENT


def test_a_connection_without_a_consumer_is_closed_for_another_after_a_while_and_not_before() -> None:
    scene = AdmissionScene(2)
    scene.admit("old", stage=ConnectionStage.NO_CONSUMER)
    scene.admit("young", stage=ConnectionStage.NO_CONSUMER, now=3.0)
    assert scene.admit("new", now=4.0) is None
    assert scene.admit("new", stage=ConnectionStage.NO_CONSUMER, now=6.0) is not None
    assert scene.closed == ["old"]


def test_connections_with_consumers_never_make_room() -> None:
    scene = AdmissionScene(1)
    scene.admit("consumer", stage=ConnectionStage.CONSUMERS)
    assert scene.admit("new", now=1e6) is None
    assert not scene.closed


def test_a_connection_that_lost_its_last_consumer_counts_as_without_one_from_then_on() -> None:
    scene = AdmissionScene(1)
    slot = scene.admit("was", stage=ConnectionStage.CONSUMERS)
    assert slot is not None
    scene.admission.move(slot, ConnectionStage.NO_CONSUMER, 100.0)
    assert scene.admit("new", now=101.0) is None
    assert scene.admit("new", now=106.0) is not None
    assert scene.closed == ["was"]


def test_one_address_does_not_take_the_room_of_others() -> None:
    scene = AdmissionScene(10, per_address=2)
    for name in "ab":
        scene.admit(name, stage=ConnectionStage.CONSUMERS)
    assert scene.admit("c") is None
    assert scene.admit("other", host="10.0.0.2") is not None


def test_room_at_an_address_is_made_by_that_address() -> None:
    scene = AdmissionScene(10, per_address=1)
    scene.admit("other", host="10.0.0.2")
    scene.admit("a", host="10.0.0.1", now=1.0)
    assert scene.admit("b", host="10.0.0.1", now=2.0) is not None
    assert scene.closed == ["a"]


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_a_site_of_ipv6_counts_as_one_address(one: str, another: str, same: bool) -> None:
    scene = AdmissionScene(10, per_address=1)
    scene.admit("first", host=one, stage=ConnectionStage.CONSUMERS)
    assert (scene.admit("second", host=another) is None) == same


def test_nothing_is_remembered_of_addresses_that_left() -> None:
    scene = AdmissionScene(10)
    for number in range(100):
        slot = scene.admit("x", host=f"10.0.0.{number}")
        assert slot is not None
        scene.admission.leave(slot)
    assert not scene.admission._by_address
    assert len(scene.admission) == 0
