"""The mirror of a group: loaded whole before anybody reads it, whatever its size."""

from __future__ import annotations

import pytest

from assigner.clock import LoopClock
from assigner.core.group import Change
from assigner.keys import Keys
from assigner.mirror import SLICE, GroupMirror, Mirrors
from assigner.records import Assignment, GroupOptions, encode
from assigner.testing.waiting import eventually
from backends.memory import MemoryState, MemoryStore
from tests.world import tp

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
