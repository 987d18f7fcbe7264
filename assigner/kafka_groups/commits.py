"""Commits and deletes offsets of classic groups, under the fences that admitted it: the term and the group's record.

The machine says whether a member may commit. What it says holds for the group's record as it is at that moment, so the
record's revision is a precondition of the write: a commit that the store gets to when the next generation is on record
has no effect. If the record changed meanwhile for another reason, the machine is asked again.

The offsets lie where those of all other groups do, and are written by the one writer of offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from assigner.api import CommitRefusal, OffsetCommit
from assigner.core.kafka_groups.classic.actions import Limits
from assigner.core.kafka_groups.classic.offsets import check_offset_delete, check_partition, check_topic_delete, refused
from assigner.errors import InvalidName, LimitReached, StoreError
from assigner.kafka_groups.coordinator import LOADING, GroupCoordinator
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicOffset,
    CommitAnswer,
    KafkaError,
    OffsetDeletion,
    OffsetDeletionAnswer,
    PartitionError,
)
from assigner.model.keys import Keys, TopicPartition
from assigner.model.names import check_topic
from assigner.offsets.commit import OffsetService
from assigner.store import Committed, Delete, Store, unchanged

TRIES = 4
"""How often a commit is tried while the group's record changes."""
_PARTITIONS = 1_000_000_000
"""More than a topic has. Gateways know the topics; here it is checked that a key can be made of their names."""

log = get_logger("assigner.kafka_groups.commits")


class ClassicOffsets:
    """Commits and deletes offsets of groups that are led here."""

    def __init__(self, store: Store, keys: Keys, offsets: OffsetService, limits: Limits) -> None:
        self._store = store
        self._keys = keys
        self._offsets = offsets
        self._most_metadata = min(limits.max_metadata, offsets.metadata_bytes or limits.max_metadata)

    async def commit(self, group: GroupCoordinator, commit: ClassicCommit, now: float) -> CommitAnswer:
        with group.committing():
            return await self._commit(group, commit, now)

    async def _commit(self, group: GroupCoordinator, commit: ClassicCommit, now: float) -> CommitAnswer:
        checked = [(one, self._check(one)) for one in commit.offsets]
        wanted = [_commit(one) for one, error in checked if not error]
        errors = {(one.topic, one.partition): error for one, error in checked if error}
        try:
            why = await self._write(group, commit, wanted, errors, now)
        except (LimitReached, StoreError) as error:
            log.warning("classic_commit_failed", group=group.term.group, error=str(error))
            why = LOADING
        if why:
            return refused(commit, why)
        return CommitAnswer(
            partitions=tuple(
                PartitionError(one.topic, one.partition, errors.get((one.topic, one.partition), KafkaError.NONE))
                for one in commit.offsets
            )
        )

    def _check(self, offset: ClassicOffset) -> KafkaError:
        if offset.offset < 0:
            return KafkaError.OFFSET_OUT_OF_RANGE
        if len((offset.metadata or "").encode()) > self._most_metadata:
            return KafkaError.OFFSET_METADATA_TOO_LARGE
        return check_partition(offset, _partitions, self._most_metadata)

    async def _write(
        self,
        group: GroupCoordinator,
        commit: ClassicCommit,
        wanted: list[OffsetCommit],
        errors: dict[tuple[str, int], KafkaError],
        now: float,
    ) -> KafkaError:
        """Write the offsets, and note which could not be. Returns why none was, if the group does not accept them."""
        generation = max(0, commit.generation)
        for _ in range(TRIES):
            why = group.refusal or group.machine.check_commit(commit, now)
            if why:
                return why
            await group.create()
            again = []
            fences = group.records.fences
            for one in await self._offsets.commit_fenced(group.term.group, wanted, fences, generation=generation):
                if one.why is CommitRefusal.FENCED:
                    again.append(one.tp)
                else:
                    errors[one.tp.topic, one.tp.partition] = LOADING
            if not again:
                return KafkaError.NONE
            wanted = [one for one in wanted if one.tp in set(again)]
            await group.settled()
        errors.update(((one.tp.topic, one.tp.partition), LOADING) for one in wanted)
        return KafkaError.NONE

    async def delete(self, group: GroupCoordinator, request: OffsetDeletion) -> OffsetDeletionAnswer:
        why = group.refusal or check_offset_delete(group.machine)
        if why:
            return OffsetDeletionAnswer(error=why)
        errors = {topic: _check_delete(group, topic) for topic, _ in request.partitions}
        doomed = [(topic, partition) for topic, partition in request.partitions if not errors[topic]]
        try:
            if not await self.remove(group, doomed):
                return OffsetDeletionAnswer(error=LOADING)
        except StoreError as error:
            log.warning("classic_offset_deletion_failed", group=group.term.group, error=str(error))
            return OffsetDeletionAnswer(error=LOADING)
        return OffsetDeletionAnswer(
            partitions=tuple(PartitionError(topic, partition, errors[topic]) for topic, partition in request.partitions)
        )

    async def remove(self, group: GroupCoordinator, partitions: Sequence[tuple[str, int]]) -> bool:
        """Delete offsets, while the group is as it is now. Whether it was all the time."""
        return await self._remove(group, [(TopicPartition(*one), None) for one in sorted(set(partitions))])

    async def expire(self, group: GroupCoordinator, offsets: Sequence[tuple[TopicPartition, int]]) -> bool:
        """Delete offsets that are still at these revisions, while the group is as it is now. Whether all of them
        were."""
        return await self._remove(group, offsets)

    async def _remove(self, group: GroupCoordinator, offsets: Sequence[tuple[TopicPartition, int | None]]) -> bool:
        fences, rest = group.records.fences, iter(offsets)
        while part := list(islice(rest, self._store.limits.operations - len(fences))):
            keys = [self._keys.offset(group.term.group, tp) for tp, _ in part]
            unreplaced = [unchanged(key, rev) for key, (_, rev) in zip(keys, part, strict=True) if rev is not None]
            result = await self._store.transact([*fences, *unreplaced], [Delete(key) for key in keys])
            if not isinstance(result, Committed):
                return False
        return True


def _check_delete(group: GroupCoordinator, topic: str) -> KafkaError:
    return KafkaError.NONE if _partitions(topic) is None else check_topic_delete(group.machine, topic)


def _partitions(topic: str) -> int | None:
    try:
        check_topic(topic)
    except InvalidName:
        return None
    return _PARTITIONS


def _commit(one: ClassicOffset) -> OffsetCommit:
    tp = TopicPartition(one.topic, one.partition)
    return OffsetCommit(tp, 0, one.offset, one.leader_epoch, one.metadata or "")
