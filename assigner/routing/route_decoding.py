"""Decodes the messages of a router's stream: the inverse of `server.services.route_encoding`.

A message may have tens of thousands of rows. It is decoded in parts, between which the caller may yield to other tasks:
each is a `TableChanges`, and all but the last of a message say that there is more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.model.routes import PublishedLoads, Route, RoutingOpening, TableChanges

PART = 1_000
"""Rows in one part."""

_Row = tuple[TopicPartition, Route]
_NOT_MOVING = "", False


def decode(message: Any) -> Iterator[TableChanges]:
    """Decode a RoutingUpdate of the C runtime. Raises `InvalidInput` if it contradicts itself."""
    changes = TableChanges(
        opening=_opening(message),
        full=message.full,
        more=True,
        revision=message.revision,
        generation=message.generation,
        unowned=tuple(TopicPartition(many.topic, one) for many in message.unowned for one in many.partitions),
        topics=tuple((one.topic, one.partitions) for one in message.topics),
        loads=tuple(_loads(one) for one in message.loads),
        loads_valid_for=message.loads_valid_ms / 1000,
    )
    for part in _parts(_rows(message)):
        yield _with(changes, part, more=True)
        # What is not a row was in the first part.
        changes = TableChanges(more=True, revision=message.revision, generation=message.generation)
    yield _with(changes, (), more=message.more)


def _with(changes: TableChanges, rows: tuple[_Row, ...], *, more: bool) -> TableChanges:
    return TableChanges(
        opening=changes.opening,
        full=changes.full,
        more=more,
        revision=changes.revision,
        generation=changes.generation,
        routes=rows,
        unowned=changes.unowned,
        topics=changes.topics,
        loads=changes.loads,
        loads_valid_for=changes.loads_valid_for,
    )


def _opening(message: Any) -> RoutingOpening | None:
    if not (message.ttl_ms or message.incarnation):
        return None
    return RoutingOpening(message.ttl_ms / 1000, message.incarnation)


def _parts(rows: Iterator[_Row]) -> Iterator[tuple[_Row, ...]]:
    part: list[_Row] = []
    for row in rows:
        part.append(row)
        if len(part) >= PART:
            yield tuple(part)
            part = []
    if part:
        yield tuple(part)


def _rows(message: Any) -> Iterator[_Row]:
    owners = [(one.name, one.address) for one in message.owners]
    moving = {(one.topic, one.partition): (one.handoff_id, one.frozen) for one in message.handoffs}
    for packed in message.routes:
        topic, base = packed.topic, packed.base_epoch
        numbers, epochs = packed.owners, packed.epochs
        partitions: Sequence[int] = packed.partitions or range(packed.first, packed.first + len(numbers))
        if not len(numbers) == len(epochs) == len(partitions):
            raise InvalidInput(
                f"the service sent {len(partitions)} partitions of {topic!r} with {len(numbers)} owners and "
                f"{len(epochs)} epochs"
            )
        for partition, number, epoch in zip(partitions, numbers, epochs, strict=True):
            if number >= len(owners):
                raise InvalidInput(f"the service sent owner {number} of {topic}/{partition}, of {len(owners)} owners")
            name, address = owners[number]
            handoff_id, frozen = moving.get((topic, partition), _NOT_MOVING) if moving else _NOT_MOVING
            yield TopicPartition(topic, partition), Route(name, address, base + epoch, handoff_id, frozen)


def _loads(told: Any) -> PublishedLoads:
    return PublishedLoads(told.topic, tuple(told.partitions), tuple(told.loads))
