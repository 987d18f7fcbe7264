"""The facts that a consumer knows about one partition, from which `state` derives the next call, and its counters."""

from __future__ import annotations

import msgspec

from assigner.core.client.gate import Gate, Lease
from assigner.core.client.messages import Call
from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition


class Warmed(msgspec.Struct, frozen=True):
    handoff_id: str
    failure: str


class Partition:
    """The facts about one partition."""

    __slots__ = (
        "cancelled",
        "discard",
        "drop_copy",
        "failures",
        "gate",
        "granted",
        "handler_epoch",
        "has_copy",
        "highest",
        "interrupted",
        "over",
        "pausing",
        "release",
        "running",
        "standby",
        "tp",
        "warm",
        "warmed",
        "why",
    )

    def __init__(self, tp: TopicPartition, lease: Lease) -> None:
        self.tp = tp
        self.gate = Gate(tp, lease)
        self.granted: int | None = None
        """The epoch that the service granted, and has not taken back."""
        self.highest = -1
        """The highest epoch ever granted."""
        self.over = -1
        """Epochs up to this one were released or revoked, and never become valid again."""
        self.handler_epoch: int | None = None
        """The epoch passed to `assigned`, until `release` or `revoked` has been called for it."""
        self.interrupted = False
        """`assigned` was cancelled before it returned, so `revoked` has to be called before anything else."""
        self.why = ""
        """Why the grant was lost."""
        self.release: Release | None = None
        self.warm: Warm | None = None
        self.warmed: Warmed | None = None
        self.discard = False
        """A warm copy is no longer wanted, and `discard` has not been called for it."""
        self.standby = False
        """The service wants a copy here."""
        self.has_copy = False
        """`standby_added` was called, and `standby_removed` was not."""
        self.drop_copy = False
        """`standby_removed` has to be called for the present copy, even if a copy is wanted again."""
        self.running: Call | None = None
        self.cancelled = False
        self.failures = 0
        self.pausing = False

    def is_stale(self, epoch: int) -> bool:
        """Whether a grant of this epoch is out of date; such a grant never reopens a gate."""
        return epoch <= self.over or epoch < self.highest

    def begin_anew(self, why: str) -> None:
        """Forget all epochs, because the store lost its data and counts epochs from the beginning again."""
        self.over = self.highest = -1
        self.granted, self.why = None, why
        # The same number may be granted again, for another ownership.
        self.interrupted = self.handler_epoch is not None
        self.gate.forget()

    def end(self, epoch: int) -> None:
        """Record that every epoch up to this one is over."""
        self.over = max(self.over, epoch)
        if self.granted is not None and self.granted <= self.over:
            self.granted = None


class ClientCounters:
    """Counters of events since the start, for `statistics()`."""

    __slots__ = ("failures", "leases_lost", "refusals", "released", "revoked", "stale", "warmed")

    def __init__(self) -> None:
        self.warmed = self.released = self.revoked = self.stale = 0
        self.failures = self.refusals = self.leases_lost = 0
