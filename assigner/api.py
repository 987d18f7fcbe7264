"""What the service offers, free of any wire: values and the two interfaces that gRPC, tests and embedding call.

The server translates messages to these and errors of `assigner.errors` to statuses. It decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from assigner.model.commands import Ack, Commands
from assigner.model.keys import TopicPartition
from assigner.model.records import (
    Condition,
    Consumer,
    GroupOptions,
    Handoff,
    Move,
    Offset,
    Quarantined,
    Standbys,
    TopicConfig,
)

# --- consumers ---------------------------------------------------------------------------------------------------


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    name: str
    session: str = ""
    """Empty: the server mints one; the client can't resume."""
    topics: tuple[str, ...] = ()
    capacity: float = 1.0
    rack: str = ""
    address: str = ""
    renews: bool = False
    generation: str = ""


class CommandStream(Protocol):
    """A consumer's open stream at this instance, and the commands to send on it."""

    @property
    def group(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def session(self) -> str: ...

    @property
    def ttl(self) -> float: ...

    @property
    def exclusive(self) -> bool: ...

    def commands(self) -> AsyncIterator[Commands]:
        """The first item is always full. Ends when the consumer is drained, upon which the stream is closed with OK.
        Raises `Superseded`, `Evicted` or `NotRegistered` when the session is over, and `StreamReplaced` when a later
        stream of the session is open."""
        ...

    async def leave(self) -> None:
        """Close the stream, whatever ended it. The session lives on until its lease ends, unless it is drained."""
        ...


class RejectedAck(msgspec.Struct, frozen=True):
    """An ack that could not be taken. A duplicate or late ack is idempotent and not rejected."""

    tp: TopicPartition
    error: Exception


class TopicLoads(msgspec.Struct, frozen=True):
    """Loads of some partitions of a topic, in parallel."""

    topic: str
    partitions: tuple[int, ...]
    loads: tuple[float, ...]


class LoadReport(msgspec.Struct, frozen=True):
    topics: tuple[TopicLoads, ...] = ()
    node: float | None = None
    """How busy the consumer's node is, in a unit of the group's own choice."""


class LoadReceipt(msgspec.Struct, frozen=True):
    taken: int
    """Partitions whose load was taken: those the caller owns."""
    next_report: float
    """Seconds after which another report is of use."""


class Membership(Protocol):
    """The consumers' side of the service."""

    async def register(self, registration: Registration, heard: Callable[[], float]) -> CommandStream:
        """Register a consumer and open its stream. `heard` returns the time, on the service's clock, at which the peer
        was last heard from: that renews the session of a client that does not call `renew`."""
        ...

    async def ready(self, group: str, name: str, session: str, acks: Sequence[Ack]) -> list[RejectedAck]: ...

    async def released(self, group: str, name: str, session: str, acks: Sequence[Ack]) -> list[RejectedAck]: ...

    async def deregister(self, group: str, name: str, session: str, *, gates_closed: bool) -> bool:
        """Start draining, or end the session at once if the consumer's `gates_closed`; whether the consumer should
        wait until its stream is closed."""
        ...

    async def renew(self, group: str, name: str, session: str) -> float:
        """Renew the session and return its TTL, once the store has confirmed a renewal sent after this call began."""
        ...

    async def report_load(self, group: str, name: str, session: str, report: LoadReport) -> LoadReceipt:
        """Take the loads that a consumer measured, as advice for the next plan. Loads of partitions that the caller
        does not own are ignored."""
        ...


# --- offsets -----------------------------------------------------------------------------------------------------


class OffsetCommit(msgspec.Struct, frozen=True, gc=False):
    """How far the owner of a partition has got."""

    tp: TopicPartition
    epoch: int
    """Of the caller's ownership."""
    offset: int
    """The next one to read."""
    leader_epoch: int = -1
    metadata: str = ""


class CommitRefusal(str, Enum):
    """Why an offset was not committed."""

    FENCED = "fenced"
    """The partition is not the caller's, or not under that epoch any more. Repeating it is of no use."""
    UNKNOWN_PARTITION = "unknown_partition"
    FAILED = "failed"
    """The store did not take it, or did not say that it did. It may be repeated."""


class RefusedCommit(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    why: CommitRefusal
    epoch: int = 0
    """Of the ownership that is in force; 0: nobody's."""
    owner: str = ""
    reason: str = ""
    """What went wrong, where it failed."""


class WantedOffsets(msgspec.Struct, frozen=True):
    """What to look up: these partitions, or all that were ever committed, of these topics or of the whole group."""

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    """Only if no partitions are named. None: every topic."""
    after: TopicPartition | None = None
    """Where the last answer ended, if partitions are not named."""


class FoundOffsets(msgspec.Struct, frozen=True):
    offsets: tuple[tuple[TopicPartition, Offset | None], ...]
    """In the order of the question. Partitions that were named and have none are in it."""
    unreadable: tuple[TopicPartition, ...] = ()
    last: TopicPartition | None = None
    """Not all fitted into one answer: ask again, for what comes after this one."""


class Offsets(Protocol):
    """How far consumers have got."""

    async def commit(self, group: str, name: str, session: str, commits: Sequence[OffsetCommit]) -> list[RefusedCommit]:
        """Those that were not committed; the others are on record, for good, when this returns."""
        ...

    async def fetch(self, group: str, wanted: WantedOffsets) -> FoundOffsets:
        """What is on record; sees every commit that was answered before."""
        ...


# --- operators ---------------------------------------------------------------------------------------------------


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    leader: str
    consumers: int
    topics: int
    partitions: int
    unowned: int
    handoffs: int
    generation: int
    paused: bool


class PartitionOwner(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    owner: str
    session: str
    epoch: int


class Member(msgspec.Struct, frozen=True):
    consumer: Consumer
    owned: int
    warming: int
    releasing: int
    standbys: int = 0
    silent_for: float | None = None
    """Seconds since its session was last renewed; None: not known."""


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    summary: GroupSummary
    leader_address: str
    epoch_floor: int
    options: GroupOptions
    members: tuple[Member, ...]
    topics: tuple[TopicConfig, ...]
    ownership: tuple[PartitionOwner, ...]
    """In order of topic and partition; unowned partitions are absent."""
    handoffs: tuple[Handoff, ...]
    quarantined: tuple[Quarantined, ...]
    unreadable: tuple[str, ...]
    history: tuple[Move, ...]
    standbys: tuple[Standbys, ...] = ()
    """In order of topic and partition."""
    conditions: tuple[Condition, ...] = ()
    """What somebody should know of the group."""


class Weights(msgspec.Struct, frozen=True):
    """Weights of a topic's partitions from `first` on."""

    topic: str
    first: int
    weights: tuple[float, ...]


class PartitionLoad(msgspec.Struct, frozen=True):
    tp: TopicPartition
    load: float
    """As it was told."""
    share: float
    """Of all that is known."""
    owner: str


class NodeLoad(msgspec.Struct, frozen=True):
    consumer: str
    busy: float
    """As the node told; NaN if it did not."""
    partitions: int
    share: float
    """Of all that is known, by what it owns."""


class LoadDescription(msgspec.Struct, frozen=True, kw_only=True):
    used: bool
    """The group asks for plans by load."""
    fallback: str
    """Why partitions are counted instead of weighed; empty: they are weighed."""
    partitions: int
    known: int
    """Partitions whose load counts now."""
    total: float
    at: int
    """Wall time of the last write; 0: none."""
    heaviest: tuple[PartitionLoad, ...]
    busiest: tuple[NodeLoad, ...]
    unreadable: tuple[str, ...]


class Administration(Protocol):
    async def set_topic(
        self, group: str, topic: str, partitions: int, *, force: bool = False, create: bool = True
    ) -> TopicConfig:
        """`force`: fewer partitions than before are meant. `create`: the group may be a new one."""
        ...

    async def topics(self, group: str) -> list[TopicConfig]: ...

    async def groups(self) -> list[GroupSummary]: ...

    async def describe(self, group: str) -> GroupDescription: ...

    async def set_options(self, group: str, changes: dict[str, Any], *, create: bool = False) -> GroupOptions:
        """`changes` by field name of `GroupOptions`. `create`: the group may be a new one."""
        ...

    async def delete_group(self, group: str, *, force: bool) -> tuple[int, bool]:
        """Remove everything that is on record of the group; how many records went, and whether there are more, for
        which to ask again. Refused while a consumer is registered. `force`: also what consumers that are gone owned,
        though it is not given up yet."""
        ...

    async def delete_topic(self, group: str, topic: str, *, force: bool) -> tuple[int, bool]:
        """The same for a topic of the group."""
        ...

    async def drain(self, group: str, consumer: str) -> int:
        """Mark the consumer as draining; how much it still holds."""
        ...

    def drain_progress(self, group: str, consumer: str) -> AsyncIterator[int]:
        """What the consumer still holds, each time it changes, down to 0."""
        ...

    async def rebalance(self, group: str) -> None: ...

    async def set_loads(self, group: str, weights: Sequence[Weights], valid_for: float, *, keep_others: bool) -> int:
        """Publish weights that count for `valid_for` seconds; how many partitions got one. What else was known of the
        topics is forgotten unless `keep_others`."""
        ...

    async def loads(self, group: str, limit: int) -> LoadDescription: ...

    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int | None], *, force: bool) -> int:
        """Put offsets in place of what is on record (None: nothing); how many. Refused while somebody owns one of the
        partitions, unless `force`."""
        ...
