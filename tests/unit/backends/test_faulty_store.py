"""The store with faults, and the one that counts: tests of what other tests stand on."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.errors import Compacted, LeaseNotFound, OutcomeUnknown, StoreUnavailable, WatchEnded
from assigner.store import Absent, Batch, Found, Missing, Put
from assigner.testing import virtual_time
from assigner.testing.counting import CountingStore
from assigner.testing.faults import (
    ALL,
    WRITES,
    AnswerAfter,
    Delay,
    EffectAfter,
    FaultyStore,
    LoseAnswer,
    Refuse,
)

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def test_without_faults_it_is_the_store(store: FaultyStore) -> None:
    await store.put("k", b"1")
    granted = await store.grant(10)
    await store.keep_alive(granted.lease)
    await store.remaining(granted.lease)
    await store.revoke(granted.lease)
    await store.delete("k")
    assert isinstance(await store.get("k"), Missing)
    assert (await store.list("")).entries == ()


async def test_a_refused_call_has_no_effect_and_the_next_one_works(store: FaultyStore) -> None:
    refused = store.inject(Refuse())
    with pytest.raises(StoreUnavailable):
        await store.put("k", b"")
    assert isinstance(await store.get("k"), Missing)
    assert refused.hits == 1


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_response_leaves_the_outcome_unknown(store: FaultyStore, applied: bool) -> None:
    store.inject(LoseAnswer(applied=applied))
    await store.get("k")
    with pytest.raises(OutcomeUnknown):
        await store.transact([Absent("k")], [Put("k", b"")])
    assert isinstance(await store.get("k"), Found) == applied


async def test_a_delayed_call_takes_effect_late(store: FaultyStore) -> None:
    store.inject(Delay(30), kinds={"put"})
    before = virtual_time.current().time()
    await store.put("k", b"")
    assert virtual_time.current().time() == before + 30


async def test_a_write_may_take_effect_after_its_caller_got_an_unknown_outcome(store: FaultyStore) -> None:
    store.inject(EffectAfter(error_after=5, effect_after=9))
    before = virtual_time.current().time()
    with pytest.raises(OutcomeUnknown):
        await store.put("k", b"late")
    assert virtual_time.current().time() == before + 5
    assert store.late_effects == 1
    assert isinstance(await store.get("k"), Missing)
    await anyio.sleep(5)
    found = await store.get("k")
    assert isinstance(found, Found)
    assert found.entry.value == b"late"
    assert store.late_effects == 0


async def test_a_late_effect_comes_after_everything_written_meanwhile(store: FaultyStore) -> None:
    store.inject(EffectAfter(error_after=0, effect_after=10))
    with pytest.raises(OutcomeUnknown):
        await store.put("k", b"older")
    await store.put("k", b"newer")
    await anyio.sleep(11)
    found = await store.get("k")
    assert isinstance(found, Found)
    assert found.entry.value == b"older"


async def test_a_late_effect_is_refused_by_what_it_compares(store: FaultyStore) -> None:
    store.inject(EffectAfter(error_after=0, effect_after=10))
    with pytest.raises(OutcomeUnknown):
        await store.transact([Absent("k")], [Put("k", b"older")])
    await store.put("k", b"newer")
    await anyio.sleep(11)
    found = await store.get("k")
    assert isinstance(found, Found)
    assert found.entry.value == b"newer"
    assert store.late_effects == 0


async def test_a_late_effect_on_a_lease_that_ended_is_nobodys_error(store: FaultyStore) -> None:
    granted = await store.grant(5)
    store.inject(EffectAfter(error_after=0, effect_after=10))
    with pytest.raises(OutcomeUnknown):
        await store.put("k", b"", lease=granted.lease)
    await anyio.sleep(11)
    assert store.late_effects == 0
    assert isinstance(await store.get("k"), Missing)


async def test_a_late_effect_needs_no_caller_and_is_not_called_back(store: FaultyStore) -> None:
    store.inject(EffectAfter(error_after=5, effect_after=9))
    with anyio.move_on_after(1):
        await store.put("k", b"")
    store.heal()
    await anyio.sleep(9)
    assert isinstance(await store.get("k"), Found)


async def test_a_late_effect_waits_for_a_frozen_store(store: FaultyStore) -> None:
    store.inject(EffectAfter(error_after=0, effect_after=1))
    with pytest.raises(OutcomeUnknown):
        await store.put("k", b"")
    store.freeze()
    await anyio.sleep(60)
    assert isinstance(await store.inner.get("k"), Missing)
    store.thaw()
    await anyio.sleep(1)
    assert isinstance(await store.get("k"), Found)


async def test_late_effects_never_come_once_the_store_is_closed() -> None:
    state = MemoryState(LoopClock())
    store, beside = FaultyStore(MemoryStore(state)), MemoryStore(state)
    store.inject(EffectAfter(error_after=0, effect_after=1), times=3)
    for name in ("never", "nor this", "nor that"):
        with pytest.raises(OutcomeUnknown):
            await store.put(name, b"")
    store.freeze()
    await anyio.sleep(5)
    assert store.late_effects == 3
    await store.close()
    assert store.late_effects == 0
    await anyio.sleep(5)
    assert (await beside.list("")).entries == ()


async def test_an_effect_before_its_error_is_no_late_effect() -> None:
    with pytest.raises(ValueError, match="the effect comes last"):
        EffectAfter(error_after=2, effect_after=1)


async def test_a_response_may_come_long_after_the_effect(store: FaultyStore) -> None:
    store.inject(AnswerAfter(30), kinds={"put"})
    before = virtual_time.current().time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "k", b"")
        await anyio.sleep(1)
        assert isinstance(await store.get("k"), Found)
    assert virtual_time.current().time() == before + 30


async def test_what_was_read_may_be_old_when_it_arrives(store: FaultyStore) -> None:
    store.inject(AnswerAfter(30), kinds={"get"})
    found: list[object] = []

    async def read() -> None:
        found.append(await store.get("k"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.sleep(1)
        await store.put("k", b"")
    assert isinstance(found[0], Missing)


async def test_an_error_may_be_late_too(store: FaultyStore) -> None:
    store.inject(AnswerAfter(30))
    before = virtual_time.current().time()
    with pytest.raises(LeaseNotFound):
        await store.put("k", b"", lease=12345)
    assert virtual_time.current().time() == before + 30


async def test_a_late_response_does_not_get_past_a_freeze(store: FaultyStore) -> None:
    store.inject(AnswerAfter(1), kinds={"put"})

    async def put() -> None:
        with pytest.raises(OutcomeUnknown):
            await store.put("k", b"")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put)
        await anyio.sleep(0.5)
        store.freeze()
    store.thaw()
    assert isinstance(await store.get("k"), Found)


async def test_a_read_has_no_outcome_to_leave_unknown(store: FaultyStore) -> None:
    fault = store.inject(EffectAfter(), kinds=ALL)
    await store.get("k")
    await store.list("")
    assert fault.hits == 0


async def test_faults_are_narrowed_down_and_removed(store: FaultyStore) -> None:
    fault = store.inject(Refuse(), kinds=WRITES, times=None, where=lambda kind, key, *_: key == "bad")
    await store.put("good", b"")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.put("bad", b"")
    fault.remove()
    await store.put("bad", b"")


async def test_a_frozen_store_responds_once_thawed(store: FaultyStore) -> None:
    store.freeze()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "k", b"")
        await anyio.sleep(1)
        assert isinstance(await store.inner.get("k"), Missing)
        store.thaw()
    assert isinstance(await store.get("k"), Found)


async def test_a_call_on_a_frozen_store_ends_at_its_deadline(store: FaultyStore) -> None:
    store.freeze()
    with pytest.raises(StoreUnavailable):
        await store.get("k")
    with pytest.raises(OutcomeUnknown):
        await store.put("k", b"")
    store.thaw()
    assert isinstance(await store.get("k"), Missing)


async def test_a_watch_of_a_frozen_store_is_silent_and_loses_nothing(store: FaultyStore) -> None:
    async with store.watch("k", start_revision=1) as items:
        await anext(items)
        with anyio.move_on_after(1):
            await anext(items)
        store.freeze()
        await store.inner.put("k", b"1")
        with anyio.move_on_after(60) as scope:
            await anext(items)
        assert scope.cancelled_caught
        store.thaw()
        batch = await anext(items)
        assert isinstance(batch, Batch)
        assert len(batch.events) == 1


async def test_watches_are_ended_and_compacted_on_request(store: FaultyStore) -> None:
    async with store.watch("k", start_revision=1) as items:
        await anext(items)
        assert store.end_watches() == 1
        with pytest.raises(WatchEnded):
            await anext(items)
    async with store.watch("k", start_revision=1) as items:
        assert store.compact_watches(7) == 1
        with pytest.raises(Compacted) as caught:
            await anext(items)
    assert caught.value.compacted == 7
    assert store.open_watches == 0
    async with store.watch("k", start_revision=1) as items:
        await anext(items)


async def test_a_watch_that_waits_is_broken_too(store: FaultyStore) -> None:
    async def read() -> None:
        async with store.watch("k", start_revision=1) as items:
            await anext(items)
            with pytest.raises(WatchEnded):
                await anext(items)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.sleep(1)
        store.end_watches()


async def test_requests_and_operations_are_counted_apart() -> None:
    store = CountingStore(MemoryStore())
    async with store.watch("", start_revision=1) as items:
        await store.put("a", b"")
        await store.transact([Absent("b"), Absent("c")], [Put("b", b""), Put("c", b"")], otherwise=["b"])
        await store.get("a")
        batch = await anext(items)
    assert isinstance(batch, Batch)
    assert store.requests == {"watch": 1, "put": 1, "transact": 1, "get": 1}
    assert store.operations == {"put": 3, "delete": 0, "compare": 2, "read": 2}
    assert (store.writes, store.events) == (3, 3)
    store.reset()
    assert store.requests.total() == store.operations.total() == 0
