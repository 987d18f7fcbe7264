"""Offsets in requests, checked and turned into values of `assigner.api`; each refusal names the field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from assigner.api import OffsetCommit, WantedOffsets
from assigner.errors import InvalidInput, LimitReached
from assigner.keys import TopicPartition
from assigner.names import check_topic
from assigner.printable import obeyed_by_terminals
from assigner.proto.kafka_assigner import v1
from assigner.server.requests import check_partition

MAX_PARTITIONS = 10_000
"""In one call."""
MAX_METADATA = 4_096
"""Bytes with one offset; as many as Kafka takes unless told otherwise."""
NONE = -1
_V = TypeVar("_V", int, str)


def commits(request: v1.CommitOffsetsRequest) -> tuple[OffsetCommit, ...]:
    _check_number(request.topics)
    found: dict[TopicPartition, OffsetCommit] = {}
    for number, told in enumerate(request.topics):
        for commit in _commits(f"topics[{number}]", told):
            if commit.tp in found:
                raise InvalidInput(f"topics[{number}] names partition {commit.tp} again; name each once")
            found[commit.tp] = commit
    if not found:
        raise InvalidInput("topics is empty; name at least one partition with its epoch and offset")
    return tuple(found.values())


def _commits(field: str, told: v1.TopicOffsets) -> Iterable[OffsetCommit]:
    topic, count = check_topic(told.topic), len(told.partitions)
    _check_parallel(field, count, "epochs", told.epochs)
    _check_parallel(field, count, "offsets", told.offsets)
    leader_epochs = _optional(field, count, "leader_epochs", told.leader_epochs, NONE)
    texts = _optional(field, count, "metadata", told.metadata, "")
    for position, partition in enumerate(told.partitions):
        yield OffsetCommit(
            TopicPartition(topic, check_partition(partition)),
            told.epochs[position],
            _at_least(0, f"{field}.offsets[{position}]", told.offsets[position]),
            _at_least(NONE, f"{field}.leader_epochs[{position}]", leader_epochs[position]),
            _metadata(f"{field}.metadata[{position}]", texts[position]),
        )


def wanted(request: v1.FetchOffsetsRequest) -> WantedOffsets:
    _check_number(request.topics)
    named = [told for told in request.topics if told.partitions]
    if named and len(named) < len(request.topics):
        raise InvalidInput("topics has some with partitions and some without; ask for one kind at a time")
    after = _partition("after", request.after) if request.after is not None else None
    if named:
        if after is not None:
            raise InvalidInput("after does not go with named partitions; name only those that are still wanted")
        pairs = ((check_topic(told.topic), partition) for told in named for partition in told.partitions)
        partitions = dict.fromkeys(TopicPartition(topic, check_partition(partition)) for topic, partition in pairs)
        return WantedOffsets(tuple(partitions))
    topics = tuple(dict.fromkeys(check_topic(told.topic) for told in request.topics))
    if after is not None and topics and after.topic not in topics:
        raise InvalidInput(f"after names topic {after.topic!r}, which is not among the topics asked for")
    return WantedOffsets(topics=topics, after=after)


def new_offsets(request: v1.SetOffsetsRequest) -> dict[TopicPartition, int | None]:
    """None: forget what was committed."""
    _check_number(request.topics)
    found: dict[TopicPartition, int | None] = {}
    for number, told in enumerate(request.topics):
        field, topic = f"topics[{number}]", check_topic(told.topic)
        _check_parallel(field, len(told.partitions), "offsets", told.offsets)
        for position, (partition, offset) in enumerate(zip(told.partitions, told.offsets, strict=True)):
            tp = TopicPartition(topic, check_partition(partition))
            if tp in found:
                raise InvalidInput(f"{field} names partition {tp} again; name each once")
            checked = _at_least(NONE, f"{field}.offsets[{position}]", offset)
            found[tp] = None if checked == NONE else checked
    return found


def _check_number(topics: Sequence[v1.TopicOffsets | v1.TopicPartitions | v1.NewOffsets]) -> None:
    number = sum(len(told.partitions) for told in topics)
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


def _partition(field: str, told: v1.TopicPartition) -> TopicPartition:
    return TopicPartition(check_topic(told.topic), check_partition(told.partition))
