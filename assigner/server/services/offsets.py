"""Serves the calls that commit and fetch offsets, and checks those that set them.

An error about a request names the field. Responses are built by protobuf's C runtime, in steps that let other calls
run in between, because one may hold ten thousand partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, TypeVar, cast

import anyio.lowlevel

from assigner.api import CommitRefusal, FoundOffsets, NewOffset, OffsetCommit, Offsets, RefusedCommit, WantedOffsets
from assigner.errors import InvalidInput, LimitReached
from assigner.logs.printable import obeyed_by_terminals
from assigner.model.keys import TopicPartition
from assigner.model.names import check_topic
from assigner.model.records import Offset
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class
from assigner.server.services.requests import Requests, check_partition

MAX_PARTITIONS = 10_000
"""Partitions in one call."""
MAX_METADATA = 4_096
"""Bytes of metadata with one offset; Kafka's default."""
NONE = -1
"""On the wire: no offset, or no leader epoch."""
_STEP = 500
"""Partitions or refusals that are encoded before other calls may run."""
_ABSENT = Offset(offset=NONE)
_REFUSALS = {
    CommitRefusal.FENCED: v1.CommitRefusal.FENCED,
    CommitRefusal.UNKNOWN_PARTITION: v1.CommitRefusal.UNKNOWN_PARTITION,
    CommitRefusal.FAILED: v1.CommitRefusal.FAILED,
}
FoundOffset = tuple[TopicPartition, Offset | None]
_V = TypeVar("_V", int, str)


class OffsetCalls:
    """Commits and fetches offsets on behalf of consumers."""

    def __init__(self, offsets: Offsets, requests: Requests) -> None:
        self._offsets = offsets
        self._requests = requests

    async def commit(self, request: v1.CommitOffsetsRequest) -> bytes:
        requested = commits(request)
        who = self._requests.caller(request)
        refused = await self._offsets.commit(*who, requested, principal=self._requests.principal)
        response = message_class("CommitOffsetsResponse")(committed=len(requested) - len(refused))
        for part in _in_parts(_by_reason(refused)):
            for one in part:
                response.refused.add(**one)
            await anyio.lowlevel.checkpoint()
        return cast(bytes, response.SerializeToString())

    async def fetch(self, request: v1.FetchOffsetsRequest) -> bytes:
        found = await self._offsets.fetch(self._requests.group(request.group), wanted(request))
        return await _encoded(found)


# --- requests ------------------------------------------------------------------------------------------------------


def commits(request: v1.CommitOffsetsRequest) -> tuple[OffsetCommit, ...]:
    """Read the commits of a request, one per partition."""
    _check_number(request.topics)
    found: dict[TopicPartition, OffsetCommit] = {}
    for number, entry in enumerate(request.topics):
        for commit in _commits(f"topics[{number}]", entry):
            if commit.tp in found:
                raise InvalidInput(f"topics[{number}] names partition {commit.tp} again; name each once")
            found[commit.tp] = commit
    if not found:
        raise InvalidInput("topics is empty; name at least one partition with its epoch and offset")
    return tuple(found.values())


def _commits(field: str, entry: v1.TopicOffsets) -> Iterable[OffsetCommit]:
    topic, count = check_topic(entry.topic), len(entry.partitions)
    _check_parallel(field, count, "epochs", entry.epochs)
    _check_parallel(field, count, "offsets", entry.offsets)
    leader_epochs = _optional(field, count, "leader_epochs", entry.leader_epochs, NONE)
    texts = _optional(field, count, "metadata", entry.metadata, "")
    for position, partition in enumerate(entry.partitions):
        yield OffsetCommit(
            TopicPartition(topic, check_partition(partition)),
            entry.epochs[position],
            _at_least(0, f"{field}.offsets[{position}]", entry.offsets[position]),
            _at_least(NONE, f"{field}.leader_epochs[{position}]", leader_epochs[position]),
            _metadata(f"{field}.metadata[{position}]", texts[position]),
        )


def wanted(request: v1.FetchOffsetsRequest) -> WantedOffsets:
    """Read which partitions a request names, or which topics and page."""
    _check_number(request.topics)
    named = [entry for entry in request.topics if entry.partitions]
    if named and len(named) < len(request.topics):
        raise InvalidInput("topics has some with partitions and some without; ask for one kind at a time")
    after = _partition("after", request.after) if request.after is not None else None
    if named:
        if after is not None:
            raise InvalidInput("after does not go with named partitions; name only those that are still wanted")
        pairs = ((check_topic(entry.topic), partition) for entry in named for partition in entry.partitions)
        partitions = dict.fromkeys(TopicPartition(topic, check_partition(partition)) for topic, partition in pairs)
        return WantedOffsets(tuple(partitions))
    topics = tuple(dict.fromkeys(check_topic(entry.topic) for entry in request.topics))
    if after is not None and topics and after.topic not in topics:
        raise InvalidInput(f"after names topic {after.topic!r}, which is not among the topics asked for")
    return WantedOffsets(topics=topics, after=after)


def new_offsets(request: v1.SetOffsetsRequest) -> dict[TopicPartition, NewOffset | None]:
    """Read the offsets that an operator sets, by partition; None deletes the committed offset."""
    _check_number(request.topics)
    found: dict[TopicPartition, NewOffset | None] = {}
    for number, entry in enumerate(request.topics):
        for tp, new in _new_offsets(f"topics[{number}]", entry):
            if tp in found:
                raise InvalidInput(f"topics[{number}] names partition {tp} again; name each once")
            found[tp] = new
    return found


def _new_offsets(field: str, entry: v1.NewOffsets) -> Iterable[tuple[TopicPartition, NewOffset | None]]:
    topic, count = check_topic(entry.topic), len(entry.partitions)
    _check_parallel(field, count, "offsets", entry.offsets)
    leader_epochs = _optional(field, count, "leader_epochs", entry.leader_epochs, NONE)
    texts = _optional(field, count, "metadata", entry.metadata, "")
    for position, partition in enumerate(entry.partitions):
        new = NewOffset(
            _at_least(NONE, f"{field}.offsets[{position}]", entry.offsets[position]),
            _at_least(NONE, f"{field}.leader_epochs[{position}]", leader_epochs[position]),
            _metadata(f"{field}.metadata[{position}]", texts[position]),
        )
        yield TopicPartition(topic, check_partition(partition)), None if new.offset == NONE else new


def _check_number(topics: Sequence[v1.TopicOffsets | v1.TopicPartitions | v1.NewOffsets]) -> None:
    number = sum(len(entry.partitions) for entry in topics)
    if number > MAX_PARTITIONS:
        raise LimitReached(
            f"the call names {number} partitions; at most {MAX_PARTITIONS} fit in one: make several calls"
        )


def _check_parallel(field: str, count: int, name: str, values: Sequence[object]) -> None:
    if len(values) != count:
        raise InvalidInput(f"{field} has {count} partitions and {len(values)} {name}; give one each")


def _optional(field: str, count: int, name: str, values: Sequence[_V], missing: _V) -> Sequence[_V]:
    if not values:
        return [missing] * count
    _check_parallel(field, count, name, values)
    return values


def _at_least(least: int, field: str, value: int) -> int:
    if value < least:
        raise InvalidInput(f"{field} is {value}; it must be a number from {least} up")
    return value


def _metadata(field: str, text: str) -> str:
    size = len(text.encode())
    if size > MAX_METADATA:
        raise InvalidInput(f"{field} is {size} bytes long; at most {MAX_METADATA} are kept: shorten it")
    obeyed = obeyed_by_terminals(text)
    if obeyed:
        raise InvalidInput(f"{field} holds {obeyed}, which a terminal would act upon; encode it, as base64 for example")
    return text


def _partition(field: str, entry: v1.TopicPartition) -> TopicPartition:
    return TopicPartition(check_topic(entry.topic), check_partition(entry.partition))


# --- responses -----------------------------------------------------------------------------------------------------


def _by_reason(refused: Iterable[RefusedCommit]) -> Iterator[dict[str, Any]]:
    """Group refusals of the same topic, reason and owner into one message, so that ten thousand partitions lost to one
    owner make a short reply."""
    groups: dict[tuple[Any, ...], list[RefusedCommit]] = {}
    for one in refused:
        groups.setdefault((one.tp.topic, one.why, one.owner, one.reason), []).append(one)
    for (topic, why, owner, reason), members in groups.items():
        yield {
            "topic": topic,
            "why": int(_REFUSALS[why]),
            "partitions": [one.tp.partition for one in members],
            "epochs": [one.epoch for one in members],
            "owner": owner,
            "reason": reason,
        }


async def _encoded(found: FoundOffsets) -> bytes:
    response = message_class("FetchOffsetsResponse")()
    for part in _in_parts(found.offsets):
        for topic, members in groupby(part, lambda one: one[0].topic):
            response.topics.add(**_topic_fields(topic, list(members)))
        await anyio.lowlevel.checkpoint()
    for tp in found.unreadable:
        response.unreadable.add(topic=tp.topic, partition=tp.partition)
    if found.last is not None:
        response.last.topic, response.last.partition = found.last.topic, found.last.partition
    return cast(bytes, response.SerializeToString())


def _topic_fields(topic: str, members: Sequence[FoundOffset]) -> dict[str, Any]:
    records = [record or _ABSENT for _, record in members]
    fields: dict[str, Any] = {
        "topic": topic,
        "partitions": [tp.partition for tp, _ in members],
        "epochs": [record.epoch for record in records],
        "offsets": [record.offset for record in records],
        "committed_at": [record.committed_at for record in records],
    }
    if any(record.leader_epoch != NONE for record in records):
        fields["leader_epochs"] = [record.leader_epoch for record in records]
    if any(record.metadata for record in records):
        fields["metadata"] = [record.metadata for record in records]
    return fields


def _in_parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(islice(rest, _STEP)):
        yield part
