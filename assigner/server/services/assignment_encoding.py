"""Encodes commands as `AssignmentCommand` messages, by protobuf's C runtime.

The generated classes take 20 us per partition, which would hold the event loop for seconds when a large group changes.
The C runtime takes half a microsecond, and the work is cut into short steps: a `None` in a result is not a message but
a point at which the caller may yield to other tasks.

Not promised: the exact length of a message. Sizes are added up from estimates, so that no message is measured twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from assigner.model.commands import CancelWarm, Commands, Release, Warm
from assigner.model.keys import TopicPartition
from assigner.proto.runtime import message_class

MAX_MESSAGE = 1024 * 1024
"""A message is sent when another step like the last would make it longer. grpcio's clients refuse 4 MiB."""
_CHUNK = 500
"""Partitions that are added in one step."""
_GROUPED = 10 * _CHUNK
"""Partitions that are grouped by topic in one step."""
_NUMBERS = 24
"""The maximum of bytes that a partition's tags, lengths, number and epoch take."""
_TAGS = 16
"""The maximum of bytes that a command's other tags, lengths and flags take."""

Owned = tuple[TopicPartition, int]
Step = Callable[[Any], int]
"""Adds something to a message; returns an estimate of the bytes that it takes there."""
Orders = tuple[str, Callable[[Any, Any], int], Iterable[Any]]
"""The field of one order in AssignmentCommand, what fills it, and the orders."""
T = TypeVar("T")

_command = message_class("AssignmentCommand")


class Dialect(msgspec.Struct, frozen=True):
    """The optional parts of the protocol that a client supports."""

    packed: bool = False
    cancels: bool = False
    standbys: bool = False


def encode(commands: Commands, dialect: Dialect) -> Iterator[bytes | None]:
    """Encode commands for a client: messages in the order of sending, and yield points."""
    cancels = commands.cancels if dialect.cancels else ()
    others = bool(cancels or commands.warms or commands.releases)
    # The first message of a stream is an AssignmentUpdate, not a batch, even if the client asked for batches.
    batched = dialect.packed and others and commands.opening is None
    # An update and the batch that follows it belong together: a release that is pending must not look like a loss.
    continued = dialect.packed and others and not batched
    last: Any = None
    for message in _updates(commands, dialect, batched=batched, continued=continued):
        if message is None:
            yield None
            continue
        if last is not None:
            yield last.SerializeToString()
        last = message
    if last is not None and not batched:
        yield last.SerializeToString()
        last = None
    if not others:
        return
    orders = (("cancel", _cancel, cancels), ("warm", _warm, commands.warms), ("release", _release, commands.releases))
    if dialect.packed:
        yield from _batches(_command() if last is None else last, orders)
    else:
        yield from _singles(orders)


# --- assignment updates ------------------------------------------------------------------------------------------


def _updates(commands: Commands, dialect: Dialect, *, batched: bool, continued: bool) -> Iterator[Any]:
    """Split the update into messages, with yield points. Without a change of ownership or standbys there is no update,
    because a client of the upstream assigner would take an empty one for a new assignment of everything."""
    standbys = dialect.standbys and (commands.standbys_added or commands.standbys_removed)
    if not (commands.opening or commands.full or commands.assigned or commands.unassigned or standbys):
        return
    message, update = _begin_update(commands.generation, batched=batched)
    update.full = commands.full
    if commands.opening is not None:
        update.session = commands.opening.session
        update.ttl_ms = round(commands.opening.ttl * 1000)
        update.exclusive = commands.opening.exclusive
        update.incarnation = commands.opening.incarnation
    size = step = 0
    for add in _update_steps(commands, dialect):
        if size and size + step > MAX_MESSAGE:
            update.more = True
            yield message
            message, update = _begin_update(commands.generation, batched=batched)
            size = 0
        step = add(update)
        size += step
        yield None
    update.more = continued
    yield message


def _begin_update(generation: int, *, batched: bool) -> tuple[Any, Any]:
    message = _command()
    update = message.batch.assignment if batched else message.assignment
    update.generation = generation
    return message, update


def _update_steps(commands: Commands, dialect: Dialect) -> Iterator[Step]:
    owned_steps = _packed_steps if dialect.packed else _listed_steps
    yield from owned_steps("assigned", commands.assigned)
    yield from owned_steps("unassigned", commands.unassigned)
    if dialect.standbys:
        yield from _standby_steps("standbys_added", commands.standbys_added)
        yield from _standby_steps("standbys_removed", commands.standbys_removed)


def _listed_steps(field: str, owned: Iterable[Owned]) -> Iterator[Step]:
    for chunk in _chunks(owned):
        yield partial(_list, field, chunk)


def _list(field: str, owned: Iterable[Owned], update: Any) -> int:
    add = getattr(update, field).add
    size = 0
    for tp, epoch in owned:
        _place(add(), tp, epoch)
        size += _NUMBERS + len(tp.topic)
    return size


def _packed_steps(field: str, owned: Iterable[Owned]) -> Iterator[Step]:
    for group in _chunks(owned, _GROUPED):
        by_topic: dict[str, tuple[list[int], list[int]]] = {}
        for tp, epoch in group:
            partitions, epochs = by_topic.setdefault(tp.topic, ([], []))
            partitions.append(tp.partition)
            epochs.append(epoch)
        for topic, (partitions, epochs) in by_topic.items():
            values = {"topic": topic, "partitions": partitions, "epochs": epochs}
            yield partial(_pack, f"{field}_packed", values)


def _standby_steps(field: str, copies: Iterable[TopicPartition]) -> Iterator[Step]:
    for group in _chunks(copies, _GROUPED):
        by_topic: dict[str, list[int]] = {}
        for tp in group:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        for topic, partitions in by_topic.items():
            values = {"topic": topic, "partitions": partitions}
            yield partial(_pack, field, values)


def _pack(field: str, values: dict[str, Any], update: Any) -> int:
    size: int = getattr(update, field).add(**values).ByteSize()
    return size


# --- warms, releases, cancels --------------------------------------------------------------------------------------


def _batches(message: Any, orders: Iterable[Orders]) -> Iterator[bytes | None]:
    """Pack the orders into as few batches as their size allows; the first of them continues `message`."""
    size, step = message.ByteSize(), 0
    for field, fill, wanted in orders:
        for chunk in _chunks(wanted):
            if size and size + step > MAX_MESSAGE:
                yield message.SerializeToString()
                message, size = _command(), 0
            entries = getattr(message.batch, f"{field}s")
            step = sum([fill(entries.add(), order) for order in chunk])
            size += step
            yield None
    yield message.SerializeToString()


def _singles(orders: Iterable[Orders]) -> Iterator[bytes | None]:
    """Encode each order as a message of its own."""
    for field, fill, wanted in orders:
        for chunk in _chunks(wanted):
            for order in chunk:
                message = _command()
                fill(getattr(message, field), order)
                yield message.SerializeToString()
            yield None


def _cancel(message: Any, cancel: CancelWarm) -> int:
    _place(message.partition, cancel.tp)
    message.handoff_id = cancel.handoff_id
    return _TAGS + _NUMBERS + len(cancel.tp.topic) + len(cancel.handoff_id)


def _warm(message: Any, warm: Warm) -> int:
    _place(message.partition, warm.tp)
    message.current_owner = warm.current_owner
    return _describe(message, warm) + len(warm.current_owner)


def _release(message: Any, release: Release) -> int:
    _place(message.partition, release.tp, release.epoch)
    message.new_owner = release.new_owner
    return _describe(message, release) + len(release.new_owner)


def _describe(message: Any, order: Warm | Release) -> int:
    message.handoff_id = order.handoff_id
    message.cause = order.cause
    message.standby = order.standby
    return _TAGS + _NUMBERS + len(order.tp.topic) + len(order.handoff_id) + len(order.cause)


# --- replies -------------------------------------------------------------------------------------------------------


def encode_refusals(refusals: Iterable[tuple[TopicPartition, str]], response: str = "PartitionReadyResponse") -> bytes:
    """Encode a response of refusals. PartitionReadyResponse and PartitionReleasedResponse have the same fields."""
    reply = message_class(response)()
    for tp, reason in refusals:
        refusal = reply.refusals.add(reason=reason)
        _place(refusal.partition, tp)
    encoded: bytes = reply.SerializeToString()
    return encoded


def _place(message: Any, tp: TopicPartition, epoch: int = 0) -> None:
    message.topic = tp.topic
    message.partition = tp.partition
    message.epoch = epoch


def _chunks(items: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
