"""List, watch, list again: no change of a prefix is missed, whatever becomes of the watch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from assigner.aio.shutdown import background
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.storage.watch_loop import WatchLoop
from assigner.store import Batch, DeleteEvent, Page, PutEvent, WatchItem
from assigner.testing.faults import Delay, FaultyStore, Refuse
from assigner.testing.waiting import eventually

pytestmark = pytest.mark.virtual_time
PREFIX = "/root/g/"


class Copy:
    """What the loop delivered, put together."""

    def __init__(self, store: FaultyStore) -> None:
        self.store = store
        self.values: dict[str, bytes] = {}
        self.listings = 0
        self.loop = WatchLoop(store, PREFIX, self._listed, self._watched)

    async def _listed(self, page: Page) -> None:
        self.values = {entry.key: entry.value for entry in page.entries}
        self.listings += 1

    async def _watched(self, item: WatchItem) -> None:
        for event in item.events if isinstance(item, Batch) else ():
            match event:
                case PutEvent(entry):
                    self.values[entry.key] = entry.value
                case DeleteEvent(key):
                    self.values.pop(key, None)


@asynccontextmanager
async def followed() -> AsyncIterator[Copy]:
    store = FaultyStore(MemoryStore(MemoryState(LoopClock())))
    await store.put(PREFIX + "a", b"1")
    copy = Copy(store)
    async with background() as tasks:
        tasks.start_soon(copy.loop.run)
        await eventually(lambda: copy.listings == 1)
        yield copy
    await store.close()


async def test_what_is_there_is_listed_and_what_happens_next_is_watched() -> None:
    async with followed() as copy:
        await copy.store.put(PREFIX + "b", b"2")
        await copy.store.delete(PREFIX + "a")
        await copy.store.put("/elsewhere", b"3")
        await eventually(lambda: copy.values == {PREFIX + "b": b"2"})
        assert copy.listings == 1


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_watch_that_ends_or_is_compacted_costs_a_listing_and_no_change(compacted: bool) -> None:
    async with followed() as copy:
        broken = copy.store.compact_watches(1) if compacted else copy.store.end_watches()
        await copy.store.put(PREFIX + "a", b"2")
        await eventually(lambda: copy.values == {PREFIX + "a": b"2"})
        assert (broken, copy.listings) == (1, 2)


async def test_a_listing_that_fails_is_tried_again() -> None:
    async with followed() as copy:
        refused = copy.store.inject(Refuse(), kinds={"list"}, times=3)
        copy.store.end_watches()
        await copy.store.put(PREFIX + "b", b"2")
        await eventually(lambda: PREFIX + "b" in copy.values, within=30)
        assert refused.hits == 3


async def test_a_relisting_has_read_what_was_there_when_it_was_asked_for() -> None:
    async with followed() as copy:
        copy.values.clear()
        await copy.loop.relist()
        assert copy.values == {PREFIX + "a": b"1"}
        assert (copy.listings, copy.loop.waiting) == (2, 0)


async def test_a_relisting_asked_for_during_a_listing_is_the_next_one() -> None:
    """The one under way may have been read before."""
    async with followed() as copy:
        slow = copy.store.inject(Delay(1.0), kinds={"list"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(copy.loop.relist)
            await eventually(lambda: slow.hits == 1)
            await copy.loop.relist()
        assert copy.listings == 3
