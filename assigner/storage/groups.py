"""The index of groups: one key per group, so that an instance learns of every group by one watch.

`make_known` writes the key when a group is first used; `discover` writes it for groups that are in the store without
one, as an upstream deployment or an older release leaves them. A group is of one kind at a time; `GroupDirectory.enter`
has an empty one change its kind, as `storage.kinds` describes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from assigner.aio.supervision import Supervisor
from assigner.errors import (
    FailedPrecondition,
    InvalidInput,
    InvalidName,
    LimitReached,
    StoreRefused,
    StoreUnavailable,
    UnknownGroup,
    UnreadableRecord,
)
from assigner.logs import get_logger
from assigner.model.keys import DEFAULT_ROOT, RESERVED_GROUPS, Keys, decode_segment, encode_segment, group_at
from assigner.model.records import EpochFloor, GroupIndex, Plan, Stored, decode, encode, stored
from assigner.storage.kinds import ASSIGNER, KINDS, change_kind, end_change, mismatch
from assigner.storage.prefix_mirror import PrefixMirror
from assigner.storage.update import TRIES, Lost, Swapped, swap
from assigner.store import Absent, Compare, Exists, Found, ModRevisionIs, Put, Store, revision_of, unchanged

MAX_GROUPS = 10_000
LOOKUPS = 64
"""Concurrent lookups of names that the index does not have: a caller that invents names must not use up the store's
requests."""
_PROBES = ("assignments/", "config/", "consumers/")
"""Branches by which a group is recognised if its first key is a foreign one."""

log = get_logger("assigner.storage.groups")


async def make_known(store: Store, keys: Keys, group: str, kind: str = ASSIGNER, *, of_any_kind: bool = False) -> int:
    """Create the group's index key, unless it exists. Returns the key's mod revision.

    Raises `GroupKindMismatch` if the group is of another kind, unless it may be `of_any_kind`; `FailedPrecondition` if
    it is being deleted or belongs to another deployment; and `InvalidInput` if it is indexed with another key prefix.
    """
    keys.check_group(group)
    deleting, plan, own_root = keys.deleting(group), keys.group(group).plan, keys.own_root(group)
    index = GroupIndex(group=group, kind=kind, prefix=keys.special_prefix(group))
    put = Put(keys.group_index(group), encode(index))
    own_root_absent: list[Compare] = [] if own_root == keys.incarnation else [Absent(own_root)]
    planned = False
    for _ in range(TRIES):
        floor_fences, puts = await _epoch_floor_fences(store, keys.epochs, plan, planned=planned)
        fences = [Absent(deleting), *own_root_absent, *floor_fences]
        result = await swap(store, put, 0, fences=fences, operations=puts)
        match result:
            case Swapped():
                return result.revision
            case Lost(found=Found(entry=entry)):
                known = decode(GroupIndex, entry.value)[0]
                _check_prefix(keys, known)
                if known.kind != kind and not (of_any_kind and known.kind in KINDS):
                    raise mismatch(known, kind)
                return entry.mod_revision
            case Lost():
                continue
        present = {fence.key for fence, read in zip(fences, result.reads, strict=True) if isinstance(read, Found)}
        if deleting in present:
            raise FailedPrecondition(
                f"group {group!r} is being deleted; try again, or finish it with `assigner groups delete`"
            )
        if own_root_absent and own_root in present:
            raise FailedPrecondition(
                f"group {group!r} belongs to a deployment of its own, whose root is {keys.group(group).prefix!r}; "
                "connect to that one, or choose another group"
            )
        planned = plan in present
    raise StoreUnavailable(f"group {group!r} is being made or deleted by others too; try again")


async def _epoch_floor_fences(
    store: Store, epochs: str, plan: str, *, planned: bool
) -> tuple[list[Compare], list[Put]]:
    """Build the fences and writes by which a new group's epochs begin above those of all deleted groups. A group that
    already has a plan keeps its own epochs."""
    floor = await store.get(epochs)
    fence = unchanged(epochs, revision_of(floor))
    if not isinstance(floor, Found):
        return [fence], []
    if planned:
        return [fence, Exists(plan)], []
    record = Plan(epoch_floor=decode(EpochFloor, floor.entry.value)[0].epoch_floor)
    return [fence, Absent(plan)], [Put(plan, encode(record))]


def _check_prefix(keys: Keys, known: GroupIndex) -> None:
    here = keys.special_prefix(known.group)
    if known.prefix and here and known.prefix != here:
        raise InvalidInput(
            f"group {known.group!r} lives at {known.prefix!r}, and this instance looks for it at {here!r}; set "
            "default_group to another name, or store.root to a root of this deployment's own"
        )


async def check_not_shared(store: Store, keys: Keys) -> None:
    """Check that a default group at this deployment's root is not also indexed by a deployment at the default root.

    That deployment would keep the group's offsets, loads and history. Raises `InvalidInput`.
    """
    group = group_at(keys.root, DEFAULT_ROOT)
    if not group or keys.group(keys.default_group).prefix != keys.root:
        return
    above = Keys(DEFAULT_ROOT).group_index(group)
    try:
        found = await store.get(above)
    except StoreRefused:
        # A user without read access there does not share it.
        return
    if isinstance(found, Found):
        raise InvalidInput(
            f"group {group!r} is kept under the root {DEFAULT_ROOT!r}, where its offsets are; set store.root to "
            f"{DEFAULT_ROOT!r} to go on with it, or delete the key {above!r} to begin without them"
        )


async def discover(store: Store, keys: Keys) -> list[str]:
    """Index the groups that are in the store without an index key, and return them. Costs one read per group."""
    found = []
    for group in await _groups_in(store, keys):
        try:
            await make_known(store, keys, group, of_any_kind=True)
        except (FailedPrecondition, InvalidName) as error:
            log.warning("group_skipped", group=group, error=str(error))
        else:
            found.append(group)
    return found


async def _groups_in(store: Store, keys: Keys) -> list[str]:
    default = keys.group(keys.default_group)
    groups = [keys.default_group] if await _looks_like_group(store, default.prefix, "") else []
    after = ""
    while True:
        page = await store.list(keys.root, after=after, limit=1)
        if not page.entries:
            return groups
        segment, _, rest = page.entries[0].key[len(keys.root) :].partition("/")
        if segment.startswith("~"):
            # Our own branches come after every group, since no encoded name holds a character past theirs.
            return groups
        prefix = f"{keys.root}{segment}/"
        # '0' is the character after '/': past everything in the group, before everything of the next.
        after = prefix[:-1] + "0" if rest else page.entries[0].key
        if prefix == default.prefix or segment in RESERVED_GROUPS or not rest:
            continue
        if await _looks_like_group(store, prefix, rest):
            groups += _group_named(segment)


async def _looks_like_group(store: Store, prefix: str, first: str) -> bool:
    if first.partition("/")[0] in RESERVED_GROUPS:
        return True
    for probe in _PROBES:
        if (await store.list(prefix + probe, limit=1)).entries:
            return True
    return False


def _group_named(segment: str) -> list[str]:
    group = decode_segment(segment)
    if encode_segment(group) != segment:
        log.warning("group_skipped", group=group, error=f"its keys spell it {segment!r}; rename it to be served")
        return []
    return [group]


def known_groups(
    store: Store, keys: Keys, changed: Callable[[], None], *, limit: int = MAX_GROUPS
) -> PrefixMirror[GroupIndex]:
    """Make a mirror of the index, to be run by the caller; `names_of` reads its names."""
    return PrefixMirror(store, keys.groups, GroupIndex, changed, limit=limit)


def names_of(index: PrefixMirror[GroupIndex], kind: str = ASSIGNER) -> frozenset[str]:
    return frozenset(decode_segment(name) for name, entry in index.records.items() if entry.kind == kind)


def kinds_of(index: PrefixMirror[GroupIndex]) -> dict[str, str]:
    """Every group of a kind that is known here -> its kind."""
    return {decode_segment(name): entry.kind for name, entry in index.records.items() if entry.kind in KINDS}


class GroupDirectory:
    """Tells which groups exist, by a mirror of the index, and by a read of the store for names that are not in the
    mirror.

    A known group costs no read, an unknown one costs a read and no memory, and a group that another instance created a
    moment ago is found.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        most: int = MAX_GROUPS,
        refused: Callable[[str], None] = lambda _: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`most`: the number of groups from which on this instance creates no more. `refused` is called with the reason
        of each refusal."""
        self._store = store
        self._keys = keys
        self._most = most
        self._refused = refused
        self._supervisor = supervisor or Supervisor()
        self._index = known_groups(store, keys, lambda: None)
        self._made: set[str] = set()
        """Groups that this instance created and that the mirror does not show yet."""
        self._lookups = anyio.Semaphore(LOOKUPS)
        self._entering = anyio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GroupDirectory]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervisor.keep, "group index", self._index.run, name="group index")
            yield self
            tasks.cancel_scope.cancel()

    def is_indexed(self, group: str) -> bool:
        """Whether the mirrored index has the group; it may be a moment behind."""
        known = self._index.records.get(encode_segment(group))
        return known is not None and known.kind in KINDS

    def names(self, kind: str) -> frozenset[str]:
        """The groups of this kind that the mirrored index has."""
        return names_of(self._index, kind)

    def mirrored_kind(self, group: str) -> str:
        """The group's kind by the mirrored index, which may be a moment behind; empty: it has no such group."""
        known = self._index.records.get(encode_segment(group))
        return known.kind if known is not None else ""

    async def kind(self, group: str) -> str:
        """Read the group's kind from the store; empty: there is no such group."""
        known = await self._entry(group)
        return known.record.kind if known else ""

    async def check(self, group: str) -> None:
        """Raise `UnknownGroup` if there is no such group."""
        if self.is_indexed(group):
            return
        self._keys.check_group(group)
        async with self._lookups:
            known = await self._entry(group)
        if known is None or known.record.kind not in KINDS:
            self._refused("unknown_group")
            raise UnknownGroup(f"there is no group {group!r}")

    async def enter(self, group: str, kind: str = ASSIGNER, *, fresh: bool = False) -> Compare:
        """Have the group exist and be of this kind: create it, or let it change its kind if it is empty.

        Returns the precondition under which a member of that kind may be written: the group has neither been deleted
        nor marked for a change of its kind since. With `fresh` the store is read in any case. Raises `LimitReached` at
        the quota of groups, and `GroupKindMismatch` while members of another kind use the group."""
        key = self._keys.group_index(group)
        mirrored = self._mirrored(group, kind)
        if mirrored and not fresh:
            return ModRevisionIs(key, mirrored)
        self._keys.check_group(group)
        for _ in range(TRIES):
            async with self._lookups:
                revision = await self._entered(group, kind)
            if revision:
                return ModRevisionIs(key, revision)
        raise StoreUnavailable(f"group {group!r} is being made, deleted or changed by others too; try again")

    def _mirrored(self, group: str, kind: str) -> int:
        """The revision of the group's entry, if the mirrored index has it and there is nothing to do about it."""
        segment = encode_segment(group)
        known = self._index.records.get(segment)
        settled = known is not None and known.kind == kind and not known.changing_to
        return self._index.revisions.get(segment, 0) if settled else 0

    async def _entered(self, group: str, kind: str) -> int:
        """Enter the group as the store shows it. Returns the revision of its entry; 0: others changed it meanwhile."""
        known = await self._entry(group, readable=kind != ASSIGNER)
        if known is None:
            return await self._make(group, kind)
        _check_prefix(self._keys, known.record)
        if known.record.kind != kind:
            return await change_kind(self._store, self._keys, known, kind)
        return await end_change(self._store, known) if known.record.changing_to else known.mod_revision

    async def make(self, group: str) -> None:
        """Create the group unless it exists, of whatever kind. Raises `LimitReached` at the quota of groups."""
        if not self.is_indexed(group):
            self._keys.check_group(group)
            await self._make(group, ASSIGNER, of_any_kind=True)

    async def _make(self, group: str, kind: str, *, of_any_kind: bool = False) -> int:
        # One at a time, so that concurrent callers do not exceed the quota together.
        async with self._entering:
            if await self._entry(group) is None:
                self._check_room(group)
            revision = await make_known(self._store, self._keys, group, kind, of_any_kind=of_any_kind)
            self._made.add(encode_segment(group))
        return revision

    async def _entry(self, group: str, *, readable: bool = False) -> Stored[GroupIndex] | None:
        """The group's entry. One that can't be read counts as an entry, too, unless it has to be `readable`: then this
        raises `UnreadableRecord`."""
        found = await self._store.get(self._keys.group_index(group))
        if not isinstance(found, Found):
            return None
        try:
            return stored(GroupIndex, found.entry)
        except UnreadableRecord:
            if readable:
                raise
            # Unreadable or not, the name is taken.
            entry = found.entry
            return Stored(GroupIndex(group=group), entry.key, entry.mod_revision, entry.create_revision)

    def _check_room(self, group: str) -> None:
        self._made -= self._index.records.keys()
        if len(self._index.records) + len(self._made) >= self._most:
            self._refused("groups")
            raise LimitReached(
                f"group {group!r} is not made: there are {self._most} groups, as many as quotas.groups allows; "
                "delete some with `assigner groups delete`, or raise it"
            )
