"""Writes loads down: read the record, change it, swap it in, and start over if somebody else was faster.

A record that can't be read is left alone; only a change that replaces all of it takes its place.
"""

from __future__ import annotations

from assigner.core.loads.records import NodeChange, PartitionChange
from assigner.errors import StoreUnavailable, UnreadableRecord
from assigner.model.records import Loads, Stored, encode, stored
from assigner.store import Absent, Committed, Compare, Found, GetResult, ModRevisionIs, Put, Store

TRIES = 5


async def write(store: Store, key: str, change: PartitionChange | NodeChange, wall: float) -> None:
    """Raises `StoreError`, or `UnreadableRecord`."""
    found = await store.get(key)
    if change.says_nothing and not isinstance(found, Found):
        return
    for _ in range(TRIES):
        compare, value = _changed(key, found, change, wall)
        result = await store.transact([compare], [Put(key, value)], otherwise=[key])
        if isinstance(result, Committed):
            return
        found = result.reads[0]
    raise StoreUnavailable(f"{key} is being written by others too; try again")


def _changed(key: str, found: GetResult, change: PartitionChange | NodeChange, wall: float) -> tuple[Compare, bytes]:
    if not isinstance(found, Found):
        return Absent(key), encode(change.of(None, wall))
    before = _readable(found, replaced=isinstance(change, PartitionChange) and change.replaces)
    record = change.of(before.record if before else None, wall)
    return ModRevisionIs(key, found.entry.mod_revision), before.encode(record) if before else encode(record)


def _readable(found: Found, *, replaced: bool) -> Stored[Loads] | None:
    try:
        return stored(Loads, found.entry)
    except UnreadableRecord:
        if replaced:
            return None
        raise
