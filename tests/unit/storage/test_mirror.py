"""The mirror of a group: loaded whole before anybody reads it, whatever its size."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.core.group import Change
from assigner.model.keys import Keys
from assigner.model.records import Assignment, GroupOptions, encode
from assigner.storage.mirror import SLICE, GroupMirror, Mirrors
from assigner.store import Page
from assigner.testing.waiting import eventually
from tests.support.cluster import tp

pytestmark = pytest.mark.virtual_time
MANY = 3 * SLICE + 10


async def filled(store: MemoryStore, keys: Keys) -> None:
    # The keys' order is not the order they were written in.
    for number in reversed(range(MANY)):
        record = Assignment(topic="t", partition=number, owner="a")
        await store.put(keys.group("g").assignment(tp(number)), encode(record))


async def test_a_mirror_is_whole_when_it_is_first_handed_out() -> None:
    store, keys = MemoryStore(MemoryState(LoopClock())), Keys()
    await filled(store, keys)
    async with Mirrors(store, keys, GroupOptions()).running() as mirrors, mirrors.of("g") as mirror:
        assert len(mirror.state.assignments) == MANY


async def test_a_listing_claims_its_revision_only_when_all_of_it_is_taken_in() -> None:
    store, keys = MemoryStore(MemoryState(LoopClock())), Keys()
    await filled(store, keys)
    last = (await store.get("x")).revision
    seen: list[tuple[int, int]] = []

    class Watch:
        def changed(self, changes: list[Change]) -> None:
            seen.append((mirror.state.revision, len(mirror.state.assignments)))

    mirror: GroupMirror
    async with Mirrors(store, keys, GroupOptions()).running() as mirrors:
        mirror = mirrors._shared("g").mirror
        mirror.listen(Watch())  # type: ignore[arg-type]
        await eventually(lambda: mirror.listings == 1)
    assert [revision for revision, count in seen if count < MANY] == [0, 0, 0]
    assert seen[-1] == (last, MANY)


class SlowlyAnswered(MemoryStore):
    """Its listings are read at once and answered when the test says so."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__(state)
        self.answers = anyio.Event()
        self.answers.set()
        self.waiting = 0

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000, revision: int = 0) -> Page:
        page = await super().list(prefix, after=after, limit=limit, revision=revision)
        self.waiting += 1
        await self.answers.wait()
        self.waiting -= 1
        return page


async def test_a_resync_does_not_return_for_a_listing_that_began_before_it() -> None:
    store, keys = SlowlyAnswered(MemoryState(LoopClock())), Keys()
    seen: list[int] = []

    async def resync() -> None:
        await mirror.resync()
        seen.append(len(mirror.state.assignments))

    async with Mirrors(store, keys, GroupOptions()).running() as mirrors, mirrors.of("g") as mirror:
        store.answers = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resync)
            await eventually(lambda: store.waiting == 1)
            # Written after that listing was read: only another one can tell of it.
            await store.put(keys.group("g").assignment(tp(0)), encode(Assignment(topic="t", partition=0, owner="a")))
            tasks.start_soon(resync)
            await anyio.lowlevel.checkpoint()
            store.answers.set()
    assert seen == [0, 1], "the second saw what was written before it was asked"
