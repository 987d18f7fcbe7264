"""What a consumer knows of one partition, and what it counts. `state` derives everything else from it."""

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
        "failures",
        "gate",
        "granted",
        "handed",
        "highest",
        "keeps",
        "outdated",
        "over",
        "pausing",
        "release",
        "running",
        "spoiled",
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
        """The epoch that the service says is ours."""
        self.highest = -1
        """The highest epoch ever granted."""
        self.over = -1
        """Epochs up to this one were released or taken away, for good."""
        self.handed: int | None = None
        """The epoch the handler was told to work in and not yet to stop."""
        self.spoiled = False
        """The handler was stopped halfway through `assigned`: it has to hear of the loss before anything else."""
        self.why = ""
        """Why the grant was lost."""
        self.release: Release | None = None
        self.warm: Warm | None = None
        self.warmed: Warmed | None = None
        self.discard = False
        """A finished warm copy is not wanted any more, and the handler has not heard of it."""
        self.standby = False
        """The service wants a copy here."""
        self.keeps = False
        """The handler was told to have one and not yet to drop it."""
        self.outdated = False
        """The copy that the handler keeps is not the one that is wanted."""
        self.running: Call | None = None
        self.cancelled = False
        self.failures = 0
        self.pausing = False

    def is_stale(self, epoch: int) -> bool:
        """Whether a grant of this epoch tells of the past: such a grant never reopens a gate."""
        return epoch <= self.over or epoch < self.highest

    def begin_anew(self, why: str) -> None:
        """Epochs count from the beginning again: none that was seen before says anything about those to come."""
        self.over = self.highest = -1
        self.granted, self.why = None, why
        # Even if the same number is granted again, it is another ownership.
        self.spoiled = self.handed is not None

    def end(self, epoch: int) -> None:
        """Every epoch up to this one is over and stays so."""
        self.over = max(self.over, epoch)
        if self.granted is not None and self.granted <= self.over:
            self.granted = None


class ClientCounters:
    """What happened so far, for `statistics()`."""

    __slots__ = ("failures", "leases_lost", "refusals", "released", "revoked", "stale", "warmed")

    def __init__(self) -> None:
        self.warmed = self.released = self.revoked = self.stale = 0
        self.failures = self.refusals = self.leases_lost = 0
