"""Commands as ready bytes of `AssignmentCommand` messages.

The generated classes take 20 us per partition, which would stop the loop for seconds when a large group changes. Here
a partition costs about 1 us, and the work is cut into pieces: a `None` in a result is no message but a place where
others may run. What comes out is byte for byte what a protobuf library would write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import TypeVar

import msgspec

from assigner.model.commands import CancelWarm, Commands, Opening, Release, Warm
from assigner.model.keys import TopicPartition

MAX_MESSAGE = 1024 * 1024
"""No message is longer, up to one chunk. grpcio's clients refuse 4 MiB."""
_CHUNK = 500
_GROUPED = 10 * _CHUNK
"""Partitions that are sorted by topic at a time."""

Owned = tuple[TopicPartition, int]
T = TypeVar("T")


class Dialect(msgspec.Struct, frozen=True):
    """What a client understands."""

    packed: bool = False
    cancels: bool = False
    standbys: bool = False


def encode(commands: Commands, dialect: Dialect) -> Iterator[bytes | None]:
    """The messages in the order they are to be sent, with pauses between."""
    opening = commands.opening
    cancels = commands.cancels if dialect.cancels else ()
    others = bool(cancels or commands.warms or commands.releases)
    # The first message of a stream is an AssignmentUpdate, not a batch, whatever the client asked for.
    batched = dialect.packed and others and opening is None
    # What it says of a partition and what the batch after it says belong together: a release that is pending must not
    # look like a loss.
    continued = dialect.packed and others and not batched
    update: bytes | None = None
    for part in _updates(commands, dialect, opening, continued=continued):
        if part is None:
            yield None
        elif not batched:
            yield _field(b"\x0a", part)
        else:
            if update is not None:
                yield _field(b"\x5a", _field(b"\x0a", update))
            update = part
    if others:
        numbered = _batch_tags if dialect.packed else _command_tags
        fields = _chunks(_others(cancels, commands.warms, commands.releases, numbered))
        yield from _batches(update, fields) if dialect.packed else _singles(fields)


# --- assignment updates ------------------------------------------------------------------------------------------


def _updates(
    commands: Commands, dialect: Dialect, opening: Opening | None, *, continued: bool
) -> Iterator[bytes | None]:
    """The bodies of the update's parts. A change that is none of ownership has no update: a client of the upstream
    assigner would assign everything anew."""
    standbys = dialect.standbys and (commands.standbys_added or commands.standbys_removed)
    if not (opening or commands.full or commands.assigned or commands.unassigned or standbys):
        return
    head = _scalars(commands, opening)
    tail = _text(b"\xa2\x01", opening.incarnation) if opening else b""
    held, copies = list[bytes](), list[bytes]()
    size = 0
    for into, fragment in _parts(commands, dialect, held, copies):
        if size and size + len(fragment) > MAX_MESSAGE:
            yield _update(held, copies, head, dialect, more=True) + tail
            held.clear()
            copies.clear()
            size, head, tail = 0, _scalars(msgspec.structs.replace(commands, full=False), None), b""
        into.append(fragment)
        size += len(fragment)
        yield None
    yield _update(held, copies, head, dialect, more=continued) + tail


def _parts(
    commands: Commands, dialect: Dialect, held: list[bytes], copies: list[bytes]
) -> Iterator[tuple[list[bytes], bytes]]:
    """Pieces of the update, each with where it belongs: to what is owned or to what is stood by for."""
    for part in _packed_parts(commands) if dialect.packed else _listed_parts(commands):
        yield held, part
    for part in _standby_parts(commands) if dialect.standbys else ():
        yield copies, part


def _update(owned: list[bytes], copies: list[bytes], head: bytes, dialect: Dialect, *, more: bool) -> bytes:
    """In the order of the fields' numbers."""
    listed = b"".join(owned)
    body = head + listed if dialect.packed else listed + head
    return body + (b"\x88\x01\x01" if more else b"") + b"".join(copies)


def _scalars(commands: Commands, opening: Opening | None) -> bytes:
    fields = [b"\x50\x01"] if commands.full else []
    if opening and opening.session:
        fields.append(_text(b"\x5a", opening.session))
    if opening and opening.ttl:
        fields.append(b"\x60" + _varint(round(opening.ttl * 1000)))
    if commands.generation:
        fields.append(b"\x68" + _varint(commands.generation))
    if opening and opening.exclusive:
        fields.append(b"\x70\x01")
    return b"".join(fields)


def _listed_parts(commands: Commands) -> Iterator[bytes]:
    for tag, owned in ((b"\x0a", commands.assigned), (b"\x12", commands.unassigned)):
        for chunk in _chunks(owned):
            yield b"".join([_field(tag, _partition(tp, epoch)) for tp, epoch in chunk])


def _packed_parts(commands: Commands) -> Iterator[bytes]:
    for tag, owned in ((b"\x7a", commands.assigned), (b"\x82\x01", commands.unassigned)):
        for group in _chunks(owned, _GROUPED):
            by_topic: dict[str, list[Owned]] = {}
            for one in group:
                by_topic.setdefault(one[0].topic, []).append(one)
            for topic, members in by_topic.items():
                yield _field(tag, _packed(topic, members))


def _standby_parts(commands: Commands) -> Iterator[bytes]:
    for tag, copies in ((b"\x92\x01", commands.standbys_added), (b"\x9a\x01", commands.standbys_removed)):
        for group in _chunks(copies, _GROUPED):
            by_topic: dict[str, list[bytes]] = {}
            for tp in group:
                by_topic.setdefault(tp.topic, []).append(_varint(tp.partition))
            for topic, numbers in by_topic.items():
                yield _field(tag, _text(b"\x0a", topic) + _field(b"\x12", b"".join(numbers)))


def _packed(topic: str, members: list[Owned]) -> bytes:
    partitions = b"".join([_varint(tp.partition) for tp, _ in members])
    epochs = b"".join([_varint(epoch) for _, epoch in members])
    return _text(b"\x0a", topic) + _field(b"\x12", partitions) + _field(b"\x1a", epochs)


# --- warms, releases, cancels --------------------------------------------------------------------------------------

_command_tags = (b"\x52", b"\x12", b"\x1a")
"""Of cancel, warm and release in AssignmentCommand; below, in CommandBatch."""
_batch_tags = (b"\x12", b"\x1a", b"\x22")


def _others(
    cancels: Iterable[CancelWarm],
    warms: Iterable[Warm],
    releases: Iterable[Release],
    tags: tuple[bytes, bytes, bytes],
) -> Iterator[bytes]:
    for cancel in cancels:
        yield _field(tags[0], _field(b"\x0a", _partition(cancel.tp, 0)) + _text(b"\x12", cancel.handoff_id))
    for warm in warms:
        yield _field(tags[1], _warm(warm))
    for release in releases:
        yield _field(tags[2], _release(release))


def _warm(warm: Warm) -> bytes:
    return b"".join(
        (
            _field(b"\x0a", _partition(warm.tp, 0)),
            _text(b"\x12", warm.current_owner),
            _text(b"\x52", warm.handoff_id),
            _text(b"\x5a", warm.cause),
            b"\x60\x01" if warm.standby else b"",
        )
    )


def _release(release: Release) -> bytes:
    return b"".join(
        (
            _field(b"\x0a", _partition(release.tp, release.epoch)),
            _text(b"\x12", release.new_owner),
            _text(b"\x52", release.handoff_id),
            _text(b"\x5a", release.cause),
            b"\x60\x01" if release.standby else b"",
        )
    )


def _singles(chunks: Iterable[Sequence[bytes]]) -> Iterator[bytes | None]:
    for chunk in chunks:
        yield from chunk
        yield None


def _batches(update: bytes | None, chunks: Iterable[Sequence[bytes]]) -> Iterator[bytes | None]:
    held = [] if update is None else [_field(b"\x0a", update)]
    size = sum(map(len, held))
    for chunk in chunks:
        joined = b"".join(chunk)
        if size and size + len(joined) > MAX_MESSAGE:
            yield _field(b"\x5a", b"".join(held))
            held, size = [], 0
        held.append(joined)
        size += len(joined)
        yield None
    yield _field(b"\x5a", b"".join(held))


# --- answers -------------------------------------------------------------------------------------------------------


def encode_refusals(refusals: Iterable[tuple[TopicPartition, str]]) -> bytes:
    """A PartitionReadyResponse or a PartitionReleasedResponse: they are alike."""
    return b"".join(
        _field(b"\x52", _field(b"\x0a", _partition(tp, 0)) + _text(b"\x12", reason)) for tp, reason in refusals
    )


# --- protobuf's alphabet -------------------------------------------------------------------------------------------


def _long_varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


_SHORT = [_long_varint(value) for value in range(1 << 14)]


def _varint(value: int) -> bytes:
    return _SHORT[value] if value < 1 << 14 else _long_varint(value)


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode()) if text else b""


@lru_cache(maxsize=65_536)
def _place(tp: TopicPartition) -> bytes:
    return _text(b"\x0a", tp.topic) + (b"\x10" + _varint(tp.partition) if tp.partition else b"")


def _partition(tp: TopicPartition, epoch: int) -> bytes:
    return _place(tp) + b"\x50" + _varint(epoch) if epoch else _place(tp)


def _chunks(items: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
