"""Connections beyond the limits: the silent ones are closed first, then old ones without a consumer."""

from __future__ import annotations

import pytest

from assigner.server.transport.admission import MAX_SILENT, Admission, ConnectionStage, Slot


class Door:
    """An admission whose closed connections are kept by name."""

    def __init__(self, most: int, per_address: int = 1_000) -> None:
        self.admission = Admission(most, per_address)
        self.closed: list[str] = []

    def come(
        self, name: str, host: str = "10.0.0.1", stage: ConnectionStage = ConnectionStage.SILENT, now: float = 0.0
    ) -> Slot | None:
        slot = self.admission.admit(host, now)
        if slot is not None:
            slot.close = lambda: self.closed.append(name)
            self.admission.move(slot, stage, now)
        return slot


def test_there_is_room_until_the_bound_and_again_when_one_left() -> None:
    door = Door(2)
    first, second = (door.come(name, stage=ConnectionStage.CONSUMERS) for name in "ab")
    assert first is not None
    assert second is not None
    assert door.come("c") is None
    door.admission.leave(first)
    door.admission.leave(first)
    assert len(door.admission) == 1
    assert door.come("c") is not None
    assert not door.closed


def test_the_connection_that_has_been_silent_longest_is_closed_first() -> None:
    door = Door(3)
    door.come("stranger", stage=ConnectionStage.NO_CONSUMER)
    door.come("silent", now=1.0)
    door.come("later", now=2.0)
    assert door.come("new", now=100.0) is not None
    assert door.closed == ["silent"]
    assert len(door.admission) == 3


def test_only_so_many_are_silent_at_a_time() -> None:
    door = Door(10_000, per_address=10_000)
    for number in range(MAX_SILENT + 2):
        door.come(str(number))
    assert door.closed == ["0", "1"]
    assert len(door.admission) == MAX_SILENT


def test_a_connection_without_a_consumer_is_closed_for_another_after_a_while_and_not_before() -> None:
    door = Door(2)
    door.come("old", stage=ConnectionStage.NO_CONSUMER)
    door.come("young", stage=ConnectionStage.NO_CONSUMER, now=3.0)
    assert door.come("new", now=4.0) is None
    assert door.come("new", stage=ConnectionStage.NO_CONSUMER, now=6.0) is not None
    assert door.closed == ["old"]


def test_connections_with_consumers_never_make_room() -> None:
    door = Door(1)
    door.come("consumer", stage=ConnectionStage.CONSUMERS)
    assert door.come("new", now=1e6) is None
    assert not door.closed


def test_a_connection_that_lost_its_last_consumer_counts_as_without_one_from_then_on() -> None:
    door = Door(1)
    slot = door.come("was", stage=ConnectionStage.CONSUMERS)
    assert slot is not None
    door.admission.move(slot, ConnectionStage.NO_CONSUMER, 100.0)
    assert door.come("new", now=101.0) is None
    assert door.come("new", now=106.0) is not None
    assert door.closed == ["was"]


def test_one_address_does_not_take_the_room_of_others() -> None:
    door = Door(10, per_address=2)
    for name in "ab":
        door.come(name, stage=ConnectionStage.CONSUMERS)
    assert door.come("c") is None
    assert door.come("other", host="10.0.0.2") is not None


def test_room_at_an_address_is_made_by_that_address() -> None:
    door = Door(10, per_address=1)
    door.come("other", host="10.0.0.2")
    door.come("a", host="10.0.0.1", now=1.0)
    assert door.come("b", host="10.0.0.1", now=2.0) is not None
    assert door.closed == ["a"]


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
    door = Door(10, per_address=1)
    door.come("first", host=one, stage=ConnectionStage.CONSUMERS)
    assert (door.come("second", host=another) is None) == same


def test_nothing_is_remembered_of_addresses_that_left() -> None:
    door = Door(10)
    for number in range(100):
        slot = door.come("x", host=f"10.0.0.{number}")
        assert slot is not None
        door.admission.leave(slot)
    assert not door.admission._by_address
    assert len(door.admission) == 0
