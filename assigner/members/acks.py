"""What consumers answer about handoffs: Ready and Released.

An answer counts only for the handoff it is about: named by its id, or, from clients that know none, by partition, name
and step. Repeats and late answers of a registered consumer are taken politely and change nothing, because an error
would end a client that did nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from assigner.api import RejectedAck
from assigner.core.writes import Purpose, Write
from assigner.errors import AssignerError, NotTheTarget, OutcomeUnknown, StoreError, StoreUnavailable, UnknownTopic
from assigner.members.streams import ConsumerStream
from assigner.model.commands import Ack
from assigner.model.keys import TopicPartition
from assigner.model.records import Consumer, Handoff, Step, Stored, stored
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.mirror import GroupMirror
from assigner.store import Committed, Conflict, Delete, Found, ModRevisionIs, Operation, Put, Store

TRIES = 4
Change = Callable[[Stored[Handoff]], Operation | None]
"""What the answer does to the handoff; None: nothing any more."""


class HandoffAcks:
    def __init__(self, store: Store, writer: BatchWriter) -> None:
        self._store = store
        self._writer = writer

    async def ready(
        self,
        mirror: GroupMirror,
        consumer: Stored[Consumer],
        seat: ConsumerStream | None,
        answers: Sequence[Ack],
    ) -> list[RejectedAck]:
        def change(answer: Ack) -> Change:
            return lambda handoff: _ready(handoff, consumer.record, answer)

        def untaken(answer: Ack) -> None:
            if not _may_be_late(mirror, consumer.record, seat, answer):
                raise NotTheTarget(
                    f"no handoff for {answer.tp}: consumer {consumer.record.consumer_name!r} was not asked to warm it"
                )

        return await self._take(mirror, answers, change, untaken)

    async def released(
        self, mirror: GroupMirror, consumer: Stored[Consumer], answers: Sequence[Ack]
    ) -> list[RejectedAck]:
        def change(answer: Ack) -> Change:
            return lambda handoff: _released(handoff, consumer.record, answer)

        return await self._take(mirror, answers, change, lambda answer: None)

    async def _take(
        self,
        mirror: GroupMirror,
        answers: Sequence[Ack],
        change: Callable[[Ack], Change],
        untaken: Callable[[Ack], None],
    ) -> list[RejectedAck]:
        """All at once on what is mirrored, so that they share transactions; then one by one what that did not do."""
        writes = [self._write(mirror.state.handoffs.get(answer.tp), change(answer)) for answer in answers]
        outcomes = await self._writer.write_all([write for write in writes if write])
        by_write = {id(write): outcome for write, outcome in outcomes}
        refused: list[RejectedAck] = []
        for answer, write in zip(answers, writes, strict=True):
            try:
                outcome = by_write.get(id(write))
                if isinstance(outcome, Committed):
                    continue
                _check_partition(mirror, answer.tp)
                if not await self._again(mirror, answer.tp, change(answer)):
                    untaken(answer)
            except AssignerError as error:
                refused.append(RejectedAck(answer.tp, error))
        return refused

    def _write(self, handoff: Stored[Handoff] | None, change: Change) -> Write | None:
        operation = change(handoff) if handoff else None
        if handoff is None or operation is None:
            return None
        return Write(Purpose.ANSWER, (ModRevisionIs(handoff.key, handoff.mod_revision),), (operation,))

    async def _again(self, mirror: GroupMirror, tp: TopicPartition, change: Change) -> bool:
        """By a fresh read: the mirror may lag behind what the consumer was told by another instance. Whether the
        answer was about the handoff that is there."""
        for _ in range(TRIES):
            result = await self._store.get(mirror.state.keys.handoff(tp))
            write = self._write(stored(Handoff, result.entry) if isinstance(result, Found) else None, change)
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


def _ready(handoff: Stored[Handoff], consumer: Consumer, answer: Ack) -> Operation | None:
    record = handoff.record
    ours = record.new_owner == consumer.consumer_name and record.new_session == consumer.session
    if not ours or record.at is not Step.WARMING or not _same(record, answer):
        return None
    step = Step.FAILED if answer.failure else Step.READY
    moved = msgspec.structs.replace(record, step=step, phase=step.phase, failure=answer.failure)
    return Put(handoff.key, handoff.encode(moved))


def _released(handoff: Stored[Handoff], consumer: Consumer, answer: Ack) -> Operation | None:
    record = handoff.record
    ours = record.old_owner == consumer.consumer_name and record.old_session == consumer.session
    if not ours or not _same(record, answer):
        return None
    match record.at:
        case Step.COMPLETE:
            return Delete(handoff.key)
        case Step.RELEASING:
            step = Step.RELEASED
            return Put(handoff.key, handoff.encode(msgspec.structs.replace(record, step=step, phase=step.phase)))
        case _:
            return None


def _same(handoff: Handoff, answer: Ack) -> bool:
    return not answer.handoff_id or handoff.handoff_id == answer.handoff_id


def _check_partition(mirror: GroupMirror, tp: TopicPartition) -> None:
    topic = mirror.state.topics.get(tp.topic)
    if topic is None and tp not in mirror.state.handoffs and tp not in mirror.state.assignments:
        raise UnknownTopic(f"topic {tp.topic!r} is not known in group {mirror.group!r}")
    if topic and tp.partition >= topic.record.partition_count and tp not in mirror.state.handoffs:
        raise UnknownTopic(
            f"partition {tp} does not exist: the topic has partitions 0 to {topic.record.partition_count - 1}"
        )


def _may_be_late(mirror: GroupMirror, consumer: Consumer, seat: ConsumerStream | None, answer: Ack) -> bool:
    """Whether the consumer may have been asked at some time. Only who surely never was is refused."""
    if answer.handoff_id or seat is None:
        return True
    held = mirror.state.assignments.get(answer.tp)
    return answer.tp in seat.ever_targeted or bool(held and held.record.owner == consumer.consumer_name)
