"""What a consumer hears and what it then does: the values between the client's state and its driver."""

from __future__ import annotations

from enum import Enum

import msgspec

from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition

# --- what comes in -----------------------------------------------------------------------------------------------


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
    order: Warm


class CallRelease(msgspec.Struct, frozen=True):
    owned: Ownership
    order: Release


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


class AckKind(str, Enum):
    READY = "ready"
    RELEASED = "released"
