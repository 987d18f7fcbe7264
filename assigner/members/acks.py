"""Writes the acks of consumers, Ready and Released, to the store.

`assigner.core.handoff.acks` decides what an ack does to its handoff, `assigner.streams.acks` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from assigner.api import RejectedAck
from assigner.core.group import GroupState
from assigner.core.handoff.acks import check_may_be_late, ready, released
from assigner.core.writes import Write
from assigner.members.streams import ConsumerStream
from assigner.model.commands import Ack
from assigner.model.records import Consumer, Handoff, Stored
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.mirror import GroupMirror
from assigner.store import Store
from assigner.streams.acks import AckDecisions, AckWriter


class HandoffAcks:
    def __init__(self, store: Store, writer: BatchWriter) -> None:
        self._writer = AckWriter(store, writer)

    async def ready(
        self, mirror: GroupMirror, consumer: Stored[Consumer], stream: ConsumerStream | None, acks: Sequence[Ack]
    ) -> list[RejectedAck]:
        """Write Ready acks and return the rejected ones. `stream`: the consumer's stream, if it is at this instance."""
        return await self._writer.write_all(mirror, acks, _Ready(mirror.state, consumer.record, stream))

    async def released(self, mirror: GroupMirror, consumer: Stored[Consumer], acks: Sequence[Ack]) -> list[RejectedAck]:
        return await self._writer.write_all(mirror, acks, _Released(consumer.record))


class _Ready(AckDecisions[Ack]):
    def __init__(self, state: GroupState, consumer: Consumer, stream: ConsumerStream | None) -> None:
        self._state = state
        self._consumer = consumer
        self._stream = stream

    def decide(self, ack: Ack, handoff: Stored[Handoff]) -> Write | None:
        return ready(handoff, self._consumer, ack)

    def unmatched(self, ack: Ack) -> None:
        targeted = self._stream.ever_targeted if self._stream else None
        check_may_be_late(self._state, self._consumer, ack, targeted)


class _Released(AckDecisions[Ack]):
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def decide(self, ack: Ack, handoff: Stored[Handoff]) -> Write | None:
        return released(handoff, self._consumer, ack)
