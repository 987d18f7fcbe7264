"""Applies a change of loads to the stored record."""

from __future__ import annotations

from assigner.core.loads.records import NodeChange, PartitionChange
from assigner.model.records import Loads, Stored
from assigner.storage.update import update
from assigner.store import Found, Store


async def write(store: Store, key: str, change: PartitionChange | NodeChange, wall: float) -> None:
    """Apply the change by compare-and-swap. Raises `StoreError`, and `UnreadableRecord` unless the change replaces the
    whole record."""
    if change.is_empty and not isinstance(await store.get(key), Found):
        return

    def changed(current: Stored[Loads] | None) -> Loads:
        return change.of(current.record if current else None, wall)

    replaces = isinstance(change, PartitionChange) and change.replaces
    await update(store, key, Loads, changed, replace_unreadable=replaces)
