"""Decides what a consumer's ack does to a handoff: the Ready of its new owner, the Released of its old one.

    Ready      warming -> ready, or warming -> failed where the ack says why
    Released   releasing -> released (exclusive);  complete -> (deleted) (overlap)

An ack counts only for the handoff it names by id. An ack without an id, from a client that knows none, counts by
partition, name, session and step. In every other step an ack changes nothing: a duplicate or late ack is idempotent,
because an error would end a client that did nothing wrong. Partitions that move as one are acked one by one; that the
slowest decides is for `lifecycle` to say.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from assigner.core.group import GroupState
from assigner.core.writes import Purpose, Write
from assigner.errors import NotTheTarget, UnknownTopic
from assigner.model.commands import Ack
from assigner.model.keys import TopicPartition
from assigner.model.records import Consumer, Handoff, Step, Stored
from assigner.store import Delete, ModRevisionIs, Operation, Put


def ready(handoff: Stored[Handoff], consumer: Consumer, ack: Ack) -> Write | None:
    """The write by which the new owner's Ready advances the handoff; None: the ack changes nothing."""
    record = handoff.record
    is_target = record.new_owner == consumer.consumer_name and record.new_session == consumer.session
    if not is_target or record.at is not Step.WARMING or not _names(ack, record):
        return None
    step = Step.FAILED if ack.failure else Step.READY
    return _advance(handoff, msgspec.structs.replace(record, step=step, phase=step.phase, failure=ack.failure))


def released(handoff: Stored[Handoff], consumer: Consumer, ack: Ack) -> Write | None:
    """The write by which the old owner's Released advances or ends the handoff; None: the ack changes nothing."""
    record = handoff.record
    is_old_owner = record.old_owner == consumer.consumer_name and record.old_session == consumer.session
    if not is_old_owner or not _names(ack, record):
        return None
    match record.at:
        case Step.COMPLETE:
            return _write(handoff, Delete(handoff.key))
        case Step.RELEASING:
            step = Step.RELEASED
            return _advance(handoff, msgspec.structs.replace(record, step=step, phase=step.phase))
        case _:
            return None


def check_partition(state: GroupState, tp: TopicPartition) -> None:
    """Raise `UnknownTopic` for an ack about a partition that the group neither has nor hands over."""
    topic = state.topics.get(tp.topic)
    if topic is None and tp not in state.handoffs and tp not in state.assignments:
        raise UnknownTopic(f"topic {tp.topic!r} is not known in group {state.keys.group!r}")
    if topic and tp.partition >= topic.record.partition_count and tp not in state.handoffs:
        raise UnknownTopic(
            f"partition {tp} does not exist: the topic has partitions 0 to {topic.record.partition_count - 1}"
        )


def check_may_be_late(
    state: GroupState, consumer: Consumer, ack: Ack, targeted: Container[TopicPartition] | None
) -> None:
    """Raise `NotTheTarget` for a Ready that matches no handoff and that its sender was certainly never asked for.

    `targeted`: partitions the consumer's stream was sent a Warm for; None: its stream is at another instance. An ack
    with an id is accepted, since only the consumer that was asked knows the id."""
    if ack.handoff_id or targeted is None or ack.tp in targeted:
        return
    held = state.assignments.get(ack.tp)
    if held is None or held.record.owner != consumer.consumer_name:
        raise NotTheTarget(f"no handoff for {ack.tp}: consumer {consumer.consumer_name!r} was not asked to warm it")


def _names(ack: Ack, handoff: Handoff) -> bool:
    return not ack.handoff_id or handoff.handoff_id == ack.handoff_id


def _advance(handoff: Stored[Handoff], to: Handoff) -> Write:
    return _write(handoff, Put(handoff.key, handoff.encode(to)))


def _write(handoff: Stored[Handoff], operation: Operation) -> Write:
    return Write(Purpose.ACK, (ModRevisionIs(handoff.key, handoff.mod_revision),), (operation,))
