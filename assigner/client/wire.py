"""From the stream's messages to `Commands`.

An update that was too long for one message arrives in parts; nothing is told before the last of them is there,
because what is missing from half a list is not lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from assigner.core.client_calls import CancelOrder, Commands, ReleaseOrder, WarmOrder
from assigner.core.client_state import MAX_PARTITIONS
from assigner.errors import InvalidInput, LimitReached
from assigner.keys import TopicPartition
from assigner.proto.kafka_assigner import v1

Owned = tuple[TopicPartition, int]


class Assembly:
    """Puts the parts of an update together."""

    def __init__(self) -> None:
        self._parts: Commands | None = None

    def add(self, message: v1.AssignmentCommand) -> Commands | None:
        """What the service wants, once it is complete."""
        commands, more = _read(message)
        if self._parts is not None:
            commands = _joined(self._parts, commands)
        if len(commands.assigned) > MAX_PARTITIONS:
            raise LimitReached(f"the service assigned more than {MAX_PARTITIONS} partitions to one consumer")
        self._parts = commands if more else None
        return None if more else commands


def _joined(first: Commands, second: Commands) -> Commands:
    return msgspec.structs.replace(
        first,
        assigned=first.assigned + second.assigned,
        unassigned=first.unassigned + second.unassigned,
        cancels=first.cancels + second.cancels,
        warms=first.warms + second.warms,
        releases=first.releases + second.releases,
    )


def _read(message: v1.AssignmentCommand) -> tuple[Commands, bool]:
    if message.batch is not None:
        batch = message.batch
        commands, more = _update(batch.assignment) if batch.assignment is not None else (Commands(), False)
        orders = msgspec.structs.replace(
            commands,
            cancels=tuple(map(_cancel, batch.cancels)),
            warms=tuple(map(_warm, batch.warms)),
            releases=tuple(map(_release, batch.releases)),
        )
        return orders, more
    if message.assignment is not None:
        return _update(message.assignment)
    if message.warm is not None:
        return Commands(warms=(_warm(message.warm),)), False
    if message.release is not None:
        return Commands(releases=(_release(message.release),)), False
    if message.cancel is not None:
        return Commands(cancels=(_cancel(message.cancel),)), False
    # A command that a newer service knows and this client does not.
    return Commands(), False


def _update(update: v1.AssignmentUpdate) -> tuple[Commands, bool]:
    commands = Commands(
        full=update.full,
        assigned=tuple(_owned(update.assigned, update.assigned_packed)),
        unassigned=tuple(_owned(update.unassigned, update.unassigned_packed)),
        ttl=update.ttl_ms / 1000,
        session=update.session,
        generation=update.generation,
        exclusive=update.exclusive,
    )
    return commands, update.more


def _owned(listed: Iterable[v1.TopicPartition], packed: Iterable[v1.TopicPartitions]) -> Iterator[Owned]:
    for one in listed:
        yield TopicPartition(one.topic, one.partition), one.epoch
    for many in packed:
        if len(many.epochs) != len(many.partitions):
            raise InvalidInput(
                f"the service sent {len(many.partitions)} partitions of {many.topic!r} with {len(many.epochs)} epochs"
            )
        for partition, epoch in zip(many.partitions, many.epochs, strict=True):
            yield TopicPartition(many.topic, partition), epoch


def _tp(partition: v1.TopicPartition | None) -> TopicPartition:
    if partition is None:
        raise InvalidInput("the service sent a command without a partition")
    return TopicPartition(partition.topic, partition.partition)


def _warm(warm: v1.WarmPartition) -> WarmOrder:
    return WarmOrder(_tp(warm.partition), warm.handoff_id, warm.current_owner, warm.cause, warm.standby)


def _release(release: v1.ReleasePartition) -> ReleaseOrder:
    tp = _tp(release.partition)
    epoch = release.partition.epoch if release.partition is not None else 0
    return ReleaseOrder(tp, epoch, release.handoff_id, release.new_owner, release.cause)


def _cancel(cancel: v1.CancelWarm) -> CancelOrder:
    return CancelOrder(_tp(cancel.partition), cancel.handoff_id)
