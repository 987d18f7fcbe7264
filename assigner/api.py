"""Defines the service's interfaces, independent of gRPC: `Membership`, `Routers`, `Offsets`, `ClassicGroups`,
`Administration`, and their values.

The server translates messages to these values, and errors of `assigner.errors` to statuses. It decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from assigner.model.commands import Ack, Commands
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicGroupDescription,
    CommitAnswer,
    FetchAnswer,
    GroupListing,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    OffsetDeletion,
    OffsetDeletionAnswer,
    SyncAnswer,
    SyncRequest,
)
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
from assigner.model.routes import FreezeAck, TableChanges

# --- consumers ---------------------------------------------------------------------------------------------------


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    name: str
    session: str = ""
    """Empty: the server generates one, and the client can't resume."""
    topics: tuple[str, ...] = ()
    capacity: float = 1.0
    rack: str = ""
    address: str = ""
    renews: bool = False
    generation: str = ""
    principal: str = ""
    """The identity of the caller, which the session is bound to; empty: the service asks for none."""
    cold: bool = False
    """It has nothing to warm: no Warm is sent, and the leader goes on as if it had answered one."""
    release_timeout: float = 0.0
    """Seconds in which it has to release a partition; 0: as the group's options say."""
    explicit_topics: bool = False
    """`topics` is the whole subscription, even if it is empty; else a consumer without topics gets every topic."""
    pattern: str = ""
    """The pattern that `topics` was resolved from; kept and shown, not interpreted."""
    kind: str = ""
    """By what it is a member: `kafka`, `spark`, or empty for a client of the gRPC API."""
    client_id: str = ""
    """What the client calls itself, if that is not its name; for people."""
    host: str = ""
    """Where the client connects from; for people."""
    takeover: bool = True
    """Whether it may take the name from another session. If not, and one that has not stepped out holds the name,
    registering raises `SessionHeld`."""


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
        """Yield the commands to send, the first with the full assignment. Ends when the consumer is drained; the stream
        is then closed with OK. Raises `Superseded`, `Evicted` or `NotRegistered` when the session is over, and
        `StreamReplaced` when a later stream of the session is open."""
        ...

    async def leave(self) -> None:
        """Close the stream. The session lives on until its lease ends, unless it is drained."""
        ...


class RejectedAck(msgspec.Struct, frozen=True):
    """An ack that was rejected, and why. A duplicate or late ack is idempotent and not rejected."""

    tp: TopicPartition
    error: Exception


class TopicLoads(msgspec.Struct, frozen=True):
    """Loads of some partitions of a topic, as parallel tuples."""

    topic: str
    partitions: tuple[int, ...]
    loads: tuple[float, ...]


class LoadReport(msgspec.Struct, frozen=True):
    topics: tuple[TopicLoads, ...] = ()
    node: float | None = None
    """How busy the consumer's node is, in a unit of the group's own choice."""


class LoadReceipt(msgspec.Struct, frozen=True):
    taken: int
    """How many loads were accepted: those of partitions that the caller owns."""
    next_report: float
    """Seconds after which another report is of use."""


class Membership(Protocol):
    """The calls of consumers: they register, renew, ack, report loads and leave.

    `principal` is the identity of the caller, empty if it is not known. A session that was opened with an identity is
    bound to it: a call of any other raises `PermissionDenied`, whether or not it names the session."""

    async def register(self, registration: Registration, heard: Callable[[], float]) -> CommandStream:
        """Register a consumer and open its stream. `heard` returns the time, on the service's clock, at which the peer
        was last heard from: that renews the session of a client that does not call `renew`."""
        ...

    async def ready(
        self, group: str, name: str, session: str, acks: Sequence[Ack], *, principal: str = ""
    ) -> list[RejectedAck]: ...

    async def released(
        self, group: str, name: str, session: str, acks: Sequence[Ack], *, principal: str = ""
    ) -> list[RejectedAck]: ...

    async def deregister(self, group: str, name: str, session: str, *, gates_closed: bool, principal: str = "") -> bool:
        """Start draining, or end the session at once if the consumer's `gates_closed`. Returns whether the consumer
        should wait until its stream is closed."""
        ...

    async def step_out(self, group: str, name: str, session: str, *, principal: str = "") -> None:
        """Leave for a while: the consumer has stopped its work, and expects to be back within its TTL as another
        session. It keeps its partitions until its lease ends; a session that registers under the name before takes
        them over at once, in exclusive groups too."""
        ...

    async def renew(self, group: str, name: str, session: str, *, principal: str = "") -> float:
        """Renew the session and return its TTL, once the store has confirmed a renewal sent after this call began."""
        ...

    async def report_load(
        self, group: str, name: str, session: str, report: LoadReport, *, principal: str = ""
    ) -> LoadReceipt:
        """Accept the loads that a consumer measured, as a hint for the next plan. Loads of partitions that the caller
        does not own are ignored."""
        ...


# --- routers -----------------------------------------------------------------------------------------------------


class RouterRegistration(msgspec.Struct, frozen=True):
    group: str
    name: str
    session: str
    """One per process, chosen by the router."""
    loads: bool = False
    """The router wants to be sent the published loads."""
    principal: str = ""
    """The identity of the caller, which the session is bound to; empty: the service asks for none."""


class RouterStream(Protocol):
    """A router's open stream at this instance, and the table and changes to send on it."""

    @property
    def group(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def session(self) -> str: ...

    @property
    def ttl(self) -> float: ...

    def updates(self) -> AsyncIterator[TableChanges]:
        """Yield the whole table, at a revision no older than the router's own registration, then changes. Raises
        `Superseded` or `NotRegistered` when the session is over, and `StreamReplaced` when a later stream of the
        session is open."""
        ...

    async def leave(self) -> None:
        """Close the stream. The session lives on until its lease ends."""
        ...


class Routers(Protocol):
    """The calls of request routers: they register, renew, acknowledge freezes and leave. `principal`: as in
    `Membership`."""

    async def register(self, registration: RouterRegistration) -> RouterStream:
        """Register a router and open its stream. Every handoff that freezes from then on waits for its ack."""
        ...

    async def renew(self, group: str, name: str, session: str, *, principal: str = "") -> float:
        """Renew the session and return its TTL, once the store has confirmed a renewal sent after this call began."""
        ...

    async def cutover_ack(
        self, group: str, name: str, session: str, acks: Sequence[FreezeAck], *, principal: str = ""
    ) -> list[RejectedAck]:
        """Record that the router holds the requests of these frozen partitions back. Returns the acks that were
        rejected; late and repeated ones are idempotent and not rejected."""
        ...

    async def deregister(self, group: str, name: str, session: str, *, principal: str = "") -> None:
        """End the session: nobody waits for the router's acks any more."""
        ...


# --- offsets -----------------------------------------------------------------------------------------------------


class OffsetCommit(msgspec.Struct, frozen=True, gc=False):
    """An offset that the owner of a partition commits."""

    tp: TopicPartition
    epoch: int
    """The epoch of the caller's ownership."""
    offset: int
    """The next offset to read."""
    leader_epoch: int = -1
    metadata: str = ""


class CommitRefusal(str, Enum):
    """Why an offset was not committed."""

    FENCED = "fenced"
    """The caller does not own the partition, or not under that epoch any more. A retry is of no use."""
    UNKNOWN_PARTITION = "unknown_partition"
    FAILED = "failed"
    """The store refused the write, or its outcome is unknown. The commit may be retried."""


class RefusedCommit(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    why: CommitRefusal
    epoch: int = 0
    """The epoch of the present ownership; 0: there is none."""
    owner: str = ""
    reason: str = ""
    """The error, of a commit that failed."""


class WantedOffsets(msgspec.Struct, frozen=True):
    """Which offsets to fetch: of these partitions, or all that were ever committed of these topics or of the group."""

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    """Only if no partitions are named. Empty: every topic."""
    after: TopicPartition | None = None
    """The last partition of the page before this one, if no partitions are named."""


class FoundOffsets(msgspec.Struct, frozen=True):
    offsets: tuple[tuple[TopicPartition, Offset | None], ...]
    """In the order of the request. A partition that was named and has no offset is listed with None."""
    unreadable: tuple[TopicPartition, ...] = ()
    last: TopicPartition | None = None
    """If set, not all offsets fitted into one page: fetch again, with this partition as `after`."""


class Offsets(Protocol):
    """Committed offsets: commits of owners, and reads by anyone."""

    async def commit(
        self, group: str, name: str, session: str, commits: Sequence[OffsetCommit], *, principal: str = ""
    ) -> list[RefusedCommit]:
        """Commit offsets and return those that were refused; the others are durable when this returns. `principal`: as
        in `Membership`, as long as the session is registered."""
        ...

    async def fetch(self, group: str, wanted: WantedOffsets) -> FoundOffsets:
        """Fetch committed offsets; sees every commit that was acknowledged before."""
        ...


# --- classic Kafka groups ----------------------------------------------------------------------------------------


class ClassicGroups(Protocol):
    """The calls of members of classic Kafka groups, and of those who look after such groups.

    `org`: the organization whose group it is; empty: the default one. `principal`: the identity behind the call, for
    the log; the caller has checked what it may do. What Kafka has an error code for is an answer and not raised: not to
    be the group's leader is 16, a store that is away 14, a name that breaks the rules 24."""

    async def join(self, org: str, request: JoinRequest, *, principal: str = "") -> JoinAnswer:
        """Join or rejoin a group. Returns when the generation begins, which may take as long as the slowest member's
        rebalance timeout. Who stops waiting stays a member until its session times out."""
        ...

    async def sync(self, org: str, request: SyncRequest, *, principal: str = "") -> SyncAnswer:
        """Return the member's assignment, once the leader has sent it and it is durable."""
        ...

    async def heartbeat(self, org: str, request: HeartbeatRequest, *, principal: str = "") -> HeartbeatAnswer: ...

    async def leave(self, org: str, request: LeaveRequest, *, principal: str = "") -> LeaveAnswer: ...

    async def commit(self, org: str, request: ClassicCommit, *, principal: str = "") -> CommitAnswer:
        """Commit offsets; those without an error are durable when this returns."""
        ...

    async def fetch(self, org: str, request: ClassicFetch, *, principal: str = "") -> FetchAnswer:
        """Fetch committed offsets; sees every commit that was acknowledged before. Any instance answers."""
        ...

    async def list_groups(self, org: str, *, principal: str = "") -> GroupListing:
        """List the organization's classic groups as they are on record. Any instance answers."""
        ...

    async def describe(self, org: str, group: str, *, principal: str = "") -> ClassicGroupDescription: ...

    async def delete(self, org: str, group: str, *, principal: str = "") -> KafkaError:
        """Delete an empty group with its offsets."""
        ...

    async def delete_offsets(self, org: str, request: OffsetDeletion, *, principal: str = "") -> OffsetDeletionAnswer:
        """Delete offsets of topics that no member is subscribed to."""
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
    kind: str = "assigner"
    """`classic`: the figures are those of a classic Kafka group, whose members themselves decide who owns what."""
    state: str = ""
    """Of a classic group, as on record, under Kafka's name."""


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


class RouterMember(msgspec.Struct, frozen=True, kw_only=True):
    """A registered router of a group."""

    name: str
    session: str
    """The digest of its session; empty: its registration can't be read."""
    unacked: int
    """Partitions that are frozen and wait for its ack."""
    principal: str = ""
    """The identity that its session is bound to."""
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
    """Facts that an operator should know of the group."""
    routers: tuple[RouterMember, ...] = ()
    """In order of name."""
    classic: ClassicGroupDescription | None = None
    """What is on record of a classic Kafka group; its leader may be in the middle of a rebalance."""


class Weights(msgspec.Struct, frozen=True):
    """Weights of a topic's partitions from `first` on."""

    topic: str
    first: int
    weights: tuple[float, ...]


class PartitionLoad(msgspec.Struct, frozen=True):
    tp: TopicPartition
    load: float
    """As it was reported."""
    share: float
    """Of the sum of all known loads."""
    owner: str


class NodeLoad(msgspec.Struct, frozen=True):
    consumer: str
    busy: float
    """As the node reported; NaN if it reported none."""
    partitions: int
    share: float
    """Of the sum of all known loads, by the partitions that it owns."""


class LoadDescription(msgspec.Struct, frozen=True, kw_only=True):
    used: bool
    """Whether the group's options ask for weighted plans."""
    fallback: str
    """Why plans are unweighted; empty: they are weighted."""
    partitions: int
    known: int
    """How many partitions have a load that is valid now."""
    total: float
    at: int
    """Wall time of the last write; 0: none."""
    heaviest: tuple[PartitionLoad, ...]
    busiest: tuple[NodeLoad, ...]
    unreadable: tuple[str, ...]


class NewOffset(msgspec.Struct, frozen=True, gc=False):
    """An offset to put in place of the committed one."""

    offset: int
    """The next offset to read."""
    leader_epoch: int = -1
    metadata: str = ""


class Administration(Protocol):
    async def set_topic(
        self, group: str, topic: str, partitions: int, *, force: bool = False, create: bool = True
    ) -> TopicConfig:
        """Set a topic's number of partitions. `force`: it may be lowered. `create`: create the group if it does not
        exist."""
        ...

    async def find_topic(self, group: str, topic: str, *, create: bool = True) -> TopicConfig:
        """Have the group know the topic as if a consumer had named it: its number of partitions is found in Kafka or in
        the settings. Raises `UnknownTopic`."""
        ...

    async def topics(self, group: str) -> list[TopicConfig]: ...

    async def groups(self) -> list[GroupSummary]: ...

    async def describe(self, group: str) -> GroupDescription: ...

    async def set_options(self, group: str, changes: dict[str, Any], *, create: bool = False) -> GroupOptions:
        """Change options, by field name of `GroupOptions`. `create`: create the group if it does not exist."""
        ...

    async def delete_group(self, group: str, *, force: bool) -> tuple[int, bool]:
        """Delete every record of the group. Returns how many were deleted, and whether there are more; if so, call it
        again. Refused while a consumer is registered. `force`: also if records name owners that are absent."""
        ...

    async def delete_topic(self, group: str, topic: str, *, force: bool) -> tuple[int, bool]:
        """Delete every record of a topic of the group, as `delete_group` does for a group."""
        ...

    async def drain(self, group: str, consumer: str) -> int:
        """Mark the consumer as draining. Returns how many partitions it still holds."""
        ...

    def drain_progress(self, group: str, consumer: str) -> AsyncIterator[int]:
        """Yield how many partitions the consumer still holds, at each change, down to 0."""
        ...

    async def rebalance(self, group: str) -> None: ...

    async def set_loads(self, group: str, weights: Sequence[Weights], valid_for: float, *, keep_others: bool) -> int:
        """Publish weights that are valid for `valid_for` seconds. Returns how many partitions got one. Other weights of
        the topics are dropped unless `keep_others`."""
        ...

    async def loads(self, group: str, limit: int) -> LoadDescription: ...

    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, NewOffset | None], *, force: bool) -> int:
        """Replace committed offsets; None deletes one. Returns how many were set. Refused while one of the partitions
        has an owner, unless `force`."""
        ...
