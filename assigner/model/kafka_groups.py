"""Defines what gateways and leaders tell each other about classic Kafka groups, and the records of such groups.

The values name the fields of Kafka's requests and responses, without their versions: a gateway fills in what an old
version lacks, and leaves out what it cannot say. Times of requests are in milliseconds, as on Kafka's wire. The
metadata of a protocol and an assignment are bytes that the members alone understand, unless the leader assigns for
them.

`ClassicGroupRecord` is the commit point of a group: members that don't fit into it are in `ClassicMembersRecord`s, and
count only as far as it names them. So nobody reads one half of a generation and one half of another.
"""

from __future__ import annotations

from enum import Enum, IntEnum

import msgspec


class KafkaError(IntEnum):
    """Error codes of Kafka's protocol, under Kafka's names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class ClassicState(str, Enum):
    """The state of a classic group, under the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# --- requests and answers ----------------------------------------------------------------------------------------


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    session_timeout: int
    rebalance_timeout: int
    """Version 0 has none; then it is the session timeout."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata), in the member's order of preference."""
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    requires_known_member: bool = True
    """From version 4 on, a dynamic member is first given its id, and joins with it."""
    can_skip_assignment: bool = True
    """From version 9 on, a leader can be told not to assign."""
    reason: str = ""


class JoinedMember(msgspec.Struct, frozen=True, gc=False):
    """A member as the leader of the group is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: KafkaError = KafkaError.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """Of every member, for the leader alone."""
    skip_assignment: bool = False


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    """Before version 5: None, and not checked. The same for `protocol`."""
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """(member id, assignment), from the leader."""


class SyncAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: KafkaError = KafkaError.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    member_id: str
    generation: int
    instance_id: str | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: KafkaError = KafkaError.NONE


class LeavingMember(msgspec.Struct, frozen=True, gc=False):
    """A member that leaves. With an empty id and an instance id: a static member that an administrator removes."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class LeaveRequest(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    members: tuple[LeavingMember, ...]
    """Before version 3: the one that leaves."""


class LeftMember(msgspec.Struct, frozen=True, gc=False):
    member_id: str
    instance_id: str | None = None
    error: KafkaError = KafkaError.NONE


class LeaveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: KafkaError = KafkaError.NONE
    """Of the whole request. Before version 3 there is one code: this one, or else that of the one member."""
    members: tuple[LeftMember, ...] = ()


class ClassicOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class ClassicCommit(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    offsets: tuple[ClassicOffset, ...]
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    """Below 0: the commit of a consumer that is no member, or of an administrator."""
    knows_missing_groups: bool = True
    """From version 9 on, a group that is not there has a code of its own."""


class PartitionError(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    error: KafkaError = KafkaError.NONE


class CommitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One code per partition, in the order of the request. A refused commit has the same code for each."""

    partitions: tuple[PartitionError, ...] = ()


class ClassicFetch(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    every: bool = False
    """Every offset of the group; else those of `partitions`."""
    partitions: tuple[tuple[str, int], ...] = ()
    """(topic, partition)"""


class FetchedOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    topic: str
    partition: int
    error: KafkaError = KafkaError.NONE
    offset: int = -1
    """-1: none is committed."""
    leader_epoch: int = -1
    metadata: str = ""


class FetchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: KafkaError = KafkaError.NONE
    offsets: tuple[FetchedOffset, ...] = ()
    """In the order of the request."""


class OffsetDeletion(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    partitions: tuple[tuple[str, int], ...]
    """(topic, partition)"""


class OffsetDeletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: KafkaError = KafkaError.NONE
    """Of the whole request; then no partition has a code."""
    partitions: tuple[PartitionError, ...] = ()


# --- descriptions ------------------------------------------------------------------------------------------------


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    protocol_type: str = ""
    state: ClassicState = ClassicState.EMPTY


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    error: KafkaError = KafkaError.NONE
    """If set, not all groups are listed."""
    groups: tuple[ListedGroup, ...] = ()


class ClassicMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    metadata: bytes = b""
    """For the group's protocol; empty unless the group is stable."""
    assignment: bytes = b""


class ClassicGroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    error: KafkaError = KafkaError.NONE
    state: ClassicState = ClassicState.DEAD
    protocol_type: str = ""
    protocol: str = ""
    """Empty unless the group is stable."""
    generation: int = -1
    """For people; Kafka's response has no place for it."""
    leader: str = ""
    members: tuple[ClassicMemberDescription, ...] = ()


# --- records -----------------------------------------------------------------------------------------------------


class ClassicMemberRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    member_id: str
    session_timeout: int
    rebalance_timeout: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    protocols: tuple[tuple[str, bytes], ...] = ()
    """All that it joined with, so that a member that joins again unchanged is recognised after a change of leader."""
    assignment: bytes = b""


class ClassicGroupRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A generation of a group as a whole; written before anybody is told of its assignment."""

    generation: int = 0
    reserved: int = 0
    """No generation above this one was told to anybody. A new leader goes on above it, so that no number means two
    generations."""
    protocol_type: str | None = None
    """None: a simple group, whose consumers never join and only commit offsets."""
    protocol: str | None = None
    leader: str | None = None
    since: int = 0
    """Wall time in milliseconds when it got into its state; from it the offsets of an empty group expire."""
    members: tuple[ClassicMemberRecord, ...] = ()
    """In the order of joining. Without those in blocks."""
    blocks: tuple[int, ...] = ()
    """The numbers of the `ClassicMembersRecord`s with the members, in their order; none: they are all in `members`."""
    next_block: int = 0
    """The number that no block had yet."""

    @property
    def is_empty(self) -> bool:
        return not self.members and not self.blocks


class ClassicMembersRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A block of members. It counts while the group's record names it, and is never changed under its number."""

    members: tuple[ClassicMemberRecord, ...]
