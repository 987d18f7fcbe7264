"""The encoding of commands: canonical protobuf, in bounded messages and in short steps of work."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.model.commands import CancelWarm, Commands, Opening, Release, Warm
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class
from assigner.server.services import assignment_encoding
from assigner.server.services.assignment_encoding import Dialect, encode, encode_refusals
from tests.support.measurement import counted_calls

PLAIN = Dialect()
OWN_SESSION = Dialect(cancels=True)
PACKED = Dialect(packed=True, cancels=True)
STANDING_BY = Dialect(packed=True, cancels=True, standbys=True)
PLAIN_STANDING_BY = Dialect(standbys=True)

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_places = st.builds(TopicPartition, st.text("abc.-_", min_size=1, max_size=6), st.integers(0, 2**32 - 1))
_epochs = st.integers(0, 2**64 - 1)
_owned = st.lists(st.tuples(_places, _epochs), max_size=12).map(tuple)
_causes = st.sampled_from(Cause)
_commands = st.builds(
    Commands,
    full=st.booleans(),
    assigned=_owned,
    unassigned=_owned,
    cancels=st.lists(st.builds(CancelWarm, _places, _texts), max_size=3).map(tuple),
    warms=st.lists(st.builds(Warm, _places, _texts, _texts, _causes, st.booleans()), max_size=3).map(tuple),
    releases=st.lists(st.builds(Release, _places, _epochs, _texts, _texts, _causes, st.booleans()), max_size=3).map(
        tuple
    ),
    standbys_added=st.lists(_places, max_size=6).map(tuple),
    standbys_removed=st.lists(_places, max_size=6).map(tuple),
    generation=st.integers(0, 2**64 - 1),
)
_openings = st.none() | st.builds(Opening, _texts, st.integers(0, 2**32 - 1).map(lambda ms: ms / 1000), st.booleans())


def opened(commands: Commands, opening: Opening | None) -> Commands:
    return msgspec.structs.replace(commands, opening=opening)


def messages(commands: Commands, dialect: Dialect, opening: Opening | None = None) -> list[bytes]:
    return [message for message in encode(opened(commands, opening), dialect) if message is not None]


def parsed(commands: Commands, dialect: Dialect, opening: Opening | None = None) -> list[Any]:
    return [message_class("AssignmentCommand").FromString(one) for one in messages(commands, dialect, opening)]


# --- the same bytes as the libraries -----------------------------------------------------------------------------


def expected(commands: Commands, dialect: Dialect, opening: Opening | None) -> list[v1.AssignmentCommand]:
    """The same messages in the generated classes."""
    cancels = [_cancel(one) for one in commands.cancels] if dialect.cancels else []
    warms = [_warm(one) for one in commands.warms]
    releases = [_release(one) for one in commands.releases]
    update = _update(commands, dialect, opening)
    singles = [v1.AssignmentCommand(assignment=update)] if update is not None else []
    if not dialect.packed:
        singles += [v1.AssignmentCommand(cancel=one) for one in cancels]
        singles += [v1.AssignmentCommand(warm=one) for one in warms]
        return singles + [v1.AssignmentCommand(release=one) for one in releases]
    if not (cancels or warms or releases):
        return singles
    batch = v1.CommandBatch(cancels=cancels, warms=warms, releases=releases)
    if opening:
        assert update is not None
        update.more = True
        return [*singles, v1.AssignmentCommand(batch=batch)]
    batch.assignment = update
    return [v1.AssignmentCommand(batch=batch)]


def _update(commands: Commands, dialect: Dialect, opening: Opening | None) -> v1.AssignmentUpdate | None:
    standbys = dialect.standbys and (commands.standbys_added or commands.standbys_removed)
    if not (opening or commands.full or commands.assigned or commands.unassigned or standbys):
        return None
    update = v1.AssignmentUpdate(full=commands.full, generation=commands.generation)
    if opening:
        update.session, update.ttl_ms, update.exclusive = opening.session, round(opening.ttl * 1000), opening.exclusive
    if dialect.packed:
        update.assigned_packed = _by_topic(commands.assigned)
        update.unassigned_packed = _by_topic(commands.unassigned)
    else:
        update.assigned = [_place(tp, epoch) for tp, epoch in commands.assigned]
        update.unassigned = [_place(tp, epoch) for tp, epoch in commands.unassigned]
    if dialect.standbys:
        update.standbys_added = _copies(commands.standbys_added)
        update.standbys_removed = _copies(commands.standbys_removed)
    return update


def _copies(places: tuple[TopicPartition, ...]) -> list[v1.TopicPartitions]:
    by_topic = _by_topic(tuple((tp, 0) for tp in places))
    return [v1.TopicPartitions(topic=entry.topic, partitions=entry.partitions) for entry in by_topic]


def _by_topic(owned: tuple[tuple[TopicPartition, int], ...]) -> list[v1.TopicPartitions]:
    found: dict[str, v1.TopicPartitions] = {}
    for tp, epoch in owned:
        entry = found.setdefault(tp.topic, v1.TopicPartitions(topic=tp.topic))
        entry.partitions.append(tp.partition)
        entry.epochs.append(epoch)
    return list(found.values())


def _place(tp: TopicPartition, epoch: int = 0) -> v1.TopicPartition:
    return v1.TopicPartition(topic=tp.topic, partition=tp.partition, epoch=epoch)


def _cancel(one: CancelWarm) -> v1.CancelWarm:
    return v1.CancelWarm(partition=_place(one.tp), handoff_id=one.handoff_id)


def _warm(one: Warm) -> v1.WarmPartition:
    return v1.WarmPartition(
        partition=_place(one.tp),
        current_owner=one.current_owner,
        handoff_id=one.handoff_id,
        cause=one.cause,
        standby=one.standby,
    )


def _release(one: Release) -> v1.ReleasePartition:
    return v1.ReleasePartition(
        partition=_place(one.tp, one.epoch),
        new_owner=one.new_owner,
        handoff_id=one.handoff_id,
        cause=one.cause,
        standby=one.standby,
    )


@pytest.mark.parametrize("dialect", [PLAIN, OWN_SESSION, PACKED, STANDING_BY, PLAIN_STANDING_BY])
@settings(max_examples=60, deadline=None)
@given(commands=_commands, opening=_openings)
def test_the_bytes_are_those_of_the_generated_classes_and_of_protobuf(
    dialect: Dialect, commands: Commands, opening: Opening | None
) -> None:
    ours = messages(commands, dialect, opening)
    assert ours == [bytes(message) for message in expected(commands, dialect, opening)]
    for message in ours:
        read = message_class("AssignmentCommand").FromString(message)
        assert read.SerializeToString(deterministic=True) == message


@given(st.lists(st.tuples(_places, _texts), max_size=5))
def test_refusals_are_those_of_the_generated_classes(refused: list[tuple[TopicPartition, str]]) -> None:
    reply = v1.PartitionReadyResponse(
        refusals=[v1.Refusal(partition=_place(tp), reason=reason) for tp, reason in refused]
    )
    assert encode_refusals(refused) == bytes(reply)


# --- what is sent, and in which order ----------------------------------------------------------------------------

A, B = TopicPartition("orders", 0), TopicPartition("orders", 7)
EVERYTHING = Commands(
    assigned=((A, 3),),
    unassigned=((B, 4),),
    cancels=(CancelWarm(A, "h0"),),
    warms=(Warm(A, "h1", "old", Cause.JOINED), Warm(B, "h2", "old", Cause.LEFT)),
    releases=(Release(B, 4, "h3", "new", Cause.DRAINING),),
)


def kinds(commands: Commands, dialect: Dialect, opening: Opening | None = None) -> list[str]:
    return [message.WhichOneof("command") for message in parsed(commands, dialect, opening)]


def test_upstreams_client_gets_one_message_per_command_and_no_cancel() -> None:
    assert kinds(EVERYTHING, PLAIN) == ["assignment", "warm", "warm", "release"]


def test_a_client_with_its_own_session_gets_cancels_before_warms() -> None:
    assert kinds(EVERYTHING, OWN_SESSION) == ["assignment", "cancel", "warm", "warm", "release"]


def test_a_client_that_asked_for_it_gets_one_batch() -> None:
    [message] = parsed(EVERYTHING, PACKED)
    assert message.batch.assignment.assigned_packed[0].partitions == [0]
    assert (len(message.batch.cancels), len(message.batch.warms), len(message.batch.releases)) == (1, 2, 1)


@pytest.mark.parametrize("dialect", [PLAIN, PACKED])
def test_a_stream_opens_with_an_assignment_update_even_if_nothing_is_owned(dialect: Dialect) -> None:
    opening = Opening("s-1", 30.0, True, "life-1")
    first, *_ = parsed(Commands(full=True, warms=EVERYTHING.warms), dialect, opening)
    update = first.assignment
    assert first.WhichOneof("command") == "assignment"
    assert (update.full, update.session, update.ttl_ms, update.exclusive) == (True, "s-1", 30_000, True)
    assert update.incarnation == "life-1"
    assert not update.assigned
    assert not update.assigned_packed


@pytest.mark.parametrize("dialect", [PLAIN, PACKED])
def test_a_change_of_no_ownership_sends_no_update(dialect: Dialect) -> None:
    for message in parsed(Commands(warms=EVERYTHING.warms), dialect):
        assert message.WhichOneof("command") != "assignment"
        assert not message.batch.HasField("assignment")


def test_nothing_to_say_is_no_message() -> None:
    assert messages(Commands(generation=9), PLAIN) == []
    assert messages(Commands(cancels=EVERYTHING.cancels), PLAIN) == []


@pytest.mark.parametrize("dialect", [PLAIN, OWN_SESSION, PACKED])
def test_a_client_that_did_not_ask_is_sent_no_standbys(dialect: Dialect) -> None:
    assert messages(Commands(standbys_added=(A,), standbys_removed=(B,)), dialect) == []
    [first] = parsed(Commands(full=True, standbys_added=(A,)), dialect, Opening("s", 0.001, False))
    assert not first.assignment.standbys_added


def test_standbys_alone_make_an_update() -> None:
    [message] = parsed(Commands(standbys_added=(A, B), standbys_removed=(B,)), STANDING_BY)
    update = message.assignment
    assert [(entry.topic, list(entry.partitions)) for entry in update.standbys_added] == [("orders", [0, 7])]
    assert [(entry.topic, list(entry.partitions)) for entry in update.standbys_removed] == [("orders", [7])]
    assert not update.full


# --- bounds ------------------------------------------------------------------------------------------------------


def many(count: int, topic: str = "orders") -> tuple[tuple[TopicPartition, int], ...]:
    return tuple((TopicPartition(topic, number), 1000 + number) for number in range(count))


@pytest.mark.parametrize("dialect", [PLAIN, PACKED])
def test_a_long_update_is_cut_and_says_that_more_follows(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_encoding, "MAX_MESSAGE", 40_000)
    commands = Commands(full=True, assigned=many(15_000), unassigned=many(6_000, "gone"), generation=5)
    sent = messages(commands, dialect, Opening("s", 0.001, False))
    assert len(sent) >= 3
    assert max(map(len, sent)) < 80_000
    updates = [message.assignment for message in parsed(commands, dialect, Opening("s", 0.001, False))]
    assert [update.full for update in updates] == [True] + [False] * (len(updates) - 1)
    assert [update.more for update in updates] == [True] * (len(updates) - 1) + [False]
    assert [update.session for update in updates] == ["s"] + [""] * (len(updates) - 1)
    assert {update.generation for update in updates} == {5}
    assert _collected(updates, "assigned") == [(tp.partition, epoch) for tp, epoch in commands.assigned]
    assert _collected(updates, "unassigned") == [(tp.partition, epoch) for tp, epoch in commands.unassigned]


def test_a_long_list_of_standbys_is_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_encoding, "MAX_MESSAGE", 20_000)
    places = tuple(tp for tp, _ in many(30_000))
    commands = Commands(full=True, assigned=many(3_000, "mine"), standbys_added=places, standbys_removed=places[:9])
    updates = [message.assignment for message in parsed(commands, STANDING_BY, Opening("s", 0.001, False))]
    assert len(updates) > 3
    assert [update.more for update in updates] == [True] * (len(updates) - 1) + [False]
    told = [number for update in updates for entry in update.standbys_added for number in entry.partitions]
    assert told == [place.partition for place in places]


def _collected(updates: list[Any], field: str) -> list[tuple[int, int]]:
    listed = [(one.partition, one.epoch) for update in updates for one in getattr(update, field)]
    packed = [
        pair
        for update in updates
        for entry in getattr(update, f"{field}_packed")
        for pair in zip(entry.partitions, entry.epochs, strict=True)
    ]
    return listed + packed


def test_a_long_batch_is_cut_and_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_encoding, "MAX_MESSAGE", 30_000)
    warms = tuple(Warm(tp, f"h{tp.partition}", "old", Cause.JOINED) for tp, _ in many(2_000))
    releases = tuple(Release(tp, epoch, "h", "new", Cause.LEFT) for tp, epoch in many(2_000))
    commands = Commands(assigned=many(20_000), warms=warms, releases=releases)
    batches = [message.batch for message in parsed(commands, PACKED)]
    assert len(batches) > 3
    assert len(_collected([batch.assignment for batch in batches], "assigned")) == 20_000
    assert [warm.handoff_id for batch in batches for warm in batch.warms] == [warm.handoff_id for warm in warms]
    assert [one.partition.epoch for batch in batches for one in batch.releases] == [one.epoch for one in releases]
    seen_release = False
    for batch in batches:
        assert not (seen_release and batch.warms)
        seen_release = seen_release or bool(batch.releases)


@pytest.mark.parametrize("dialect", [PLAIN, PACKED])
def test_ten_thousand_partitions_are_encoded_in_short_pieces(dialect: Dialect) -> None:
    warms = tuple(Warm(tp, "0123456789abcdef", "old-owner", Cause.JOINED) for tp, _ in many(10_000))
    commands = Commands(full=True, assigned=many(10_000), warms=warms)
    with counted_calls() as calls:
        pieces = [calls.lap() for _ in encode(commands, dialect)]
    # Some 2 ms of work.
    assert max(pieces) < 20_000 < sum(pieces) / 5
