"""Offsets put in place by an operator: to skip, to read again, to begin anew.

Meant for partitions that nobody works on, and written only while nobody owns them. By force they are written under
the owner's nose: it does not hear of it, goes on where it is, and its next commit replaces them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from assigner.clock import Clock
from assigner.core.group import GroupState
from assigner.errors import InvalidInput, Refused, UnknownTopic
from assigner.keys import Keys, TopicPartition
from assigner.mirror import Mirrors
from assigner.reading_together import read_together
from assigner.records import Offset, encode
from assigner.store import Absent, Committed, Compare, Delete, Found, Operation, Put, Store

_NAMED = 5
"""Partitions that a refusal names."""
Wanted = Mapping[TopicPartition, int | None]


class OffsetSetting:
    def __init__(self, store: Store, keys: Keys, mirrors: Mirrors, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._mirrors = mirrors
        self._clock = clock

    async def set(self, group: str, offsets: Wanted, *, force: bool) -> int:
        """How many were set; None deletes. Not all at once: a transaction's worth after the other."""
        async with self._mirrors.of(group) as mirror:
            _check(mirror.state, offsets)
            if not force:
                await self._check_unowned(group, tuple(offsets), "nothing was set")
            rest, done = iter(sorted(offsets)), 0
            while part := tuple(islice(rest, self._store.limits.operations)):
                fences = () if force else tuple(Absent(mirror.state.keys.assignment(tp)) for tp in part)
                await self._write(mirror.state, part, offsets, fences, done)
                done += len(part)
        return done

    async def _write(
        self, state: GroupState, part: Sequence[TopicPartition], offsets: Wanted, fences: Sequence[Compare], done: int
    ) -> None:
        operations = [self._operation(state, tp, offsets[tp]) for tp in part]
        if not isinstance(await self._store.transact(fences, operations), Committed):
            await self._check_unowned(state.keys.group, part, f"{done} were set")
            raise Refused(f"partitions of group {state.keys.group!r} are being assigned; {done} were set: try again")

    def _operation(self, state: GroupState, tp: TopicPartition, offset: int | None) -> Operation:
        key = self._keys.offset(state.keys.group, tp)
        if offset is None:
            return Delete(key)
        topic_id = state.topics[tp.topic].record.topic_id
        return Put(key, encode(Offset(offset=offset, committed_at=int(self._clock.wall()), topic_id=topic_id)))

    async def _check_unowned(self, group: str, tps: Sequence[TopicPartition], so_far: str) -> None:
        keys = self._keys.group(group)
        found = await read_together(self._store, [keys.assignment(tp) for tp in tps])
        owned = [str(tp) for tp, result in zip(tps, found, strict=True) if isinstance(result, Found)]
        if owned:
            more = f" and {len(owned) - _NAMED} more" if len(owned) > _NAMED else ""
            raise Refused(
                f"{', '.join(owned[:_NAMED])}{more} of group {group!r} have owners; {so_far}: stop the consumers and "
                "wait until their partitions are given up, or use force"
            )


def _check(state: GroupState, offsets: Wanted) -> None:
    if not offsets:
        raise InvalidInput("no offsets are given; name at least one partition")
    for tp in offsets:
        topic = state.topics.get(tp.topic)
        if topic is None:
            raise UnknownTopic(f"group {state.keys.group!r} has no topic {tp.topic!r}; set it first")
        if tp.partition >= topic.record.partition_count:
            raise InvalidInput(
                f"partition {tp} does not exist: the topic has partitions 0 to {topic.record.partition_count - 1}"
            )
