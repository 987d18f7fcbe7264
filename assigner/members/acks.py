"""Writes the acks of consumers, Ready and Released, to the store.

`assigner.core.handoff.acks` decides what an ack does to its handoff. The acks of one call are first tried together on
the mirrored handoffs, so that they share transactions; those that were not written are tried one by one on a fresh
read, because the mirror may lag behind what another instance sent to the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assigner.api import RejectedAck
from assigner.core.handoff.acks import check_may_be_late, check_partition, ready, released
from assigner.core.writes import Write
from assigner.errors import AssignerError, OutcomeUnknown, StoreError, StoreUnavailable
from assigner.members.streams import ConsumerStream
from assigner.model.commands import Ack
from assigner.model.keys import TopicPartition
from assigner.model.records import Consumer, Handoff, Stored, stored
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.mirror import GroupMirror
from assigner.store import Committed, Conflict, Found, Store

TRIES = 4
Decide = Callable[[Stored[Handoff]], Write | None]
"""What one ack does to the handoff; None: nothing."""


class HandoffAcks:
    def __init__(self, store: Store, writer: BatchWriter) -> None:
        self._store = store
        self._writer = writer

    async def ready(
        self, mirror: GroupMirror, consumer: Stored[Consumer], stream: ConsumerStream | None, acks: Sequence[Ack]
    ) -> list[RejectedAck]:
        """Write Ready acks and return the rejected ones. `stream`: the consumer's stream, if it is at this instance."""

        def decide(ack: Ack) -> Decide:
            return lambda handoff: ready(handoff, consumer.record, ack)

        def unmatched(ack: Ack) -> None:
            check_may_be_late(mirror.state, consumer.record, ack, stream.ever_targeted if stream else None)

        return await self._write_all(mirror, acks, decide, unmatched)

    async def released(self, mirror: GroupMirror, consumer: Stored[Consumer], acks: Sequence[Ack]) -> list[RejectedAck]:
        def decide(ack: Ack) -> Decide:
            return lambda handoff: released(handoff, consumer.record, ack)

        return await self._write_all(mirror, acks, decide, lambda ack: None)

    async def _write_all(
        self,
        mirror: GroupMirror,
        acks: Sequence[Ack],
        decide: Callable[[Ack], Decide],
        unmatched: Callable[[Ack], None],
    ) -> list[RejectedAck]:
        """Write the acks. `unmatched` is called for an ack that changes nothing, and raises if that is an error."""
        writes = [_decided(mirror.state.handoffs.get(ack.tp), decide(ack)) for ack in acks]
        outcomes = await self._writer.write_all([write for write in writes if write])
        by_write = {id(write): outcome for write, outcome in outcomes}
        rejected: list[RejectedAck] = []
        for ack, write in zip(acks, writes, strict=True):
            try:
                if isinstance(by_write.get(id(write)), Committed):
                    continue
                check_partition(mirror.state, ack.tp)
                if not await self._write_fresh(mirror, ack.tp, decide(ack)):
                    unmatched(ack)
            except AssignerError as error:
                rejected.append(RejectedAck(ack.tp, error))
        return rejected

    async def _write_fresh(self, mirror: GroupMirror, tp: TopicPartition, decide: Decide) -> bool:
        """Decide on the handoff as the store has it and write that; whether the ack changed anything."""
        for _ in range(TRIES):
            result = await self._store.get(mirror.state.keys.handoff(tp))
            write = _decided(stored(Handoff, result.entry) if isinstance(result, Found) else None, decide)
            if write is None:
                return False
            match await self._writer.write(write):
                case Committed():
                    return True
                case Conflict() | OutcomeUnknown():
                    continue
                case StoreError() as error:
                    raise error
        raise StoreUnavailable(f"the handoff of {tp} can't be written just now; answer again")


def _decided(handoff: Stored[Handoff] | None, decide: Decide) -> Write | None:
    return decide(handoff) if handoff else None
