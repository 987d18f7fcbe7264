"""Encodes routing tables and their changes as `RoutingUpdate` messages, by protobuf's C runtime.

A table may have a hundred thousand partitions, so rows are packed per topic: owners are numbers, epochs are written as
their distance to the lowest one, and partitions that follow each other are not listed. As in `assignment_encoding`, a
`None` in a result is not a message but a point at which the caller may yield to other tasks.

A message is not longer than 1 MiB, as long as names are those that registration accepts. The handoff of a partition is
in the same message as its row: a row without one is in no handoff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from assigner.model.keys import TopicPartition
from assigner.model.names import MAX_NAME_BYTES
from assigner.model.routes import PublishedLoads, Route, TableChanges
from assigner.proto.runtime import message_class

MAX_MESSAGE = 1024 * 1024
"""A message ends before the step that might make it longer. grpcio's clients refuse 4 MiB."""
_CHUNK = 500
"""Rows that are added in one step: with the longest names, they fit into a message."""
_GROUPED = 10 * _CHUNK
"""Partitions that are grouped by topic in one step."""
_ROW = 20
"""The maximum of bytes that a row's partition, owner and epoch take."""
_LOAD = 13
"""The maximum of bytes that a partition and its load take."""
_TAGS = 48
"""The maximum of bytes that the other tags, lengths, flags and numbers of an entry take, or of a message."""

Rows = list[tuple[int, Route]]
"""Partitions of one topic, in their order."""
T = TypeVar("T")

_update = message_class("RoutingUpdate")


def encode(changes: TableChanges) -> Iterator[bytes | None]:
    """Encode changes for a router: messages in the order of sending, and yield points. There is at least one message,
    because the revision is news too."""
    draft = _Draft(changes)
    draft.message.full = changes.full
    if changes.opening is not None:
        draft.message.incarnation = changes.opening.incarnation
        draft.message.ttl_ms = round(changes.opening.ttl * 1000)
    for bound, add in _steps(changes):
        if draft.size + bound > MAX_MESSAGE and not draft.empty:
            draft.message.more = True
            yield draft.message.SerializeToString()
            draft = _Draft(changes)
        draft.size += add(draft)
        draft.empty = False
        yield None
    draft.message.more = changes.more
    yield draft.message.SerializeToString()


class _Draft:
    """A message that is being filled."""

    def __init__(self, changes: TableChanges) -> None:
        self.message = _update(revision=changes.revision, generation=changes.generation)
        if changes.loads_valid_for:
            self.message.loads_valid_ms = round(changes.loads_valid_for * 1000)
        self.size = _TAGS + (len(changes.opening.incarnation) if changes.opening else 0)
        self.empty = True
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, route: Route) -> int:
        """The index of the row's owner in the message, which lists it from its first row on."""
        owner = route.owner, route.address
        number = self._numbers.get(owner)
        if number is None:
            number = self._numbers[owner] = len(self._numbers)
            self.size += _owner_bytes(route)
            self.message.owners.add(name=route.owner, address=_address(route))
        return number


Step = tuple[int, Callable[[_Draft], int]]
"""The most bytes that a step adds to a message; and the step, which returns how many they are, without new owners."""


def _steps(changes: TableChanges) -> Iterator[Step]:
    for topics in _chunks(changes.topics, _CHUNK):
        yield _topics_step(topics)
    for topic, partitions in _unowned_by_topic(changes.unowned):
        yield _unowned_step(topic, partitions)
    for topic, rows in _rows_by_topic(changes.routes):
        yield _rows_step(topic, rows)
    for told in changes.loads:
        for first in range(0, len(told.partitions), _GROUPED):
            yield _loads_step(told, slice(first, first + _GROUPED))


# --- rows ----------------------------------------------------------------------------------------------------------


def _rows_by_topic(routes: Iterable[tuple[TopicPartition, Route]]) -> Iterator[tuple[str, Rows]]:
    for group in _chunks(routes, _GROUPED):
        by_topic: dict[str, dict[int, Route]] = {}
        for tp, route in group:
            by_topic.setdefault(tp.topic, {})[tp.partition] = route
        for topic, found in by_topic.items():
            rows = [(partition, found[partition]) for partition in sorted(found)]
            for first in range(0, len(rows), _CHUNK):
                yield topic, rows[first : first + _CHUNK]


def _rows_step(topic: str, rows: Rows) -> Step:
    moving = [(partition, route) for partition, route in rows if route.handoff_id or route.frozen]
    for_handoffs = sum([_TAGS + len(topic) + _length(route.handoff_id) for _, route in moving])
    owners = {(route.owner, route.address): route for _, route in rows}
    bound = _TAGS + len(topic) + _ROW * len(rows) + for_handoffs + sum(map(_owner_bytes, owners.values()))

    def add(draft: _Draft) -> int:
        first, last = rows[0][0], rows[-1][0]
        base = min([route.epoch for _, route in rows])
        values = {
            "topic": topic,
            "owners": [draft.number(route) for _, route in rows],
            "base_epoch": base,
            "epochs": [route.epoch - base for _, route in rows],
        }
        if last - first == len(rows) - 1:
            values["first"] = first
        else:
            values["partitions"] = [partition for partition, _ in rows]
        size: int = draft.message.routes.add(**values).ByteSize() + _TAGS
        for partition, route in moving:
            draft.message.handoffs.add(
                topic=topic, partition=partition, handoff_id=route.handoff_id, frozen=route.frozen
            )
        return size + for_handoffs

    return bound, add


def _owner_bytes(route: Route) -> int:
    return _TAGS + _length(route.owner) + _length(_address(route))


def _address(route: Route) -> str:
    """The owner's address; none if it is longer than what registration accepts, as only others' records can be."""
    return route.address if _length(route.address) <= MAX_NAME_BYTES else ""


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


# --- the rest ------------------------------------------------------------------------------------------------------


def _unowned_by_topic(unowned: Iterable[TopicPartition]) -> Iterator[tuple[str, list[int]]]:
    for group in _chunks(unowned, _GROUPED):
        by_topic: dict[str, list[int]] = {}
        for tp in group:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        yield from by_topic.items()


def _unowned_step(topic: str, partitions: Sequence[int]) -> Step:
    def add(draft: _Draft) -> int:
        size: int = draft.message.unowned.add(topic=topic, partitions=partitions).ByteSize()
        return size + _TAGS

    return _TAGS + len(topic) + _ROW * len(partitions), add


def _topics_step(topics: Sequence[tuple[str, int]]) -> Step:
    size = sum([_TAGS + len(topic) for topic, _ in topics])

    def add(draft: _Draft) -> int:
        for topic, count in topics:
            draft.message.topics.add(topic=topic, partitions=count)
        return size

    return size, add


def _loads_step(told: PublishedLoads, part: slice) -> Step:
    partitions, loads = told.partitions[part], told.loads[part]

    def add(draft: _Draft) -> int:
        size: int = draft.message.loads.add(topic=told.topic, partitions=partitions, loads=loads).ByteSize()
        return size + _TAGS

    return _TAGS + len(told.topic) + _LOAD * len(partitions), add


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
