"""The known groups: one index key each, so that an instance learns of every group by one watch.

`make_known` writes it when a group is first used; `discover` writes it for groups that are in the store without one,
as an upstream deployment or an older release leaves them. The index says of which kind a group is, for good.
"""

from __future__ import annotations

from collections.abc import Callable

from assigner.errors import InvalidName, OutcomeUnknown, Refused
from assigner.following import Following
from assigner.keys import RESERVED_GROUPS, Keys, decode_segment, encode_segment
from assigner.logs import get_logger
from assigner.records import GroupIndex, decode, encode
from assigner.store import Absent, Committed, Found, Put, Store

ASSIGNER = "assigner"
MAX_GROUPS = 10_000
_TRIES = 3
_PROBES = ("assignments/", "config/", "consumers/")
"""Branches that say that a group is one, where foreign keys come first."""

log = get_logger("assigner.groups")


async def make_known(store: Store, keys: Keys, group: str, kind: str = ASSIGNER) -> None:
    """Enter the group in the index. Raises `Refused` if it is there as another kind."""
    keys.check_group(group)
    key = keys.group_index(group)
    put = Put(key, encode(GroupIndex(group=group, kind=kind)))
    for attempt in range(_TRIES):
        try:
            result = await store.transact([Absent(key)], [put], otherwise=[key])
        except OutcomeUnknown:
            # Once more does no harm: it is there, or it is put.
            if attempt == _TRIES - 1:
                raise
            continue
        if not isinstance(result, Committed) and isinstance(result.reads[0], Found):
            _check_kind(decode(GroupIndex, result.reads[0].entry.value)[0], kind)
        return


def _check_kind(known: GroupIndex, kind: str) -> None:
    if known.kind != kind:
        raise Refused(
            f"group {known.group!r} is of kind {known.kind!r} and can't be used as {kind!r}; choose another group"
        )


async def discover(store: Store, keys: Keys) -> list[str]:
    """Index the groups that the store holds without an entry; one read per group. Returns those it found."""
    found = []
    for group in await _groups_in(store, keys):
        try:
            await make_known(store, keys, group)
        except (Refused, InvalidName) as error:
            log.warning("group left out", group=group, error=str(error))
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
        log.warning("group left out", group=group, error=f"its keys spell it {segment!r}; rename it to be served")
        return []
    return [group]


def known_groups(
    store: Store, keys: Keys, changed: Callable[[], None], *, limit: int = MAX_GROUPS
) -> Following[GroupIndex]:
    """The index, live. Run it, and read its names by `names_of`."""
    return Following(store, keys.groups, GroupIndex, changed, limit=limit)


def names_of(index: Following[GroupIndex], kind: str = ASSIGNER) -> frozenset[str]:
    return frozenset(decode_segment(name) for name, entry in index.records.items() if entry.kind == kind)
