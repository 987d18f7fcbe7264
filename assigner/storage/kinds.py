"""Changes the kind of an empty group: from one of assigner's own members to one of classic Kafka members, or back.

The entry in the index says the kind, and a change is a compare-and-swap of it, so two kinds can't both win. A
registration has the entry, as it was read, as a precondition: once a change has marked the entry, nobody registers any
more, and a listing shows everybody who did. If there is somebody, the mark is taken away again. The transaction that
writes the new kind also deletes the leader key. That fences off the leader, whose work belongs to the old kind; the
leader of the next term finds the new one.

Ownership of consumers that are gone is removed before the kind changes, because an owner on record may still commit
offsets. Epochs go on where they were if the group changes back. Topics, options and committed offsets stay.

A change that was interrupted leaves its mark. Whoever enters the group next takes it away or completes the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from assigner.errors import GroupKindMismatch, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.kafka_groups import ClassicGroupRecord
from assigner.model.keys import GroupKeys, Keys, decode_segment
from assigner.model.records import GroupIndex, Stored, decode
from assigner.storage.epochs import raise_group_floor
from assigner.storage.update import Swapped, swap
from assigner.store import (
    Committed,
    Compare,
    Delete,
    Entry,
    Found,
    ModRevisionIs,
    Operation,
    Put,
    Store,
    revision_of,
    unchanged,
)

ASSIGNER = "assigner"
"""Its members are consumers of the gRPC API, Spark queries, and Kafka clients with the consumer protocol."""
CLASSIC = "classic"
"""Its members are Kafka clients with the classic protocol."""
KINDS = frozenset((ASSIGNER, CLASSIC))
_PAGE = 1_000
_NAMED = 5

log = get_logger("assigner.storage.kinds")


class Occupants(msgspec.Struct, frozen=True):
    names: tuple[str, ...] = ()
    """Some of those who use the group; none: it is empty."""
    fences: tuple[Compare, ...] = ()
    """The preconditions of an empty group's staying empty, beside its entry in the index."""


def mismatch(known: GroupIndex, kind: str, names: Sequence[str] = ()) -> GroupKindMismatch:
    used = f"group {known.group!r} is of kind {known.kind!r} and can't be used as {kind!r}"
    if not names:
        return GroupKindMismatch(f"{used}; choose another group")
    more = " and more" if len(names) > _NAMED else ""
    listed = ", ".join(map(repr, names[:_NAMED]))
    return GroupKindMismatch(
        f"{used} while members are registered: {listed}{more}; stop them first, or choose another group"
    )


async def change_kind(store: Store, keys: Keys, known: Stored[GroupIndex], kind: str) -> int:
    """Change the group's kind. Returns the revision of its entry; 0: others changed the entry meanwhile.

    Raises `GroupKindMismatch` if somebody uses the group, and `UnreadableRecord` for an assignment whose epoch can't be
    read, because no owner may get a lower one, and for keys of others in between."""
    group, before = known.record.group, known.record.kind
    if not {before, kind} <= KINDS:
        raise mismatch(known.record, kind)
    if not known.record.changing_to:
        # Most changes end here, and leave no trace.
        await _empty(store, keys, known.record, kind)
    marked = await _write(store, known, msgspec.structs.replace(known.record, changing_to=kind))
    if marked is None:
        return 0
    try:
        fences = await _empty(store, keys, marked.record, kind)
        if not await _remove_ownership(store, keys, keys.group(group), marked):
            return 0
    except (GroupKindMismatch, UnreadableRecord):
        await end_change(store, marked)
        raise
    changed = msgspec.structs.replace(marked.record, kind=kind, changing_to="")
    leader = Delete(keys.group(group).leader)
    after = await _write(store, marked, changed, fences, [leader])
    if after is None:
        return 0
    log.info("group_kind_changed", group=group, kind=kind, before=before)
    return after.mod_revision


async def end_change(store: Store, marked: Stored[GroupIndex]) -> int:
    """Take the mark of a change away. Returns the revision of the entry; 0: others changed it meanwhile."""
    after = await _write(store, marked, msgspec.structs.replace(marked.record, changing_to=""))
    return after.mod_revision if after else 0


async def occupants(store: Store, keys: Keys, group: str, kind: str) -> Occupants:
    """Who uses the group as one of this kind."""
    if kind == CLASSIC:
        return await _classic_members(store, keys, group)
    of_group, names = keys.group(group), list[str]()
    for branch in (of_group.consumers, of_group.routers):
        entries = (await store.list(branch, limit=_NAMED + 1)).entries
        # A router that lost its name has its key below that name.
        names += [decode_segment(entry.key[len(branch) :].partition("/")[0]) for entry in entries]
    return Occupants(tuple(dict.fromkeys(names)))


async def _classic_members(store: Store, keys: Keys, group: str) -> Occupants:
    key = keys.kafka_state(group)
    found = await store.get(key)
    if not isinstance(found, Found):
        return Occupants(fences=(unchanged(key, 0),))
    try:
        record = decode(ClassicGroupRecord, found.entry.value)[0]
    except UnreadableRecord:
        return Occupants(("members that can't be read",))
    if record.is_empty:
        return Occupants(fences=(unchanged(key, revision_of(found)),))
    names = (member.instance_id or member.member_id for member in record.members)
    return Occupants(tuple(islice(names, _NAMED + 1)) or ("many",))


async def _empty(store: Store, keys: Keys, known: GroupIndex, kind: str) -> tuple[Compare, ...]:
    found = await occupants(store, keys, known.group, known.kind)
    if found.names:
        raise mismatch(known, kind, found.names)
    return found.fences


async def _write(
    store: Store,
    current: Stored[GroupIndex],
    record: GroupIndex,
    fences: Sequence[Compare] = (),
    operations: Sequence[Operation] = (),
) -> Stored[GroupIndex] | None:
    """Write the entry in place of the one that was read; None: that is not there any more, or a fence did not hold."""
    put = Put(current.key, current.encode(record))
    result = await swap(store, put, current.mod_revision, fences=fences, operations=operations)
    if not isinstance(result, Swapped):
        return None
    return Stored(record, current.key, result.revision, current.create_revision, extra=current.extra)


async def _remove_ownership(store: Store, keys: Keys, group: GroupKeys, marked: Stored[GroupIndex]) -> bool:
    """Remove the records about partitions; whether the mark was there all the time."""
    fence = ModRevisionIs(marked.key, marked.mod_revision)
    for prefix in group.ownership:
        after, more = "", True
        while more:
            page = await store.list(prefix, after=after, limit=_PAGE)
            _check_ours(group, page.entries)
            await raise_group_floor(store, keys, group, page.entries)
            rest = iter(page.entries)
            while part := [Delete(entry.key) for entry in islice(rest, store.limits.operations)]:
                if not isinstance(await store.transact([fence], part), Committed):
                    return False
            after, more = page.entries[-1].key if page.entries else after, page.more
    return True


def _check_ours(group: GroupKeys, entries: Sequence[Entry]) -> None:
    for entry in entries:
        if group.parse(entry.key) is None:
            raise UnreadableRecord(f"{entry.key} is not a key this service writes; move it away first")
