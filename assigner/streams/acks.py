"""Writes acks of handoffs: Ready and Released of consumers, and freezes that routers have acknowledged.

The core decides what an ack does to its handoff. The acks of one call are first tried together on the mirrored
handoffs, so that they share transactions; those that were not written are tried one by one on a fresh read, because the
mirror may lag behind what another instance sent to the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from assigner.api import RejectedAck
from assigner.core.handoff.acks import check_partition
from assigner.core.writes import Write
from assigner.errors import AssignerError, OutcomeUnknown, StoreError, StoreUnavailable
from assigner.model.keys import TopicPartition
from assigner.model.records import Handoff, Stored, stored
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.mirror import GroupMirror
from assigner.store import Committed, Conflict, Found, Store

TRIES = 4


class PartitionAck(Protocol):
    @property
    def tp(self) -> TopicPartition: ...


A = TypeVar("A", bound=PartitionAck)


class AckDecisions(ABC, Generic[A]):
    """What the acks of one call do, decided on mirrored and on fresh records."""

    @abstractmethod
    def decide(self, ack: A, handoff: Stored[Handoff]) -> Write | None:
        """The write of the ack; None: it changes nothing. Raises why the ack is rejected."""

    def unmatched(self, ack: A) -> None:
        """Called for an ack that changes nothing; raises if that is an error."""
        return

    async def refresh(self) -> None:
        """Read again what `decide` looks at besides the handoff, and raise if the caller may not ack any more."""
        return


class AckWriter:
    def __init__(self, store: Store, writer: BatchWriter) -> None:
        self._store = store
        self._writer = writer

    async def write_all(self, mirror: GroupMirror, acks: Sequence[A], decisions: AckDecisions[A]) -> list[RejectedAck]:
        """Write the acks and return the rejected ones."""
        writes = [_mirrored(mirror.state.handoffs.get(ack.tp), ack, decisions) for ack in acks]
        outcomes = await self._writer.write_all([write for write in writes if write])
        by_write = {id(write): outcome for write, outcome in outcomes}
        rejected: list[RejectedAck] = []
        for ack, write in zip(acks, writes, strict=True):
            try:
                if isinstance(by_write.get(id(write)), Committed):
                    continue
                check_partition(mirror.state, ack.tp)
                if not await self._write_fresh(mirror, ack, decisions):
                    decisions.unmatched(ack)
            except AssignerError as error:
                rejected.append(RejectedAck(ack.tp, error))
        return rejected

    async def _write_fresh(self, mirror: GroupMirror, ack: A, decisions: AckDecisions[A]) -> bool:
        """Decide on the records as the store has them and write that; whether the ack changed anything."""
        for _ in range(TRIES):
            result = await self._store.get(mirror.state.keys.handoff(ack.tp))
            await decisions.refresh()
            write = decisions.decide(ack, stored(Handoff, result.entry)) if isinstance(result, Found) else None
            if write is None:
                return False
            match await self._writer.write(write):
                case Committed():
                    return True
                case Conflict() | OutcomeUnknown():
                    continue
                case StoreError() as error:
                    raise error
        raise StoreUnavailable(f"the handoff of {ack.tp} can't be written just now; ack again")


def _mirrored(handoff: Stored[Handoff] | None, ack: A, decisions: AckDecisions[A]) -> Write | None:
    """Decide by the mirror. What it would reject is decided again on a fresh read."""
    try:
        return decisions.decide(ack, handoff) if handoff else None
    except AssignerError:
        return None
