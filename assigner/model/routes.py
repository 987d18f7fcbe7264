"""Defines what the service tells a router: the owner of every partition, the partitions that are frozen, and the acks.

The server encodes these values and the routing library decodes them: both sides use the same classes.
"""

from __future__ import annotations

import msgspec

from assigner.model.keys import TopicPartition


class Route(msgspec.Struct, frozen=True, gc=False):
    """Where requests for one partition go."""

    owner: str
    address: str
    """Where the owner can be reached, as it advertised it; may be empty."""
    epoch: int
    handoff_id: str = ""
    """The handoff that the partition is in, before the flip; empty: none. A frozen partition thaws by a higher epoch
    or by another handoff that has not frozen it; that the id is gone says nothing."""
    frozen: bool = False
    """Requests have to be held back, and that has to be acknowledged with the handoff's id."""


class FreezeAck(msgspec.Struct, frozen=True, gc=False):
    """A router's ack: it sends nothing more to the old owner, and nothing is in flight to it."""

    tp: TopicPartition
    handoff_id: str


class RoutingOpening(msgspec.Struct, frozen=True):
    """The fields of a stream's first message that no other message has."""

    ttl: float = 0.0
    """Seconds."""
    incarnation: str = ""
    """Identity of the service's store, which changes when the store loses its data. Empty: not known."""


class PublishedLoads(msgspec.Struct, frozen=True):
    """Loads of some partitions of a topic, as parallel tuples: advice for requests without a key."""

    topic: str
    partitions: tuple[int, ...]
    loads: tuple[float, ...]


class TableChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The whole routing table of a group, or the difference to what a router was sent before.

    A table may take several messages: the router uses it once it has the one without `more`."""

    opening: RoutingOpening | None = None
    full: bool = False
    """The first message of a table: what is in neither it nor the messages that belong to it has no owner."""
    more: bool = False
    """The update goes on in the next message."""
    revision: int = 0
    """The store's revision that the update shows."""
    generation: int = 0
    """The plan in force when the update was made."""
    routes: tuple[tuple[TopicPartition, Route], ...] = ()
    unowned: tuple[TopicPartition, ...] = ()
    """Partitions that have no owner any more."""
    topics: tuple[tuple[str, int], ...] = ()
    """Partition counts of topics that are new or have changed; 0: the topic is gone."""
    loads: tuple[PublishedLoads, ...] = ()
    """Only for a router that asked for them."""
    loads_valid_for: float = 0.0
    """Seconds for which `loads` count; 0: there are none in this update."""
