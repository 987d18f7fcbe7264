"""What the memory store does beyond the contract: bounds, its clock, several handles of one state, fairness."""

from __future__ import annotations

import random
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest

from assigner.backend import StoreSettings, load
from assigner.backends.memory import Bounds, MemoryBackend, MemoryState, MemoryStore
from assigner.backends.memory.index import RUN, KeyIndex
from assigner.clock import LoopClock
from assigner.errors import Compacted, InvalidInput, StoreUnavailable, TransactionTooLarge
from assigner.store import Absent, Batch, DeleteEvent, Found, LeaseGone, Limits, Missing, Progress, Put, read_all
from assigner.testing import virtual_time
from assigner.testing.waiting import eventually

pytestmark = pytest.mark.virtual_time


class HandClock:
    """A clock that a test moves by hand, while the loop's own time goes on."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


async def test_the_history_is_bounded_in_revisions() -> None:
    store = MemoryStore(MemoryState(bounds=Bounds(history_revisions=100)))
    for number in range(1000):
        await store.put("k", str(number).encode())
    assert store.state.history.compacted == store.state.revision - 100
    page = await store.list("k", revision=store.state.revision - 99)
    assert [entry.value for entry in page.entries] == [b"900"]
    with pytest.raises(Compacted):
        await store.list("k", revision=store.state.revision - 101)


async def test_the_history_is_bounded_in_bytes() -> None:
    store = MemoryStore(MemoryState(bounds=Bounds(history_bytes=100_000)))
    for _ in range(100):
        await store.put("k", b"v" * 10_000)
    assert 0 < store.state.revision - store.state.history.compacted < 10


async def test_one_write_larger_than_the_history_is_still_kept() -> None:
    store = MemoryStore(MemoryState(bounds=Bounds(history_bytes=100)))
    written = await store.put("k", b"v" * 1000)
    assert store.state.history.compacted == written.revision
    assert isinstance(await store.get("k"), Found)


async def test_a_watcher_that_falls_behind_the_history_gets_an_error_and_costs_no_memory() -> None:
    store = MemoryStore(MemoryState(bounds=Bounds(history_revisions=100)))
    async with store.watch("k", start_revision=1) as items:
        assert isinstance(await anext(items), Progress)
        for _ in range(1000):
            await store.put("k", b"")
        with pytest.raises(Compacted):
            await anext(items)
        with pytest.raises(Compacted):
            await anext(items)


async def test_a_watcher_of_a_quiet_prefix_outlives_any_number_of_other_writes() -> None:
    store = MemoryStore(MemoryState(bounds=Bounds(history_revisions=100)))
    async with store.watch("quiet/", start_revision=1) as items:
        for _ in range(1000):
            await store.put("loud", b"")
        written = await store.put("quiet/k", b"")
        batch = await anext(items)
        assert isinstance(batch, Batch)
        assert batch.revision == written.revision


async def test_a_watcher_that_is_behind_gets_many_revisions_in_one_batch() -> None:
    store = MemoryStore()
    for number in range(50):
        await store.put(f"k{number}", b"")
    async with store.watch("k", start_revision=1) as items:
        batch = await anext(items)
    assert isinstance(batch, Batch)
    assert len(batch.events) == 50


async def test_a_transaction_is_never_split_between_batches() -> None:
    store = MemoryStore()
    for chunk in range(30):
        await store.transact([], [Put(f"{chunk}/{number}", b"") for number in range(128)])
    async with store.watch("", start_revision=1) as items:
        sizes = []
        while isinstance(item := await anext(items), Batch):
            sizes.append(len(item.events))
    assert sum(sizes) == 30 * 128
    assert len(sizes) > 1
    assert all(size % 128 == 0 for size in sizes)


async def test_a_lease_ends_in_time_though_nobody_calls() -> None:
    store = MemoryStore(MemoryState(LoopClock()))
    granted = await store.grant(10)
    await store.put("k", b"", lease=granted.lease)
    async with store.watch("k", start_revision=store.state.revision + 1) as items:
        assert isinstance(await anext(items), Progress)
        before = virtual_time.current().time()
        batch = await anext(items)
        assert isinstance(batch, Batch)
        assert isinstance(batch.events[0], DeleteEvent)
        assert virtual_time.current().time() == before + 10


async def test_a_clock_that_jumps_ends_the_leases_it_jumped_over_before_anything_else_happens() -> None:
    clock = HandClock()
    store = MemoryStore(MemoryState(clock))
    granted = await store.grant(10)
    await store.put("k", b"", lease=granted.lease)
    clock.time += 3600
    assert isinstance(await store.keep_alive(granted.lease), LeaseGone)
    assert isinstance(await store.get("k"), Missing)


async def test_a_clock_that_jumps_is_noticed_though_nobody_calls() -> None:
    clock = HandClock()
    store = MemoryStore(MemoryState(clock))
    granted = await store.grant(10)
    await store.put("k", b"", lease=granted.lease)
    clock.time += 3600
    before = virtual_time.current().time()
    await eventually(lambda: store.state.leases.get(granted.lease) is None, within=5)
    assert virtual_time.current().time() - before <= 1.1


async def test_a_clock_that_stands_still_ends_no_lease() -> None:
    store = MemoryStore(MemoryState(HandClock()))
    granted = await store.grant(10)
    await anyio.sleep(3600)
    assert store.state.leases.get(granted.lease) is not None


async def test_leases_that_are_over_at_once_end_in_the_order_of_their_deadlines() -> None:
    clock = HandClock()
    store = MemoryStore(MemoryState(clock))
    late, early = await store.grant(1), await store.grant(2)
    await store.put("late", b"", lease=late.lease)
    await store.put("early", b"", lease=early.lease)
    clock.time += 0.9
    for _ in range(3):
        await store.keep_alive(late.lease)
        clock.time += 0.5
    clock.time += 10
    start = store.state.revision + 1
    assert isinstance(await store.get("late"), Missing)
    async with store.watch("", start_revision=start) as items:
        batch = await anext(items)
    assert isinstance(batch, Batch)
    assert [event.key for event in batch.events if isinstance(event, DeleteEvent)] == ["early", "late"]
    assert [event.mod_revision for event in batch.events if isinstance(event, DeleteEvent)] == [start, start + 1]


async def test_granting_and_revoking_for_ever_leaves_nothing_behind() -> None:
    store = MemoryStore()
    keeper = await store.grant(3600)
    for _ in range(1000):
        granted = await store.grant(1_000_000)
        await store.revoke(granted.lease)
    await anyio.sleep(5)
    assert len(store.state.leases._deadlines) < 100
    assert store.state.leases.get(keeper.lease) is not None


async def test_handles_of_one_state_see_the_same_and_close_alone() -> None:
    state = MemoryState()
    one, two = MemoryStore(state), MemoryStore(state)
    await one.put("k", b"1")
    await one.close()
    assert isinstance(await two.get("k"), Found)
    with pytest.raises(StoreUnavailable):
        await one.get("k")


async def test_each_opening_of_the_backend_is_a_store_of_its_own_unless_shared() -> None:
    settings, clock = StoreSettings(), LoopClock()
    one, two = [await load("memory").open(settings, clock) for _ in range(2)]
    await one.put("k", b"")
    assert isinstance(await two.get("k"), Missing)
    shared = MemoryBackend.shared(MemoryState(clock))
    three, four = [await shared.open(settings, clock) for _ in range(2)]
    await three.put("k", b"")
    assert isinstance(await four.get("k"), Found)


async def test_a_writer_in_a_loop_starves_nobody() -> None:
    store = MemoryStore()
    seen = 0

    async def read() -> None:
        nonlocal seen
        async with store.watch("k", start_revision=1) as items:
            async for item in items:
                seen += len(item.events) if isinstance(item, Batch) else 0

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(read)
        for _ in range(100):
            await store.put("k", b"")
        assert seen > 500
        tasks.cancel_scope.cancel()


async def test_a_call_that_was_cancelled_had_no_effect() -> None:
    store = MemoryStore()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.put("k", b"")
    assert isinstance(await store.get("k"), Missing)


async def test_the_limits_are_settable() -> None:
    store = MemoryStore(MemoryState(limits=Limits(operations=2, value_bytes=10)))
    with pytest.raises(TransactionTooLarge):
        await store.transact([Absent(f"{number}") for number in range(3)], [])
    with pytest.raises(TransactionTooLarge):
        await store.transact([], [], otherwise=["a", "b", "c"])
    with pytest.raises(TransactionTooLarge):
        await store.put("k", b"v" * 11)


async def test_nonsense_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(InvalidInput):
        await store.put("", b"")
    with pytest.raises(InvalidInput):
        await store.list("", limit=0)
    with pytest.raises(InvalidInput):
        await store.list("", revision=1_000_000)
    for ttl in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput):
            await store.grant(ttl)
    with pytest.raises(InvalidInput):
        store.watch("", start_revision=0)


async def test_nothing_of_a_watch_is_left_when_it_is_over() -> None:
    store = MemoryStore()

    async def read(number: int) -> None:
        async with store.watch(f"{number % 3}", start_revision=1) as items:
            while True:
                await anext(items)

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(read, number)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        await store.put("1", b"")
        tasks.cancel_scope.cancel()
    assert store.state.channels._by_length == {}
    assert store.state.channels._timer is None
    assert store._watches == {}


def test_the_key_index_keeps_any_number_of_keys_in_order() -> None:
    index, chance = KeyIndex(), random.Random(1)
    keys = [f"{number:06}" for number in range(5 * RUN)]
    for key in chance.sample(keys, len(keys)):
        index.add(key)
    assert list(index.under("")) == keys
    gone = set(chance.sample(keys, 4 * RUN))
    for key in gone:
        index.remove(key)
    left = [key for key in keys if key not in gone]
    assert list(index.under("")) == left
    assert list(index.under("0001")) == [key for key in left if key.startswith("0001")]
    assert list(index.under("", left[10])) == left[11:]
    assert all(a < b for a, b in pairwise(index.under("")))
    for key in left:
        index.remove(key)
    assert list(index.under("")) == []


async def test_a_whole_prefix_can_be_read_while_it_is_rewritten() -> None:
    store = MemoryStore()
    for number in range(100):
        await store.put(f"{number:03}", b"old")

    async def rewrite() -> None:
        for number in range(100):
            await store.put(f"{number:03}", b"new")
            await store.delete(f"{99 - number:03}")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewrite)
        page = await read_all(store, "", page_size=7)
    assert len(page.entries) == 100
    assert sum(entry.value == b"new" for entry in page.entries) <= 2
