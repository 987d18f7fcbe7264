"""What a consumer hears and what it then does: the values between the client's state and its driver."""

from __future__ import annotations

from enum import Enum

import msgspec

from assigner.model.keys import TopicPartition

# --- what comes in -----------------------------------------------------------------------------------------------


class WarmOrder(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    handoff_id: str
    current_owner: str = ""
    cause: str = ""
    standby: bool = False
    """A standby copy is held here already."""


class ReleaseOrder(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    epoch: int
    handoff_id: str
    new_owner: str = ""
    cause: str = ""
    standby: bool = False
    """The copy is to be kept: this consumer will stand by."""


class CancelOrder(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    handoff_id: str


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the stream. Taken as a whole: only what holds at its end counts."""

    full: bool = False
    """`assigned` is everything that is owned, `standbys_added` everything a copy is held of."""
    assigned: tuple[tuple[TopicPartition, int], ...] = ()
    unassigned: tuple[tuple[TopicPartition, int], ...] = ()
    cancels: tuple[CancelOrder, ...] = ()
    warms: tuple[WarmOrder, ...] = ()
    releases: tuple[ReleaseOrder, ...] = ()
    standbys_removed: tuple[TopicPartition, ...] = ()
    standbys_added: tuple[TopicPartition, ...] = ()
    ttl: float = 0.0
    session: str = ""
    generation: int = 0
    exclusive: bool = False
    incarnation: str = ""
    """Which life of the service's store this is; empty: the service did not say."""


class StaleGrant(msgspec.Struct, frozen=True):
    """A grant that told of the past and was left alone."""

    tp: TopicPartition
    epoch: int
    known: int
    """The epoch that is over, or in force, already."""


class Done(msgspec.Struct, frozen=True):
    pass


class Failed(msgspec.Struct, frozen=True):
    reason: str


class Stopped(msgspec.Struct, frozen=True):
    """The call was cancelled before it came to an end."""

    begun: bool = True


Outcome = Done | Failed | Stopped

# --- what goes out -----------------------------------------------------------------------------------------------


class Ownership(msgspec.Struct, frozen=True, order=True, gc=False):
    topic: str
    partition: int
    epoch: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.epoch}"


class CallAssigned(msgspec.Struct, frozen=True):
    owned: Ownership


class CallWarm(msgspec.Struct, frozen=True):
    order: WarmOrder


class CallRelease(msgspec.Struct, frozen=True):
    owned: Ownership
    order: ReleaseOrder


class CallRevoked(msgspec.Struct, frozen=True):
    owned: Ownership
    reason: str


class CallDiscard(msgspec.Struct, frozen=True):
    tp: TopicPartition


class CallStandby(msgspec.Struct, frozen=True):
    tp: TopicPartition


class CallNoStandby(msgspec.Struct, frozen=True):
    tp: TopicPartition


class Pause(msgspec.Struct, frozen=True):
    """Nothing to call, only time to let pass, before `assigned` is tried again."""

    seconds: float


Call = CallAssigned | CallWarm | CallRelease | CallRevoked | CallDiscard | CallStandby | CallNoStandby | Pause


class Start(msgspec.Struct, frozen=True):
    tp: TopicPartition
    call: Call


class Cancel(msgspec.Struct, frozen=True):
    """Stop the call that is running; its end is reported all the same."""

    tp: TopicPartition


Action = Start | Cancel


class AnswerKind(str, Enum):
    READY = "ready"
    RELEASED = "released"


class Ack(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    handoff_id: str
    failure: str = ""
