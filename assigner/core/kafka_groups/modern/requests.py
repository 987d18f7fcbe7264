"""A heartbeat of Kafka 4's protocol, the errors that may answer it, and the checks of a request in the broker's order.

`HeartbeatError` is a closed type on purpose: clients end for good at other codes, such as 69 (GROUP_ID_NOT_FOUND) and
113 (STALE_MEMBER_EPOCH), which belong to other calls. A group that nobody knows is answered with 25.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

import msgspec

from assigner.errors import (
    AssignerError,
    Evicted,
    FailedPrecondition,
    InvalidInput,
    InvalidName,
    LimitReached,
    NotRegistered,
    PermissionDenied,
    SessionHeld,
    Superseded,
    UnknownGroup,
)
from assigner.model.keys import TopicPartition
from assigner.model.names import check_name, session_digest
from assigner.model.records import Consumer, Stored

JOIN = 0
LEAVE = -1
STEP_OUT = -2
"""A static member leaves for a while, and keeps its partitions."""
_MAX_CLIENT_ID = 120
"""Characters of a client id in a member's name, which has room for a member id beside it."""
_MAX_MEMBER_ID = 100


class HeartbeatError(IntEnum):
    """Every error that may answer a heartbeat, under Kafka's names."""

    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    UNKNOWN_MEMBER_ID = 25
    GROUP_AUTHORIZATION_FAILED = 30
    INVALID_REQUEST = 42
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    INVALID_REGULAR_EXPRESSION = 128


class Refusal(msgspec.Struct, frozen=True):
    """The error that answers a heartbeat, and its message."""

    code: HeartbeatError
    message: str


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A ConsumerGroupHeartbeat. None: as the member said before."""

    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout: float | None = None
    """Seconds."""
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    """RE2; empty: none."""
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None
    """What the member has now."""

    @property
    def joins(self) -> bool:
        return self.member_epoch == JOIN

    @property
    def leaves(self) -> bool:
        return self.member_epoch in (LEAVE, STEP_OUT)

    @property
    def states_subscription(self) -> bool:
        return self.names is not None or self.pattern is not None

    @property
    def is_full(self) -> bool:
        """Whether it says everything, upon which the member is told everything."""
        return self.rebalance_timeout is not None and self.states_subscription and self.owned is not None


KAFKA_ASSIGNORS = frozenset({"range", "uniform"})
"""What Kafka's brokers call theirs. Clients ask for one by default, and get the group's strategy all the same."""


def check_request(request: Heartbeat, version: int, assignors: Collection[str]) -> Refusal | None:
    """Check what a request says by itself. `assignors`: the names that a member may ask for."""
    wrong = _wrong(request, version)
    if wrong:
        return Refusal(HeartbeatError.INVALID_REQUEST, wrong)
    if request.assignor is not None and request.assignor not in assignors:
        return Refusal(
            HeartbeatError.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported; the group's strategy is its option, not a member's: "
            f"leave group.remote.assignor out, or set it to one of {', '.join(sorted(assignors))}",
        )
    return None


def _wrong(request: Heartbeat, version: int) -> str:
    epoch = request.member_epoch
    if not request.member_id and (version >= 1 or epoch > JOIN or epoch == LEAVE):
        return "MemberId can't be empty."
    if not request.group:
        return "GroupId can't be empty."
    if request.instance_id == "":
        return "InstanceId can't be empty."
    if request.rack == "":
        return "RackId can't be empty."
    if epoch == JOIN:
        return _wrong_in_join(request)
    if epoch == STEP_OUT and request.instance_id is None:
        return "InstanceId can't be null."
    if epoch < STEP_OUT:
        return "MemberEpoch is invalid."
    return ""


def _wrong_in_join(request: Heartbeat) -> str:
    if request.rebalance_timeout is None:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.owned is None or request.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if not request.states_subscription:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return ""


def check_names(request: Heartbeat) -> Refusal | None:
    """Check that the service can keep a member of these names. A broker takes any."""
    try:
        check_name("MemberId", request.member_id)
        if request.instance_id is not None:
            check_name("InstanceId", request.instance_id)
    except InvalidName as error:
        return Refusal(HeartbeatError.INVALID_REQUEST, str(error))
    if len(request.member_id.encode()) > _MAX_MEMBER_ID:
        return Refusal(HeartbeatError.INVALID_REQUEST, f"MemberId is longer than {_MAX_MEMBER_ID} bytes.")
    return None


def check_instance(request: Heartbeat, holder: Stored[Consumer] | None) -> Refusal | None:
    """Check a static member that does not join. `holder`: who is registered under the instance id."""
    if request.instance_id is None or request.joins:
        return None
    if holder is None:
        return unknown_member(request, f"there is no static member {request.instance_id!r}")
    if holder.record.session != request.member_id:
        return Refusal(
            HeartbeatError.FENCED_INSTANCE_ID,
            f"static member {request.instance_id!r} of group {request.group!r} is another process by now; "
            "give each process an instance id of its own",
        )
    return None


def unknown_member(request: Heartbeat, reason: str = "") -> Refusal:
    why = reason or "it is not registered"
    return Refusal(
        HeartbeatError.UNKNOWN_MEMBER_ID,
        f"member {request.member_id!r} is not a member of group {request.group!r}: {why}",
    )


def refusal_of(error: AssignerError) -> Refusal:
    """The error that tells a client what the service's own error means for it. Whatever is not named is answered with
    14, upon which clients keep what they have and try again."""
    message = str(error)
    match error:
        case Evicted():
            return Refusal(HeartbeatError.FENCED_MEMBER_EPOCH, message)
        case NotRegistered() | Superseded() | UnknownGroup():
            return Refusal(HeartbeatError.UNKNOWN_MEMBER_ID, message)
        case SessionHeld():
            return Refusal(HeartbeatError.UNRELEASED_INSTANCE_ID, message)
        case PermissionDenied():
            return Refusal(HeartbeatError.GROUP_AUTHORIZATION_FAILED, message)
        case LimitReached():
            # Of this instance, not of the group: another one may have room.
            return Refusal(HeartbeatError.COORDINATOR_NOT_AVAILABLE, message)
        case InvalidName() | InvalidInput() | FailedPrecondition():
            return Refusal(HeartbeatError.INVALID_REQUEST, message)
        case _:
            return Refusal(HeartbeatError.COORDINATOR_LOAD_IN_PROGRESS, message)


def member_name(client_id: str, member_id: str, instance_id: str | None) -> str:
    """The consumer name of a member: its instance id, or its client id with a digest of its member id.

    The member id itself is its session, and a name is shown to everybody who may look at the group."""
    if instance_id is not None:
        return instance_id
    printable = "".join(character if character.isprintable() else "?" for character in client_id).strip()
    while len(printable.encode("utf-8", "replace")) > _MAX_CLIENT_ID:
        printable = printable[:-1]
    return f"{printable or 'kafka'}/{session_digest(member_id)}"


def instance_id_of(consumer: Consumer) -> str | None:
    """The instance id of a member on record; None: it is not a static member."""
    is_dynamic = consumer.consumer_name.endswith(f"/{session_digest(consumer.session)}")
    return None if is_dynamic else consumer.consumer_name
