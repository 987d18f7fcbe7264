"""Decodes the messages of a consumer's stream into `Commands`.

An update that is too long for one message arrives in parts. It is passed on only when it is complete, because a
partition that is missing from a partial list is not lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from assigner.core.client.state import MAX_PARTITIONS
from assigner.errors import InvalidInput, LimitReached
from assigner.model.commands import CancelWarm, Commands, Opening, Release, Warm
from assigner.model.keys import TopicPartition

Owned = tuple[TopicPartition, int]


class Assembly:
    """Assembles an update from its parts."""

    def __init__(self) -> None:
        self._parts: Commands | None = None

    def add(self, message: Any) -> Commands | None:
        """Add a message, an AssignmentCommand of the C runtime; returns the commands once the update is complete."""
        commands, more = _read(message)
        if self._parts is not None:
            commands = _joined(self._parts, commands)
        if len(commands.assigned) + len(commands.standbys_added) > MAX_PARTITIONS:
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
        standbys_removed=first.standbys_removed + second.standbys_removed,
        standbys_added=first.standbys_added + second.standbys_added,
    )


def _read(message: Any) -> tuple[Commands, bool]:
    match message.WhichOneof("command"):
        case "batch":
            return _batch(message.batch)
        case "assignment":
            return _update(message.assignment)
        case "warm":
            return Commands(warms=(_warm(message.warm),)), False
        case "release":
            return Commands(releases=(_release(message.release),)), False
        case "cancel":
            return Commands(cancels=(_cancel(message.cancel),)), False
    # A command that a newer service knows and this client does not.
    return Commands(), False


def _batch(batch: Any) -> tuple[Commands, bool]:
    commands, more = _update(batch.assignment)
    orders = msgspec.structs.replace(
        commands,
        cancels=tuple(map(_cancel, batch.cancels)),
        warms=tuple(map(_warm, batch.warms)),
        releases=tuple(map(_release, batch.releases)),
    )
    return orders, more


def _update(update: Any) -> tuple[Commands, bool]:
    commands = Commands(
        opening=_opening(update),
        full=update.full,
        assigned=tuple(_owned(update.assigned, update.assigned_packed)),
        unassigned=tuple(_owned(update.unassigned, update.unassigned_packed)),
        standbys_removed=tuple(_copies(update.standbys_removed)),
        standbys_added=tuple(_copies(update.standbys_added)),
        generation=update.generation,
    )
    return commands, update.more


def _opening(update: Any) -> Opening | None:
    if not (update.session or update.ttl_ms or update.exclusive or update.incarnation):
        return None
    return Opening(update.session, update.ttl_ms / 1000, update.exclusive, update.incarnation)


def _owned(listed: Iterable[Any], packed: Iterable[Any]) -> Iterator[Owned]:
    for one in listed:
        yield TopicPartition(one.topic, one.partition), one.epoch
    for many in packed:
        topic = many.topic
        if len(many.epochs) != len(many.partitions):
            raise InvalidInput(
                f"the service sent {len(many.partitions)} partitions of {topic!r} with {len(many.epochs)} epochs"
            )
        for partition, epoch in zip(many.partitions, many.epochs, strict=True):
            yield TopicPartition(topic, partition), epoch


def _copies(packed: Iterable[Any]) -> Iterator[TopicPartition]:
    for many in packed:
        topic = many.topic
        for partition in many.partitions:
            yield TopicPartition(topic, partition)


def _tp(order: Any) -> TopicPartition:
    if not order.HasField("partition"):
        raise InvalidInput("the service sent a command without a partition")
    return TopicPartition(order.partition.topic, order.partition.partition)


def _warm(warm: Any) -> Warm:
    return Warm(_tp(warm), warm.handoff_id, warm.current_owner, warm.cause, warm.standby)


def _release(release: Any) -> Release:
    tp = _tp(release)
    epoch, keeps = release.partition.epoch, release.standby
    return Release(tp, epoch, release.handoff_id, release.new_owner, release.cause, keeps)


def _cancel(cancel: Any) -> CancelWarm:
    return CancelWarm(_tp(cancel), cancel.handoff_id)
