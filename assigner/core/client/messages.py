"""Values between the client's state and its driver: outcomes of handler calls in, actions for the driver out."""

from __future__ import annotations

from enum import Enum

import msgspec

from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition

# --- what comes in -----------------------------------------------------------------------------------------------


class StaleGrant(msgspec.Struct, frozen=True):
    """A grant of an epoch that is over or already in force; the client ignored it."""

    tp: TopicPartition
    epoch: int
    known: int
    """The highest epoch that is over or in force."""


class Done(msgspec.Struct, frozen=True):
    pass


class Failed(msgspec.Struct, frozen=True):
    reason: str


class Stopped(msgspec.Struct, frozen=True):
    """The call was cancelled before it returned."""

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
    """Wait before `assigned` is called again; an action that calls no handler."""

    seconds: float


Call = CallAssigned | CallWarm | CallRelease | CallRevoked | CallDiscard | CallStandby | CallNoStandby | Pause


class Start(msgspec.Struct, frozen=True):
    tp: TopicPartition
    call: Call


class Cancel(msgspec.Struct, frozen=True):
    """Cancel the running call; its outcome is still reported."""

    tp: TopicPartition


Action = Start | Cancel


class AckKind(str, Enum):
    READY = "ready"
    RELEASED = "released"
