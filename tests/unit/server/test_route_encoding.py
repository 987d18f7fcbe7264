"""The encoding of routing tables: canonical protobuf, in bounded messages and in short steps of work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.model.keys import TopicPartition
from assigner.model.routes import PublishedLoads, Route, RoutingOpening, TableChanges
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class
from assigner.server.services import route_encoding
from assigner.server.services.route_encoding import MAX_MESSAGE, encode
from tests.support.measurement import counted_calls

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_topics = st.sampled_from(["t", "orders", "a.b-c_d"])
_numbers = st.integers(0, 40) | st.integers(0, 2**32 - 1)
_places = st.builds(TopicPartition, _topics, _numbers)
_owners = st.sampled_from([("a", "10.0.0.1:9"), ("b", ""), ("b", "10.0.0.2:9"), ("ç 日", "[::1]:9"), ("", "")])


def _route(owner: tuple[str, str], epoch: int, handoff_id: str, frozen: bool) -> Route:
    return Route(owner[0], owner[1], epoch, handoff_id, frozen)


_routes = st.builds(_route, _owners, st.integers(0, 2**64 - 1), _texts, st.booleans())
_loads = st.lists(st.tuples(_numbers, st.floats(0, 1e15)), max_size=8)
_published = st.builds(
    lambda topic, loads: PublishedLoads(topic, tuple(n for n, _ in loads), tuple(load for _, load in loads)),
    _topics,
    _loads,
)
_milliseconds = st.integers(0, 2**32 - 1).map(lambda ms: ms / 1000)
_changes = st.builds(
    TableChanges,
    opening=st.none() | st.builds(RoutingOpening, _milliseconds, _texts),
    full=st.booleans(),
    more=st.booleans(),
    revision=st.integers(0, 2**63 - 1),
    generation=st.integers(0, 2**64 - 1),
    routes=st.dictionaries(_places, _routes, max_size=60).map(lambda rows: tuple(rows.items())),
    unowned=st.lists(_places, max_size=20, unique=True).map(tuple),
    topics=st.dictionaries(_topics, st.integers(0, 2**32 - 1)).map(lambda counts: tuple(counts.items())),
    loads=st.lists(_published, max_size=3).map(tuple),
    loads_valid_for=_milliseconds,
)


def messages(changes: TableChanges) -> list[bytes]:
    return [message for message in encode(changes) if message is not None]


def decoded(message: v1.RoutingUpdate) -> TableChanges:
    """The changes of one message, read by what the .proto file says of its fields, in the generated classes."""
    handoffs = {TopicPartition(one.topic, one.partition): one for one in message.handoffs}
    routes: dict[TopicPartition, Route] = {}
    for of_topic in message.routes:
        partitions = of_topic.partitions or range(of_topic.first, of_topic.first + len(of_topic.owners))
        for partition, owner, epoch in zip(partitions, of_topic.owners, of_topic.epochs, strict=True):
            tp = TopicPartition(of_topic.topic, partition)
            at = handoffs.get(tp, v1.RouteHandoff())
            found = message.owners[owner]
            routes[tp] = Route(found.name, found.address, of_topic.base_epoch + epoch, at.handoff_id, at.frozen)
    assert handoffs.keys() <= routes.keys()
    opening = RoutingOpening(message.ttl_ms / 1000, message.incarnation)
    return TableChanges(
        opening=None if opening == RoutingOpening() else opening,
        full=message.full,
        more=message.more,
        revision=message.revision,
        generation=message.generation,
        routes=tuple(routes.items()),
        unowned=tuple(TopicPartition(told.topic, one) for told in message.unowned for one in told.partitions),
        topics=tuple((told.topic, told.partitions) for told in message.topics),
        loads=tuple(PublishedLoads(told.topic, tuple(told.partitions), tuple(told.loads)) for told in message.loads),
        loads_valid_for=message.loads_valid_ms / 1000,
    )


def joined(parts: Iterable[TableChanges]) -> dict[str, Any]:
    """What a router holds once it has all messages of an update, without regard to the order within lists."""
    parts = list(parts)
    return {
        "opening": next((part.opening for part in parts if part.opening), RoutingOpening()),
        "full": parts[0].full,
        "more": parts[-1].more,
        "revision": {part.revision for part in parts},
        "generation": {part.generation for part in parts},
        "routes": {tp: route for part in parts for tp, route in part.routes},
        "unowned": {tp for part in parts for tp in part.unowned},
        "topics": {topic: count for part in parts for topic, count in part.topics},
        "loads": [
            (told.topic, pair)
            for part in parts
            for told in part.loads
            for pair in zip(told.partitions, told.loads, strict=True)
        ],
        "loads_valid_for": {part.loads_valid_for for part in parts},
    }


def read(changes: TableChanges) -> list[TableChanges]:
    return [decoded(v1.RoutingUpdate.parse(message)) for message in messages(changes)]


# --- what is encoded is what is decoded --------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [MAX_MESSAGE, 1, 400])
@settings(max_examples=80, deadline=None)
@given(changes=_changes)
def test_what_is_encoded_is_decoded_however_it_is_cut(longest: int, changes: TableChanges) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(route_encoding, "MAX_MESSAGE", longest)
        sent = messages(changes)
    parts = [decoded(v1.RoutingUpdate.parse(message)) for message in sent]
    assert joined(parts) == joined([changes])
    assert [part.full for part in parts[1:]] == [False] * (len(parts) - 1)
    assert [part.opening for part in parts[1:]] == [None] * (len(parts) - 1)
    assert [part.more for part in parts[:-1]] == [True] * (len(parts) - 1)
    for message in sent:
        again = message_class("RoutingUpdate").FromString(message)
        assert again.SerializeToString(deterministic=True) == message == bytes(v1.RoutingUpdate.parse(message))


def test_even_nothing_is_a_message_because_it_has_a_revision() -> None:
    [part] = read(TableChanges(revision=7, generation=3))
    assert (part.revision, part.generation, part.more, part.full) == (7, 3, False, False)


def test_a_step_that_says_more_keeps_it_on_its_last_message() -> None:
    [first] = read(TableChanges(full=True, more=True, opening=RoutingOpening(15.0, "life-1"), routes=table(3)))
    assert (first.full, first.more, first.opening) == (True, True, RoutingOpening(15.0, "life-1"))


# --- how it is packed --------------------------------------------------------------------------------------------


def table(count: int, topic: str = "orders", owners: int = 100) -> tuple[tuple[TopicPartition, Route], ...]:
    return tuple(
        (
            TopicPartition(topic, number),
            Route(f"worker-{number % owners}", f"10.0.0.{number % owners}:8080", 1_000_000 + number % 120),
        )
        for number in range(count)
    )


def raw(changes: TableChanges) -> list[Any]:
    return [message_class("RoutingUpdate").FromString(message) for message in messages(changes)]


def test_partitions_that_follow_each_other_are_not_listed() -> None:
    [message] = raw(TableChanges(routes=table(9)[3:]))
    [of_topic] = message.routes
    assert (of_topic.first, list(of_topic.partitions), len(of_topic.owners)) == (3, [], 6)


def test_partitions_with_a_gap_are_listed() -> None:
    rows = table(9)
    [message] = raw(TableChanges(routes=rows[:3] + rows[4:]))
    assert list(message.routes[0].partitions) == [0, 1, 2, 4, 5, 6, 7, 8]


def test_rows_in_any_order_are_packed_as_those_in_order() -> None:
    rows = table(900)
    shuffled = tuple(sorted(rows, key=lambda row: str(row[0].partition)))
    [message] = raw(TableChanges(routes=shuffled))
    assert [(one.first, len(one.partitions)) for one in message.routes] == [(0, 0), (500, 0)]


def test_an_owner_is_named_once_in_a_message() -> None:
    [message] = raw(TableChanges(routes=table(2_000, owners=7)))
    assert [one.name for one in message.owners] == [f"worker-{number}" for number in range(7)]


def test_a_handoff_is_in_the_message_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_encoding, "MAX_MESSAGE", 30_000)
    rows = tuple((tp, Route("a", "x:1", 5, f"handoff-{tp.partition}", True)) for tp, _ in table(3_000))
    sent = raw(TableChanges(routes=rows))
    assert len(sent) > 3
    for message in sent:
        told = [one.first + n for one in message.routes for n in range(len(one.owners))]
        assert [one.partition for one in message.handoffs] == told


def test_an_address_that_registration_would_refuse_is_left_out() -> None:
    [part] = read(TableChanges(routes=((TopicPartition("t", 0), Route("a", "x" * 250, 1)),)))
    assert part.routes == ((TopicPartition("t", 0), Route("a", "", 1)),)


# --- bounds ------------------------------------------------------------------------------------------------------

PARTITIONS = 100_000


def test_a_table_of_100_000_partitions_takes_three_bytes_a_row() -> None:
    sent = messages(TableChanges(full=True, revision=2**40, topics=(("orders", PARTITIONS),), routes=table(PARTITIONS)))
    assert sum(map(len, sent)) < 3 * PARTITIONS


def test_a_table_without_order_takes_five_bytes_a_row() -> None:
    rows = tuple((TopicPartition(tp.topic, 9 * tp.partition), route) for tp, route in table(PARTITIONS))
    assert 3 * PARTITIONS < sum(map(len, messages(TableChanges(full=True, routes=rows)))) < 6 * PARTITIONS


def test_no_message_is_longer_than_a_mebibyte_even_with_the_longest_names() -> None:
    topic, name = "t" * 249, "ç" * 120
    rows = tuple(
        (
            TopicPartition(topic, 2**31 + 2 * number),
            Route(f"{name}{number}", f"{name}{number}", 2**63 + number, f"{name}{number}", True),
        )
        for number in range(20_000)
    )
    sent = messages(
        TableChanges(full=True, routes=rows, topics=tuple((f"{number:0249}", 1) for number in range(9_000)))
    )
    assert max(map(len, sent)) <= MAX_MESSAGE
    # No message is cut long before it has to be either.
    assert sum(map(len, sent)) / len(sent) > MAX_MESSAGE / 2


def test_long_lists_of_lost_partitions_and_of_loads_are_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_encoding, "MAX_MESSAGE", 80_000)
    numbers = tuple(range(30_000))
    changes = TableChanges(
        unowned=tuple(TopicPartition("orders", number) for number in numbers),
        loads=(PublishedLoads("orders", numbers, tuple(float(number) for number in numbers)),),
        loads_valid_for=30.0,
    )
    sent = messages(changes)
    assert len(sent) > 5
    assert max(map(len, sent)) <= 80_000
    assert joined(map(decoded, map(v1.RoutingUpdate.parse, sent))) == joined([changes])


def test_a_large_table_is_encoded_in_short_pieces() -> None:
    changes = TableChanges(full=True, routes=table(20_000))
    with counted_calls() as calls:
        pieces = [calls.lap() for _ in encode(changes)]
    # Some 2 ms of work.
    assert max(pieces) < 20_000
    assert len(pieces) > 40
