"""Deletes every record of a group, or of one of its topics, in bounded transactions.

One transaction first replaces the group's index entry by a deletion mark. From then on no consumer can register,
because a registration has the index entry as a precondition; so a listing now shows all records that will ever exist.
If a consumer or another member is registered, the entry is restored and nothing was deleted. A deletion that was
interrupted continues when it is requested again; until then the group's name can't be used.

Epochs must not go back for a later group of the same name. Before a record is deleted, the store-wide epoch floor is
raised to its epoch, and every new group starts above that floor.

Not promised: that records which are written at the same time without preconditions (weights, an operator's offsets)
are deleted too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice

from assigner.errors import FailedPrecondition, UnknownTopic, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.keys import GroupKeys, Keys, decode_segment
from assigner.model.records import (
    EpochFloor,
    GroupOptions,
    HandoffMode,
    R,
    Stored,
    decode,
)
from assigner.storage.epochs import epoch_of, raise_group_floor
from assigner.storage.groups import GroupDirectory
from assigner.storage.kinds import CLASSIC, occupants
from assigner.storage.update import update
from assigner.store import (
    Absent,
    Committed,
    Compare,
    Delete,
    Entry,
    Exists,
    Found,
    ModRevisionIs,
    Operation,
    Put,
    Store,
)

MOST_AT_ONCE = 20_000
"""Records deleted by one call; the caller repeats the call for the rest."""
_PAGE = 1_000
_NAMED = 5

log = get_logger("assigner.admin.deletion")


class GroupDeletion:
    def __init__(self, store: Store, keys: Keys, directory: GroupDirectory, defaults: GroupOptions) -> None:
        self._store = store
        self._keys = keys
        self._directory = directory
        self._defaults = defaults

    # --- a group -------------------------------------------------------------------------------------------------

    async def delete_group(self, group: str, *, force: bool, most: int = MOST_AT_ONCE) -> tuple[int, bool]:
        """Delete the group. Returns how many records were deleted, and whether there are more; if so, call it again.

        Raises `UnknownGroup`, and `FailedPrecondition` while a consumer or another member is registered or an
        assignment is on record."""
        keys = self._keys.group(group)
        if not isinstance(await self._store.get(self._keys.deleting(group)), Found):
            await self._directory.check(group)
            await self._check_unused(keys, force=force)
            await self._check_no_members(group)
            await self._take_out_of_the_index(group)
            log.info("group_deletion_started", group=group)
        try:
            await self._check_unused(keys, force=force)
            await self._check_no_members(group)
        except FailedPrecondition:
            await self._put_back(group)
            raise
        # Fences off the group's leader: all of its writes have this key as a precondition.
        await self._remove(group, [Delete(keys.leader)])
        removed, more = await self._remove_all(keys, most)
        if not more:
            last = (keys.plan, self._keys.history(group), self._keys.summary(group))
            await self._remove(group, [Delete(key) for key in last])
            await self._transact([Exists(self._keys.deleting(group))], [Delete(self._keys.deleting(group))])
            log.info("group_deleted", group=group, records=removed)
        return removed, more

    async def _check_unused(self, keys: GroupKeys, *, force: bool) -> None:
        await self._check_no_consumers(keys)
        if not (await self._store.list(keys.assignments, limit=1)).entries:
            return
        if not force:
            raise FailedPrecondition(
                f"group {keys.group!r} has partitions on record of consumers that left a moment ago; they are given "
                "up twice the consumers' TTL after the last one left: wait for that, or use force"
            )
        if (await self._options(keys)).handoff_mode is HandoffMode.EXCLUSIVE:
            raise FailedPrecondition(
                f"group {keys.group!r} is exclusive and has partitions on record of consumers that left a moment ago, "
                "who may not have stopped yet; wait until they are given up, which no force can replace"
            )

    async def _check_no_consumers(self, keys: GroupKeys) -> None:
        for branch, what in ((keys.consumers, "consumers"), (keys.routers, "routers")):
            entries = (await self._store.list(branch, limit=_NAMED + 1)).entries
            if entries:
                # A router that lost its name has its key below that name.
                segments = dict.fromkeys(entry.key[len(branch) :].partition("/")[0] for entry in entries)
                names = [repr(decode_segment(segment)) for segment in segments]
                more = " and more" if len(names) > _NAMED else ""
                raise FailedPrecondition(
                    f"{what} of group {keys.group!r} are registered: {', '.join(names[:_NAMED])}{more}; "
                    "stop them first, no force can replace that"
                )

    async def _check_no_members(self, group: str) -> None:
        """Check that no member of a classic Kafka group is left."""
        names = (await occupants(self._store, self._keys, group, CLASSIC)).names
        if names:
            raise FailedPrecondition(
                f"members of group {group!r} are in it: {', '.join(map(repr, names[:_NAMED]))}; stop them first, no "
                "force can replace that"
            )

    async def _options(self, keys: GroupKeys) -> GroupOptions:
        found = await self._store.get(keys.options)
        if not isinstance(found, Found):
            return self._defaults
        # Options that can't be read may be exclusive.
        return _read(GroupOptions, found.entry) or GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE)

    async def _take_out_of_the_index(self, group: str) -> None:
        index, deleting = self._keys.group_index(group), self._keys.deleting(group)
        found = await self._store.get(index)
        if not isinstance(found, Found):
            raise _others_are_at_work()
        compare = ModRevisionIs(index, found.entry.mod_revision)
        await self._transact([compare], [Delete(index), Put(deleting, found.entry.value)])

    async def _put_back(self, group: str) -> None:
        index, deleting = self._keys.group_index(group), self._keys.deleting(group)
        found = await self._store.get(deleting)
        if not isinstance(found, Found):
            raise _others_are_at_work()
        compares: list[Compare] = [ModRevisionIs(deleting, found.entry.mod_revision), Absent(index)]
        await self._transact(compares, [Delete(deleting), Put(index, found.entry.value)])

    async def _group_records(self, keys: GroupKeys) -> AsyncIterator[Sequence[Entry]]:
        """Yield all records but the plan and the history, a page at a time. Ownership comes first, so that an
        interrupted deletion leaves a group in which nothing is owned."""
        group = keys.group
        others = (self._keys.kafka_group(group), self._keys.offsets(group), self._keys.loads(group))
        for prefix in (*keys.branches, *others):
            async for page in self._pages(prefix):
                yield page

    async def _remove_all(self, keys: GroupKeys, most: int) -> tuple[int, bool]:
        group, removed = keys.group, 0
        plan = await self._store.get(keys.plan)
        if isinstance(plan, Found):
            await self._raise_floor(keys, [plan.entry])
        async for page in self._group_records(keys):
            if removed >= most:
                return removed, True
            await self._raise_floor(keys, page)
            rest = iter(page)
            while part := tuple(islice(rest, self._store.limits.operations)):
                await self._remove(group, [Delete(entry.key) for entry in part])
                removed += len(part)
        return removed, False

    async def _remove(self, group: str, deletes: Sequence[Operation]) -> None:
        """Delete records with the deletion mark as a precondition: if another caller finished the deletion and the name
        is in use again, nothing is deleted."""
        await self._transact([Exists(self._keys.deleting(group))], deletes)

    async def _raise_floor(self, keys: GroupKeys, entries: Iterable[Entry]) -> None:
        """Raise the store-wide epoch floor, above which new groups start, to the epochs of records to be deleted."""
        highest = max((epoch_of(self._keys, keys, entry) for entry in entries), default=0)

        def raised(current: Stored[EpochFloor] | None) -> EpochFloor | None:
            floor = current.record.epoch_floor if current else 0
            return EpochFloor(epoch_floor=highest) if floor < highest else None

        await update(self._store, self._keys.epochs, EpochFloor, raised, what="the floor of epochs")

    # --- a topic -------------------------------------------------------------------------------------------------

    async def delete_topic(self, group: str, topic: str, *, force: bool, most: int = MOST_AT_ONCE) -> tuple[int, bool]:
        """Delete a topic of the group. Its configuration is deleted first, so that its partitions are not assigned
        again; if the topic is created again, its epochs continue where they were."""
        await self._directory.check(group)
        keys = self._keys.group(group)
        await self._check_no_consumers(keys)
        prefixes = [*keys.of_topic(topic), self._keys.offsets(group, topic)]
        config = await self._store.get(keys.topic(topic))
        left = [prefix for prefix in prefixes if (await self._store.list(prefix, limit=1)).entries]
        if not isinstance(config, Found) and not left:
            raise UnknownTopic(f"group {group!r} has no topic {topic!r}")
        if prefixes[0] in left:
            await self._check_unused(keys, force=force)
        if isinstance(config, Found):
            compare = ModRevisionIs(config.entry.key, config.entry.mod_revision)
            await self._transact([compare], [Delete(config.entry.key), Delete(self._keys.topic_loads(group, topic))])
            log.info("topic_deletion_started", group=group, topic=topic)
        removed = 0
        for prefix in (*prefixes, self._keys.topic_loads(group, topic) + "/"):
            async for page in self._pages(prefix):
                if removed >= most:
                    return removed, True
                await raise_group_floor(self._store, self._keys, keys, page)
                removed += await self._remove_unchanged(page)
        return removed + isinstance(config, Found), False

    async def _remove_unchanged(self, page: Sequence[Entry]) -> int:
        """Delete records that are still at the revision read. One that was written since belongs to a consumer that
        came back, and stays. One that is gone was removed by the group's leader, which does so once the configuration
        is deleted."""
        rest = iter(page)
        while part := tuple(islice(rest, self._store.limits.operations)):
            compares = [ModRevisionIs(entry.key, entry.mod_revision) for entry in part]
            if not isinstance(await self._store.transact(compares, [Delete(entry.key) for entry in part]), Committed):
                for entry in part:
                    await self._remove_one_unchanged(entry)
        return len(page)

    async def _remove_one_unchanged(self, entry: Entry) -> None:
        compare = ModRevisionIs(entry.key, entry.mod_revision)
        result = await self._store.transact([compare], [Delete(entry.key)])
        if not isinstance(result, Committed) and isinstance(await self._store.get(entry.key), Found):
            raise _others_are_at_work()

    # --- pieces --------------------------------------------------------------------------------------------------

    async def _pages(self, prefix: str) -> AsyncIterator[Sequence[Entry]]:
        after = ""
        while True:
            page = await self._store.list(prefix, after=after, limit=_PAGE)
            if page.entries:
                yield page.entries
                after = page.entries[-1].key
            if not page.more:
                return

    async def _transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
        result = await self._store.transact(compares, operations)
        if not isinstance(result, Committed):
            raise _others_are_at_work()


def _others_are_at_work() -> FailedPrecondition:
    return FailedPrecondition(
        "others are at work on the same group; look at it, and delete it again if you still want to"
    )


def _read(kind: type[R], entry: Entry) -> R | None:
    try:
        return decode(kind, entry.value)[0]
    except UnreadableRecord:
        return None
