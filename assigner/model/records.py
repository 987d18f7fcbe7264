"""Defines the JSON of stored records; no other module knows it.

The records keep the field names of the upstream assigner and add ours, so that its data is taken over in place. What
we do not know we keep: unknown fields come back as `extra` and are written again unchanged. A value that is not what
its key promises raises `UnreadableRecord`; the reader reports it and does not touch it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from assigner.errors import UnreadableRecord
from assigner.store import NO_LEASE, Entry

ANY_SESSION = ""
"""The session of records written before sessions were known."""


class Status(str, Enum):
    READY = "Ready"
    DRAINING = "Draining"


class Phase(str, Enum):
    """Upstream's three phases of a handoff, for readers that do not know steps."""

    WARMING = "Warming"
    READY = "Ready"
    COMPLETE = "Complete"


class Step(str, Enum):
    """The step of a handoff: finer than the phase, and stored, so that a new leader continues from it."""

    WARMING = "warming"
    FAILED = "failed"
    """The new owner reported that it could not warm the partition."""
    READY = "ready"
    FREEZING = "freezing"
    """Routers are holding requests back; waiting for their acknowledgements."""
    RELEASING = "releasing"
    """`exclusive` only: the old owner was asked to release before the flip."""
    RELEASED = "released"
    """`exclusive` only: the old owner has released; the leader may flip."""
    COMPLETE = "complete"
    """Flipped; `overlap` only: the old owner still has to release."""

    @property
    def phase(self) -> Phase:
        match self:
            case Step.WARMING | Step.FAILED:
                return Phase.WARMING
            case Step.COMPLETE:
                return Phase.COMPLETE
            case _:
                return Phase.READY


class Cause(str, Enum):
    JOINED = "joined"
    LEFT = "left"
    DRAINING = "draining"
    ROLLOUT = "rollout"
    TOPIC_GREW = "topic_grew"
    LOAD = "load"
    OPERATOR = "operator"


class HandoffMode(str, Enum):
    OVERLAP = "overlap"
    """Old and new owner both hold the partition for a moment, with different epochs. May deliver twice."""
    EXCLUSIVE = "exclusive"
    """The old owner releases before the new one starts."""


class FreezeOverdue(str, Enum):
    """What becomes of a handoff whose freeze is past its deadline because routers have not acked it."""

    ABANDON = "abandon"
    """The old owner keeps the partition, or is evicted where it must not."""
    PROCEED = "proceed"
    """The handoff goes on without the missing acks: a router that has not acked may still send to the old owner."""


class Assignor(str, Enum):
    """Who assigns the partitions of a classic Kafka group."""

    MEMBER = "member"
    """The member that leads it, as Kafka's protocol has it."""
    SERVER = "server"
    """The service, by the group's strategy."""


class Displaced(msgspec.Struct, frozen=True, gc=False):
    """A displaced session: another one of the same name took over, and this one's lease may not have expired yet."""

    session: str
    lease: int
    closed: bool = False
    """It had stepped out: nothing is done under its lease, so nobody waits for its end."""


class Controller(msgspec.Struct, frozen=True, gc=False):
    kind: str
    name: str


KAFKA_MEMBER = "kafka"
"""The kind of a consumer that is a Kafka client."""


class Consumer(msgspec.Struct, frozen=True, omit_defaults=False, kw_only=True):
    consumer_name: str
    status: Status = Status.READY
    registered_at: int = 0
    generation: str = ""
    """Of the deployment the consumer belongs to; upstream's field."""
    controller: Controller | msgspec.UnsetType | None = msgspec.UNSET
    session: str = ANY_SESSION
    capacity: float = 1.0
    rack: str = ""
    topics: tuple[str, ...] = ()
    """Topics subscribed to; none: every topic of the group."""
    address: str = ""
    """Where the consumer itself can be reached, if it said so."""
    instance: str = ""
    """The service instance that serves its stream."""
    ttl: float = 0.0
    renews: bool = False
    """Whether the client calls Renew; `exclusive` groups demand it."""
    minted: bool = False
    """The server made the session up for a client that named none: its calls name none either."""
    principal: str = ""
    """The identity that the session is bound to; empty: it registered where identity was off."""
    evicted: str = ""
    """Set by the leader: why this session has to end. Its instance stops renewing it."""
    displaced: tuple[Displaced, ...] = ()
    cold: bool = False
    """It has nothing to warm: a handoff to it begins at Ready."""
    release_timeout: float = 0.0
    """Seconds in which it has to release a partition; 0: as the group's options say."""
    explicit_topics: bool = False
    """`topics` is the whole subscription, even if it is empty."""
    pattern: str = ""
    """What `topics` was resolved from, by whoever registered it."""
    kind: str = ""
    """By what it is a member: `kafka`, `spark`, or empty for a client of the gRPC API."""
    client_id: str = ""
    host: str = ""
    away: bool = False
    """It stepped out: it works on nothing, and another session may have the name at once."""

    @property
    def keeps_a_session(self) -> bool:
        """Whether the client names its session and renews it by its own clock, as `exclusive` requires."""
        return self.renews and bool(self.session) and not self.minted

    @property
    def stops_first(self) -> bool:
        """Whether a partition may have another owner only after this one has released it, in groups of either mode: a
        Kafka client commits what it has done when it is told to let go, and expects that nobody has begun there yet."""
        return self.kind == KAFKA_MEMBER

    @property
    def wants_every_topic(self) -> bool:
        return not self.topics and not self.explicit_topics

    def wants(self, topic: str) -> bool:
        return topic in self.topics or self.wants_every_topic


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic: str
    partition: int
    owner: str
    status: str = "Active"
    session: str = ANY_SESSION
    epoch: int = 0
    """0: written before epochs were known; the group's floor counts instead."""
    topic_id: str = ""
    """The topic's identity when it was assigned; another one in its config means the topic was recreated."""
    principal: str | msgspec.UnsetType = msgspec.UNSET
    """The identity that the owner's session is bound to; left out where none is known."""


class Handoff(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic: str
    partition: int
    old_owner: str
    new_owner: str
    phase: Phase = Phase.WARMING
    started_at: int = 0
    step: Step | msgspec.UnsetType = msgspec.UNSET
    old_session: str = ANY_SESSION
    new_session: str = ANY_SESSION
    handoff_id: str = ""
    cause: Cause = Cause.JOINED
    old_epoch: int = 0
    """The epoch that the old owner holds and is asked to release."""
    epoch: int = 0
    """The epoch the new owner got, once flipped."""
    failure: str = ""
    warm: bool = False
    """The new owner held a standby copy."""
    unacked: tuple[str, ...] = ()
    """Routers without whose acks it went on, because the freeze was overdue."""

    @property
    def identity(self) -> str:
        """The handoff's id. Handoffs of the upstream service have none; their two owners identify them for an ack."""
        return self.handoff_id or f"{self.old_owner}>{self.new_owner}"

    @property
    def freezes(self) -> bool:
        """Whether routers hold the partition's requests back: from the first step of the phase Ready to the flip."""
        return self.at.phase is Phase.READY

    @property
    def awaits_routers(self) -> bool:
        """Whether it goes on when the routers have acked the freeze; an ack that is late changes nothing."""
        return self.at in (Step.READY, Step.FREEZING)

    @property
    def is_flipped(self) -> bool:
        return self.at is Step.COMPLETE

    @property
    def to_nobody(self) -> bool:
        """Whether the old owner releases and no consumer takes over."""
        return not self.new_owner

    @property
    def at(self) -> Step:
        """The step; for a record that has none, the step that its phase implies."""
        if self.step is not msgspec.UNSET:
            return self.step
        match self.phase:
            case Phase.WARMING:
                return Step.WARMING
            case Phase.READY:
                return Step.READY
            case Phase.COMPLETE:
                return Step.COMPLETE


class Standbys(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The consumers that are to hold a warm copy; advisory. By name, because a copy outlives the session that made
    it."""

    topic: str
    partition: int
    holders: tuple[str, ...] = ()
    topic_id: str = ""
    """Of the topic the copies are of."""


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition_count: int
    topic_id: str = ""
    replica_racks: tuple[tuple[str, ...], ...] = ()
    """Racks of each partition's replicas, if Kafka reported them."""
    source: str = ""
    """Who set it: `settings`, `admin`, `kafka`, `` for upstream's."""
    missing: bool = False
    """Kafka has no such topic any more. As long as that is so, its committed offsets count for nothing."""


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a group, stored as `config/group`. Times in seconds."""

    strategy: str = "sticky_balanced"
    strategy_options: dict[str, Any] = {}
    handoff_mode: HandoffMode = HandoffMode.OVERLAP
    standby_count: int = 0
    copartitioned: tuple[tuple[str, ...], ...] = ()
    """Sets of topics that move as one: partition n of each, as far as all of them have one."""
    debounce: float = 1.0
    warming_timeout: float = 300.0
    freeze_timeout: float = 10.0
    freeze_overdue: FreezeOverdue = FreezeOverdue.ABANDON
    release_timeout: float = 60.0
    balance_backoff: float = 60.0
    """The cooldown: how long a partition is not moved for balance after a move of it was abandoned."""
    max_concurrent_handoffs: int = 1000
    warm_concurrency: int = 100
    quarantine_after: int = 3
    """Distinct owners that must fail to warm a partition before it is quarantined."""
    paused: bool = False
    rollout: str = ""
    """A rolling deploy: the generation that takes over, `auto` for the one that registered last, empty for none."""
    rollout_cap: int = 0
    """Most partitions a member of the new generation gets while a rollout is on; 0: its fair share."""
    use_loads: bool = False
    """Whether the strategy gets the loads that consumers report; else all partitions weigh the same."""
    assignor: Assignor = Assignor.MEMBER
    """Of a classic Kafka group; all others are assigned by the service."""
    rebalance_requests: int = 0
    """Incremented by an operator to request a rebalance now; it also lifts the quarantine."""


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    failed: tuple[str, ...]
    reason: str = ""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about a group that an operator should know. Readers ignore kinds they do not know."""

    kind: str
    message: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    generation: int = 0
    epoch_floor: int = 0
    quarantined: tuple[Quarantined, ...] = ()
    forgiven: int = 0
    """The `rebalance_requests` that last emptied the quarantine."""
    conditions: tuple[Condition, ...] = ()
    """Conditions that only the leader can detect."""


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    lease_id: int = NO_LEASE
    address: str = ""


class InstanceRecord(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    address: str = ""
    started_at: int = 0
    draining: bool = False
    """Set before it shuts down, so that no group is handed to it."""
    incarnation: str = ""
    """One per process: distinguishes a restarted instance from its predecessor of the same name."""


class GroupIndex(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    kind: str = "assigner"
    """A group is of one kind at a time; mixing is refused."""
    prefix: str = ""
    """Where its keys are, if not under its own name."""
    changing_to: str = ""
    """The kind it is being changed to. Meanwhile nobody registers: whoever wants to, ends the change first."""


class StoreLife(msgspec.Struct, frozen=True, kw_only=True):
    incarnation: str
    began_at: int = 0
    """Wall time in milliseconds, for display only."""


class EpochFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The highest epoch of any group that was deleted."""

    epoch_floor: int = 0


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """A registered router, under its lease."""

    router_name: str
    session: str = ANY_SESSION
    registered_at: int = 0
    instance: str = ""
    """The service instance at which it registered last."""
    ttl: float = 0.0
    principal: str = ""
    """The identity that the session is bound to; empty: it registered where identity was off."""
    displaced: tuple[str, ...] = ()
    """Digests of sessions that lost the name to a later one: they never get it back."""


class RouterAck(msgspec.Struct, frozen=True, kw_only=True):
    """A router's ack of a freeze, under the router's lease."""

    router_name: str
    topic: str
    partition: int
    handoff_id: str
    session: str = ANY_SESSION
    """The router's session. The ack of a session that is not the registered one does not count."""
    epoch: int = 0
    """The epoch of the old owner, under which the partition is frozen."""
    acked_at: int = 0


class Move(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A move in a group's history."""

    at: int
    topic: str
    partition: int
    old: str
    new: str
    cause: Cause
    generation: int
    epoch: int
    warm: bool = False
    """The new owner held a standby copy."""
    unacked: tuple[str, ...] = ()
    """Routers that had not acked the freeze."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    moves: tuple[Move, ...] = ()


class Loads(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Loads of a block of a topic's partitions, or of a group's nodes, as packed numbers."""

    at: int
    """Wall time of the last write."""
    topic: str = ""
    first: int = 0
    """The partition the lists begin with."""
    nodes: tuple[str, ...] = ()
    """Instead of a topic: the consumers the lists are about."""
    loads: bytes = b""
    """32-bit floats, little endian; NaN where nothing is known."""
    until: bytes = b""
    """32-bit unsigned integers, little endian: the wall time up to which each load counts."""


class Offset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A partition's committed offset, as its owner reported it."""

    offset: int
    """The next one to read."""
    epoch: int = 0
    """The ownership under which it was committed; 0: set by an operator."""
    leader_epoch: int = -1
    """Kafka's leader epoch of the last record; -1: not reported."""
    metadata: str = ""
    committed_at: int = 0
    """Wall time, for people only."""
    topic_id: str = ""
    """The topic's identity: the offset of one that was deleted says nothing about its successor."""
    generation: int = 0
    """Of the classic Kafka group whose member committed it; 0: it was no such member."""


R = TypeVar("R", bound=msgspec.Struct)


class Stored(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A record with its key and revision, for preconditions, and its unknown fields, which survive a rewrite."""

    record: R
    key: str
    mod_revision: int
    create_revision: int
    lease: int = NO_LEASE
    extra: dict[str, Any] = {}

    def encode(self, record: R) -> bytes:
        """Encode another record in place of this one, with the unknown fields of this one."""
        return encode(record, self.extra)


_encoder = msgspec.json.Encoder()
_any = msgspec.json.Decoder()


def encode(record: msgspec.Struct, extra: dict[str, Any] | None = None) -> bytes:
    if not extra:
        return _encoder.encode(record)
    return _encoder.encode({**extra, **msgspec.to_builtins(record)})


def decode(kind: type[R], value: bytes) -> tuple[R, dict[str, Any]]:
    """Decode a record, and the fields that its class does not know. Raises `UnreadableRecord`."""
    try:
        fields = _any.decode(value)
        if not isinstance(fields, dict):
            raise UnreadableRecord(f"{kind.__name__} record is not a JSON object")
        record = msgspec.convert(fields, kind, strict=True)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(f"unreadable {kind.__name__} record: {error}") from error
    known = _field_names(kind)
    if len(fields) <= len(known) and known.issuperset(fields):
        return record, {}
    return record, {name: value for name, value in fields.items() if name not in known}


def stored(kind: type[R], entry: Entry) -> Stored[R]:
    record, extra = decode(kind, entry.value)
    return Stored(record, entry.key, entry.mod_revision, entry.create_revision, entry.lease, extra)


_names: dict[type, frozenset[str]] = {}


def _field_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    names = _names.get(kind)
    if names is None:
        names = _names[kind] = frozenset(kind.__struct_encode_fields__)
    return names
