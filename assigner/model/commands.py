"""Defines the commands that the service sends to a consumer over its stream, and the consumer's acks.

The server encodes these values and the client decodes them: both sides use the same classes.
"""

from __future__ import annotations

import msgspec

from assigner.model.keys import TopicPartition


class Warm(msgspec.Struct, frozen=True, gc=False):
    """Build the state of a partition that another consumer still owns."""

    tp: TopicPartition
    handoff_id: str
    current_owner: str = ""
    cause: str = ""
    """A value of `records.Cause`. A newer service may send one that this client does not know."""
    standby: bool = False
    """The consumer already holds a standby copy."""


class Release(msgspec.Struct, frozen=True, gc=False):
    """Finish the work on a partition and acknowledge it: a new owner is ready."""

    tp: TopicPartition
    epoch: int
    handoff_id: str
    new_owner: str = ""
    cause: str = ""
    standby: bool = False
    """The consumer becomes a standby: it keeps its copy."""


class CancelWarm(msgspec.Struct, frozen=True, gc=False):
    """Stop warming: the handoff was cancelled."""

    tp: TopicPartition
    handoff_id: str


class Opening(msgspec.Struct, frozen=True):
    """The fields of a stream's first message that no other message has."""

    session: str = ""
    ttl: float = 0.0
    """Seconds."""
    exclusive: bool = False
    incarnation: str = ""
    """Identity of the service's store, which changes when the store loses its data. Empty: not known."""


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a consumer's view of its group.

    The server sends it in the order of the fields. The client applies it as a whole: a partition that is unassigned and
    assigned in the same change is never without an owner.
    """

    opening: Opening | None = None
    full: bool = False
    """`assigned` is everything that the consumer owns, `standbys_added` everything it holds a copy of."""
    assigned: tuple[tuple[TopicPartition, int], ...] = ()
    """(partition, epoch)"""
    unassigned: tuple[tuple[TopicPartition, int], ...] = ()
    cancels: tuple[CancelWarm, ...] = ()
    warms: tuple[Warm, ...] = ()
    releases: tuple[Release, ...] = ()
    standbys_removed: tuple[TopicPartition, ...] = ()
    """Copies that are no longer wanted. A copy of a partition that the consumer now owns is not among them."""
    standbys_added: tuple[TopicPartition, ...] = ()
    generation: int = 0


class Ack(msgspec.Struct, frozen=True, gc=False):
    """A consumer's Ready or Released for one partition."""

    tp: TopicPartition
    handoff_id: str = ""
    failure: str = ""
    """Of a Ready: why the partition can't be warmed."""
