"""Computes what a router is told about a partition, and which partitions a change of a record concerns.

All routers of a group are told the same, so nothing is remembered for one of them but the partitions that may look
different to it by now. What it is sent is the present view of those: a slow router skips what it missed, and one that
reconnects starts from the whole table. `touched` is the difference between two views of a partition, made from the
records before and after, so that the many writes of a handoff that mean nothing to a router are not sent.
"""

from __future__ import annotations

from collections.abc import Collection

from assigner.core.group import Change, GroupState
from assigner.model.keys import AssignmentKey, ConsumerKey, HandoffKey, TopicKey, TopicPartition
from assigner.model.records import Assignment, Consumer, Handoff, Stored
from assigner.model.routes import Route


def route_of(state: GroupState, tp: TopicPartition) -> Route | None:
    """Where requests for the partition go; None: nobody owns it."""
    held = state.assignments.get(tp)
    if held is None:
        return None
    owner, handoff = held.record, state.handoffs.get(tp)
    address = address_of(state, owner)
    if handoff is None:
        return Route(owner.owner, address, owner.epoch)
    handoff_id, frozen = _moving(handoff)
    return Route(owner.owner, address, owner.epoch, handoff_id, frozen)


def address_of(state: GroupState, held: Assignment) -> str:
    """Where the owning session can be reached; empty if it did not say so, or is not the one that is registered."""
    registered = state.consumers.get(held.owner)
    owner = registered.record if registered else state.departed.get(held.owner)
    return owner.address if owner and owner.session == held.session else ""


def touched(state: GroupState, change: Change) -> Collection[TopicPartition]:
    """The partitions about which a router has to be told something else than before this change."""
    match change.key:
        case AssignmentKey(tp):
            return () if _ownership(change.before) == _ownership(change.after) else (tp,)
        case HandoffKey(tp):
            return () if _moving(change.before) == _moving(change.after) else (tp,)
        case ConsumerKey(name):
            # The address of one that is gone stays known for as long as it owns something.
            gone = change.after is None
            return () if gone or _place(change.before) == _place(change.after) else state.owned[name]
        case _:
            return ()


def topic_count(state: GroupState, topic: str) -> int | None:
    """How many partitions the topic has; 0: it is gone; None: its config can't be read, so nothing is said."""
    config = state.topics.get(topic)
    if config:
        return config.record.partition_count
    return None if state.keys.topic(topic) in state.unreadable else 0


def touched_topic(change: Change) -> str:
    """The topic whose partition count may have changed; empty: none."""
    return change.key.topic if isinstance(change.key, TopicKey) else ""


def _ownership(held: Stored[Assignment] | None) -> tuple[str, str, int] | None:
    return (held.record.owner, held.record.session, held.record.epoch) if held else None


def _moving(handoff: Stored[Handoff] | None) -> tuple[str, bool]:
    """The handoff before its flip, and whether it freezes the partition."""
    if handoff is None or handoff.record.is_flipped:
        return "", False
    return handoff.record.identity, handoff.record.freezes


def _place(consumer: Stored[Consumer] | None) -> tuple[str, str] | None:
    return (consumer.record.session, consumer.record.address) if consumer else None
