"""Resets offsets on behalf of an operator: to skip records, to read them again, or to begin anew.

Offsets are written only while no consumer owns their partitions. With `force` they are written without notifying the
owner, which goes on where it is; its next commit replaces them. Either way the offsets they replace are preconditions,
as for a commit, so no try takes effect once a later write is on record.

The loop is not `assigner.storage.update`, because one transaction resets many records. It resolves an unknown outcome
by the same rule: the same transaction is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from assigner.api import NewOffset
from assigner.clock import Clock
from assigner.core.offset_commits import COMPARES
from assigner.errors import FailedPrecondition, InvalidInput, OutcomeUnknown, StoreUnavailable
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Offset, TopicConfig, encode
from assigner.storage.multi_get import multi_get, read_topics
from assigner.store import (
    Absent,
    Committed,
    Compare,
    Delete,
    Found,
    GetResult,
    Operation,
    Put,
    Store,
    revision_of,
    unchanged,
)

TRIES = 4
_NAMED = 5
"""Partitions that an error names."""
Wanted = Mapping[TopicPartition, NewOffset | None]


class OffsetReset:
    def __init__(self, store: Store, keys: Keys, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock

    async def set(self, group: str, offsets: Wanted, *, force: bool) -> int:
        """Set the offsets, or delete them where None, and return how many. In several transactions, so not
        atomically."""
        if not offsets:
            raise InvalidInput("no offsets are given; name at least one partition")
        keys = self._keys.group(group)
        topics = await read_topics(self._store, keys, (tp.topic for tp in offsets))
        _check(topics, offsets)
        if not force:
            await self._check_unowned(group, tuple(offsets), "nothing was set")
        rest, done = iter(sorted(offsets)), 0
        while part := tuple(islice(rest, max(1, self._store.limits.operations // COMPARES))):
            fences = () if force else tuple(Absent(keys.assignment(tp)) for tp in part)
            operations = [self._operation(group, topics[tp.topic], tp, offsets[tp]) for tp in part]
            await self._write(group, part, operations, fences, done)
            done += len(part)
        return done

    async def _write(
        self,
        group: str,
        part: Sequence[TopicPartition],
        operations: Sequence[Operation],
        fences: Sequence[Compare],
        done: int,
    ) -> None:
        keys = [operation.key for operation in operations]
        replaced = [revision_of(found) for found in await multi_get(self._store, keys)]
        doubtful = False
        for _ in range(TRIES):
            compares = [*fences, *map(unchanged, keys, replaced)]
            try:
                result = await self._store.transact(compares, operations, otherwise=keys)
            except OutcomeUnknown:
                # Sent again as it is. If the first took effect, the records show it; if this one does, the first can't.
                doubtful = True
                continue
            if isinstance(result, Committed) or (doubtful and all(map(_is_done, operations, result.reads))):
                return
            if fences:
                await self._check_unowned(group, part, f"{done} were set")
            now = [revision_of(found) for found in result.reads]
            if doubtful and now != replaced:
                others = [str(tp) for tp, was, is_ in zip(part, replaced, now, strict=True) if was != is_]
                raise FailedPrecondition(
                    f"{_named(others)} of group {group!r} was committed or set by somebody else meanwhile; "
                    f"{done} were set: look at what is on record and set the rest again"
                )
            replaced = now
        raise StoreUnavailable(f"offsets of group {group!r} are being changed; {done} were set: try again")

    def _operation(self, group: str, topic: TopicConfig, tp: TopicPartition, new: NewOffset | None) -> Operation:
        key = self._keys.offset(group, tp)
        if new is None:
            return Delete(key)
        record = Offset(
            offset=new.offset,
            leader_epoch=new.leader_epoch,
            metadata=new.metadata,
            committed_at=int(self._clock.wall()),
            topic_id=topic.topic_id,
        )
        return Put(key, encode(record))

    async def _check_unowned(self, group: str, tps: Sequence[TopicPartition], so_far: str) -> None:
        keys = self._keys.group(group)
        found = await multi_get(self._store, [keys.assignment(tp) for tp in tps])
        owned = [str(tp) for tp, result in zip(tps, found, strict=True) if isinstance(result, Found)]
        if owned:
            raise FailedPrecondition(
                f"{_named(owned)} of group {group!r} have owners; {so_far}: stop the consumers and "
                "wait until their partitions are given up, or use force"
            )


def _is_done(operation: Operation, found: GetResult) -> bool:
    if isinstance(operation, Delete):
        return not isinstance(found, Found)
    return isinstance(found, Found) and found.entry.value == operation.value


def _named(tps: Sequence[str]) -> str:
    more = f" and {len(tps) - _NAMED} more" if len(tps) > _NAMED else ""
    return f"{', '.join(tps[:_NAMED])}{more}"


def _check(topics: Mapping[str, TopicConfig], offsets: Wanted) -> None:
    for tp in offsets:
        count = topics[tp.topic].partition_count
        if tp.partition >= count:
            raise InvalidInput(f"partition {tp} does not exist: the topic has partitions 0 to {count - 1}")
