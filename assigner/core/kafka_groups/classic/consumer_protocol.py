"""Encodes and decodes what consumers hide in JoinGroup and SyncGroup: their subscription and their assignment.

A version, then the fields of that version, big endian. A version above 3 has fields that nobody knows yet after those
of version 3, and so has a prefix that can be read. These bytes come from strangers: anything that is not well formed,
or counts more than its bytes can hold, raises `Unreadable`, and nothing else is ever raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import msgspec

CONSUMER = "consumer"
"""The protocol type of consumers; others, such as Kafka Connect's, mean something else by their metadata."""
LATEST = 3

Partitions = Mapping[str, Sequence[int]]
"""Partition numbers by topic."""


class Unreadable(ValueError):
    """The bytes are not a subscription or an assignment."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The partitions that it has not given up; from version 1 on, and of cooperative members only."""
    generation: int = -1
    """Of the assignment that it owns them by; from version 2 on."""
    rack: str | None = None
    """From version 3 on."""
    version: int = LATEST


class ConsumerAssignment(msgspec.Struct, frozen=True, kw_only=True):
    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    user_data: bytes | None = None
    version: int = LATEST


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of these subscriptions; None if one can't be read. Reads the part that all versions share."""
    try:
        return frozenset(topic for one in metadata for topic in _Reader(one).version_and_topics()[1])
    except Unreadable:
        return None


def decode_subscription(data: bytes) -> Subscription:
    reader = _Reader(data)
    version, topics = reader.version_and_topics()
    user_data = reader.nullable_bytes()
    owned = reader.partitions() if version >= 1 else ()
    generation = reader.int32() if version >= 2 else -1
    rack = reader.nullable_string() if version >= 3 else None
    return Subscription(
        topics=topics, user_data=user_data, owned=owned, generation=generation, rack=rack, version=version
    )


def decode_assignment(data: bytes) -> ConsumerAssignment:
    reader = _Reader(data)
    version = reader.version()
    partitions = reader.partitions()
    return ConsumerAssignment(partitions=partitions, user_data=reader.nullable_bytes(), version=version)


def encode_subscription(subscription: Subscription) -> bytes:
    version = subscription.version
    parts = [struct.pack(">hi", version, len(subscription.topics)), *map(_string, subscription.topics)]
    parts.append(_nullable_bytes(subscription.user_data))
    if version >= 1:
        parts.append(_partitions(subscription.owned))
    if version >= 2:
        parts.append(struct.pack(">i", subscription.generation))
    if version >= 3:
        parts.append(_string(subscription.rack) if subscription.rack is not None else struct.pack(">h", -1))
    return b"".join(parts)


def encode_assignment(assignment: ConsumerAssignment) -> bytes:
    version = struct.pack(">h", assignment.version)
    return b"".join((version, _partitions(assignment.partitions), _nullable_bytes(assignment.user_data)))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _nullable_bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _partitions(partitions: Sequence[tuple[str, Sequence[int]]]) -> bytes:
    parts = [struct.pack(">i", len(partitions))]
    for topic, numbers in partitions:
        parts += (_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)


class _Reader:
    """Reads fields one after the other. Every count is checked against what is left before anything is made of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise Unreadable(f"a field of {size} bytes begins at byte {begin} of {len(self._data)}")
        return self._data[begin : self._at]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise Unreadable(f"version {version} does not exist")
        return version

    def version_and_topics(self) -> tuple[int, tuple[str, ...]]:
        version = self.version()
        return version, tuple(self.string() for _ in range(self.count(2)))

    def count(self, least: int) -> int:
        """The length of a list whose elements have at least this many bytes."""
        count = self.int32()
        if count < 0 or count * least > len(self._data) - self._at:
            raise Unreadable(f"a list of {count} elements begins at byte {self._at} of {len(self._data)}")
        return count

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise Unreadable(f"the text before byte {self._at} is missing")
        return text

    def nullable_string(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise Unreadable(f"the text before byte {self._at} is not UTF-8") from error

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self.take(size)

    def partitions(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((self.string(), self._numbers()) for _ in range(self.count(6)))

    def _numbers(self) -> tuple[int, ...]:
        count = self.count(4)
        return struct.unpack(f">{count}i", self.take(4 * count))
