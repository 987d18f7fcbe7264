"""The same requests to Kafka's own broker and to a gateway, one by one: both give the same answers.

Each dialogue is a fresh group. What is compared is every answer, with member ids replaced by the names of who got them.
Where ours differ on purpose (see the decision about classic groups), no dialogue goes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.gateway.classic_dialogue import Actor, Front
from tests.support.gateway.classic_service import classic_services
from tests.support.servers.kafka import KafkaBroker

STICKY = (("sticky", b"s"),)


@pytest.fixture(scope="module")
def gateway(kafka_broker: KafkaBroker) -> Iterator[str]:
    with classic_services(kafka_broker.bootstrap, initial_delay=0.0) as services:
        yield services.bootstrap


@pytest.fixture(scope="module")
def topic(kafka_broker: KafkaBroker) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, 2)
    return name


def two_members(front: Front, **changes: Any) -> tuple[Actor, Actor]:
    """A stable group of two: `a` leads."""
    a, b = front.actor("a"), front.actor("b")
    a.enter(**changes)
    a.joined()
    a.sync((a, b"all"))
    b.enter(**changes)
    b.note_waiting()
    a.heartbeat()
    a.join(**changes)
    b.joined()
    b.send_sync()
    a.sync((a, b"0"), (b, b"1"))
    b.synced()
    return a, b


def two_static(front: Front, **changes: Any) -> tuple[Actor, Actor]:
    a, b = front.actor("a", "one"), front.actor("b", "two")
    a.join(**changes)
    a.sync((a, b"all"))
    b.send_join(**changes)
    b.note_waiting()
    a.join(**changes)
    b.joined()
    b.send_sync()
    a.sync((a, b"0"), (b, b"1"))
    b.synced()
    return a, b


# --- dialogues ---------------------------------------------------------------------------------------------------


def an_unknown_group(front: Front) -> None:
    a = front.actor("a")
    a.member_id, a.generation = "nobody", 3
    a.heartbeat()
    a.sync()
    a.join()
    for version in (1, 3, 5):
        a.leave(version=version)
    for version in (8, 9):
        a.commit(version)
    a.describe(5)
    a.delete()
    a.forget()


def a_simple_group(front: Front) -> None:
    a = front.actor("a")
    a.commit(generation=-1)
    a.commit(generation=-1, metadata="x" * 4_097)
    a.commit(generation=-1, partition=99)
    a.describe()
    a.heartbeat(generation=0)
    a.sync(generation=0)
    a.leave(("nobody", None))
    a.forget()
    a.delete()
    a.describe(5)


def requests_that_no_group_takes(front: Front) -> None:
    a = front.actor("a")
    a.join(session=1_800_001)
    a.join(session=100)
    a.protocols = ()
    a.join()
    a.protocols = STICKY
    a.join(kind="")
    front.group = ""
    for ask in (a.join, a.sync, a.heartbeat):
        ask()


def one_member(front: Front) -> None:
    a = front.actor("a")
    a.join()
    a.heartbeat(generation=0)
    a.describe()
    a.send_join()
    a.joined()
    a.heartbeat()
    a.commit()
    a.describe()
    a.sync((a, b"all"))
    a.heartbeat()
    for version in (8, 9):
        a.commit(version)
    a.describe()
    a.sync()
    a.leave()
    a.describe()
    a.heartbeat()
    a.commit()
    a.commit(generation=-1)
    a.join()


def every_version_of_joining(front: Front) -> None:
    for version in range(10):
        a = front.actor(f"v{version}")
        a.join(version)
        if version >= 4:
            a.join(version)
        a.sync((a, b"all"), version=min(version, 5))
        a.heartbeat(min(version, 4))
        a.leave(version=min(version, 5))


def wrong_generations_and_strangers(front: Front) -> None:
    a, b = two_members(front)
    stranger = front.actor("stranger")
    stranger.member_id, stranger.generation = "stranger", 99
    for generation in (a.generation - 1, a.generation + 1, -1, 0):
        a.heartbeat(generation=generation)
        a.sync(generation=generation)
        a.commit(generation=generation)
    for ask in (stranger.join, stranger.sync, stranger.heartbeat, stranger.commit, stranger.leave):
        ask()
    stranger.member_id = ""
    stranger.commit(generation=-1)
    stranger.heartbeat()
    b.delete()
    b.forget()


def a_rebalance(front: Front) -> None:
    a, b = two_members(front)
    c = front.actor("c")
    c.enter()
    c.note_waiting()
    for member in (a, b):
        member.heartbeat()
        member.sync()
        member.commit()
        member.describe()
    a.send_join()
    a.note_waiting()
    b.join()
    a.joined()
    c.joined()
    for member in (a, b, c):
        member.heartbeat()
        member.commit()
    b.describe()
    c.send_sync()
    c.note_waiting()
    a.sync((a, b"0"), (b, b"1"))
    c.synced()
    b.sync()
    c.commit()
    c.describe()


def joining_again(front: Front) -> None:
    a, b = two_members(front)
    b.join()
    b.sync()
    b.protocols = [("range", b.protocols[0][1] + b"\0\0")]
    b.send_join()
    b.note_waiting()
    a.heartbeat()
    a.join()
    b.joined()
    b.join()
    a.join()
    b.send_sync()
    b.note_waiting()
    a.protocols = [("range", a.protocols[0][1] + b"\1\1")]
    a.send_join()
    b.synced()
    b.join()
    a.joined()


def a_leader_that_joins_a_stable_group_again(front: Front) -> None:
    a, b = two_members(front)
    a.send_join()
    a.note_waiting()
    b.heartbeat()
    b.join()
    a.joined()


def members_that_leave(front: Front) -> None:
    a, b = two_members(front)
    c = front.actor("c")
    c.join()
    a.leave(("stranger", None), (b.member_id, None), (c.member_id, None), ("", "nobody"), (a.member_id, "nobody"))
    b.heartbeat()
    c.send_join()
    c.joined()
    a.heartbeat()
    a.join()
    a.leave(version=1)
    a.describe()


def a_member_that_leaves_while_others_wait(front: Front) -> None:
    a, b = two_members(front)
    c = front.actor("c")
    c.enter()
    c.note_waiting()
    a.send_join()
    a.note_waiting()
    b.leave()
    a.joined()
    c.joined()
    c.send_sync()
    c.note_waiting()
    a.leave()
    c.synced()
    c.join()


def protocols_that_do_not_fit(front: Front) -> None:
    a, _ = two_members(front)
    c = front.actor("c")
    c.protocols = STICKY
    c.join()
    c.protocols = a.protocols
    c.join(kind="connect")
    a.sync(protocol_name="sticky")
    a.sync(protocol_type="connect")
    a.protocols = [*a.protocols, *STICKY]
    a.send_join()
    a.note_waiting()


def a_vote(front: Front) -> None:
    a, b, c = (front.actor(name) for name in "abc")
    both = [("range", b"r"), ("sticky", b"s")]
    a.protocols, b.protocols, c.protocols = both, both[::-1], both[::-1]
    a.enter()
    a.joined()
    for member in (b, c):
        member.enter()
        member.note_waiting()
    a.join()
    for member in (b, c):
        member.joined()


def a_static_member_that_restarts(front: Front) -> None:
    a, b = two_static(front)
    again = front.actor("b again", "two")
    again.join()
    again.sync()
    a.heartbeat()
    for ask in (b.heartbeat, b.sync, b.commit, b.join, b.leave):
        ask()
    again.describe()


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_leader_that_restarts(kafka_broker: KafkaBroker, gateway: str, topic: str, version: int) -> None:
    def a_static_leader_that_restarts(front: Front) -> None:
        _, b = two_static(front)
        again = front.actor("a again", "one")
        again.join(version)
        again.sync(version=min(version, 5))
        b.heartbeat()
        again.heartbeat()
        again.send_join(version)
        again.note_waiting()

    compare(a_static_leader_that_restarts, kafka_broker.bootstrap, gateway, topic)


def a_static_member_that_restarts_in_a_rebalance(front: Front) -> None:
    a, b = two_static(front)
    a.send_join()
    a.note_waiting()
    again = front.actor("b again", "two")
    again.join()
    a.joined()
    again.send_sync()
    again.note_waiting()
    third = front.actor("b for the third time", "two")
    third.send_join()
    again.synced()
    third.note_waiting()
    b.heartbeat()
    a.heartbeat()


def a_static_member_that_is_removed(front: Front) -> None:
    a, b = two_static(front)
    a.leave(("", "two"), ("", "three"))
    b.heartbeat()
    a.heartbeat()
    a.join()
    a.leave(("", "one"))
    a.describe()


def instance_ids_that_are_wrong(front: Front) -> None:
    a, _ = two_static(front)
    for instance in ("two", "three", None):
        a.instance_id = instance
        for ask in (a.heartbeat, a.sync, a.commit):
            ask()
        a.heartbeat(generation=99)
    a.instance_id = "three"
    a.join()
    a.leave()


def members_that_miss_the_join_deadline(front: Front) -> None:
    a, _ = two_members(front, rebalance=2_000)
    a.join(rebalance=2_000)
    a.describe()
    _.heartbeat()


def a_leader_that_misses_the_sync_deadline(front: Front) -> None:
    a, b = two_members(front, rebalance=2_000)
    a.send_join(rebalance=2_000)
    a.note_waiting()
    b.join(rebalance=2_000)
    a.joined()
    b.send_sync()
    b.synced()
    a.heartbeat()
    b.join(rebalance=2_000)


def a_static_member_that_misses_the_join_deadline(front: Front) -> None:
    a, b = two_static(front, rebalance=2_000)
    a.join(rebalance=2_000)
    a.describe()
    b.heartbeat()
    b.heartbeat(generation=a.generation)
    a.sync((a, b"2"), (b, b"3"))
    b.sync(generation=a.generation)


def a_session_that_ends(front: Front) -> None:
    a, b = two_members(front, session=6_000)
    until = time.monotonic() + 8
    while time.monotonic() < until:
        a.ask_heartbeat()
        time.sleep(0.5)
    a.heartbeat()
    b.heartbeat()
    a.join()


def deletions(front: Front) -> None:
    a, b = two_members(front)
    a.commit()
    a.delete()
    a.forget()
    a.leave((a.member_id, None), (b.member_id, None))
    a.forget()
    a.delete()
    a.describe(5)


DIALOGUES: list[Callable[[Front], None]] = [
    an_unknown_group,
    a_simple_group,
    requests_that_no_group_takes,
    one_member,
    every_version_of_joining,
    wrong_generations_and_strangers,
    a_rebalance,
    joining_again,
    a_leader_that_joins_a_stable_group_again,
    members_that_leave,
    a_member_that_leaves_while_others_wait,
    protocols_that_do_not_fit,
    a_vote,
    a_static_member_that_restarts,
    a_static_member_that_restarts_in_a_rebalance,
    a_static_member_that_is_removed,
    instance_ids_that_are_wrong,
    members_that_miss_the_join_deadline,
    a_leader_that_misses_the_sync_deadline,
    a_static_member_that_misses_the_join_deadline,
    a_session_that_ends,
    deletions,
]


def compare(dialogue: Callable[[Front], None], broker: str, gateway: str, topic: str) -> None:
    """Hold the dialogue with both, and compare what they said."""
    group = f"{dialogue.__name__}-{uuid.uuid4().hex[:8]}"
    said = []
    for bootstrap in (broker, gateway):
        front = Front(bootstrap, group, topic)
        try:
            front.until_ready()
            dialogue(front)
        finally:
            front.close()
        said.append(front.notes)
    assert said[1] == said[0]


@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda dialogue: dialogue.__name__)
def test_both_say_the_same(
    dialogue: Callable[[Front], None], kafka_broker: KafkaBroker, gateway: str, topic: str
) -> None:
    compare(dialogue, kafka_broker.bootstrap, gateway, topic)
