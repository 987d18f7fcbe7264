"""The compare-and-swap loop: nothing is overwritten unseen, and no outcome stays unknown that can be found out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.errors import FailedPrecondition, OutcomeUnknown, StoreUnavailable, UnreadableRecord
from assigner.model.records import Stored, TopicConfig, encode, stored
from assigner.storage.update import TRIES, UNKNOWN_TRIES, FenceFailed, Lost, Swapped, Unchanged, Updated, swap, update
from assigner.store import Absent, Delete, Exists, Found, Missing, Put, TransactionResult
from assigner.testing.faults import EffectAfter, FaultyStore, LoseAnswer, Refuse
from assigner.testing.waiting import eventually

pytestmark = pytest.mark.virtual_time
KEY, OTHER = "/root/t", "/root/other"
Change = Callable[[Stored[TopicConfig] | None], TopicConfig | None]


@pytest.fixture
async def store() -> AsyncIterator[FaultyStore]:
    store = FaultyStore(MemoryStore(MemoryState(LoopClock())))
    yield store
    await store.close()


def config(count: int) -> TopicConfig:
    return TopicConfig(topic="t", partition_count=count)


def becomes(count: int) -> Change:
    return lambda _: config(count)


def one_more(current: Stored[TopicConfig] | None) -> TopicConfig:
    before = current.record if current else config(0)
    return msgspec.structs.replace(before, partition_count=before.partition_count + 1)


def at_least_four(current: Stored[TopicConfig] | None) -> TopicConfig | None:
    return config(4) if current is None or current.record.partition_count < 4 else None


async def count(store: FaultyStore) -> int:
    found = await store.inner.get(KEY)
    assert isinstance(found, Found)
    return stored(TopicConfig, found.entry).record.partition_count


class Rival:
    """Changes the record right before each of the next `times` transactions."""

    def __init__(self, store: FaultyStore, times: int, write: Callable[[int], bytes]) -> None:
        self._store = store
        self._transact = store.inner.transact
        self._times = times
        self._write = write
        self.transactions = 0
        store.inner.transact = self.transact  # type: ignore[method-assign]

    async def transact(self, *args: object, **options: object) -> TransactionResult:
        if self.transactions < self._times:
            await self._store.inner.put(KEY, self._write(self.transactions))
        self.transactions += 1
        return await self._transact(*args, **options)  # type: ignore[arg-type]


# --- reading and writing -------------------------------------------------------------------------------------------


async def test_an_absent_record_is_written(store: FaultyStore) -> None:
    assert await update(store, KEY, TopicConfig, becomes(3)) == Updated(config(3), (await store.get(KEY)).revision)
    assert await count(store) == 3


async def test_a_present_record_is_changed_from_what_it_is(store: FaultyStore) -> None:
    await store.put(KEY, encode(config(3)))
    assert isinstance(await update(store, KEY, TopicConfig, one_more), Updated)
    assert await count(store) == 4


async def test_fields_of_others_and_the_lease_survive(store: FaultyStore) -> None:
    lease = (await store.grant(60)).lease
    await store.put(KEY, json.dumps({"topic": "t", "partition_count": 3, "theirs": [1]}).encode(), lease=lease)
    await update(store, KEY, TopicConfig, one_more)
    found = await store.get(KEY)
    assert isinstance(found, Found)
    assert json.loads(found.entry.value)["theirs"] == [1]
    assert found.entry.lease == lease


@pytest.mark.parametrize("change", [lambda _: None, becomes(3)], ids=["none", "equal"])
async def test_a_change_that_changes_nothing_writes_nothing(store: FaultyStore, change: Change) -> None:
    before = (await store.put(KEY, encode(config(3)))).revision
    assert await update(store, KEY, TopicConfig, change) == Unchanged(config(3))
    assert (await store.get(KEY)).revision == before


async def test_what_the_change_raises_ends_the_update_with_nothing_written(store: FaultyStore) -> None:
    def refuse(_: Stored[TopicConfig] | None) -> TopicConfig:
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition, match="no"):
        await update(store, KEY, TopicConfig, refuse)
    assert isinstance(await store.get(KEY), Missing)


async def test_a_known_copy_saves_the_read_and_a_stale_one_costs_a_conflict(store: FaultyStore) -> None:
    await store.put(KEY, encode(config(3)))
    found = await store.get(KEY)
    assert isinstance(found, Found)
    reads = store.inject(Refuse(), kinds={"get"}, times=None)
    await update(store, KEY, TopicConfig, one_more, known=stored(TopicConfig, found.entry))
    await update(store, KEY, TopicConfig, one_more, known=stored(TopicConfig, found.entry))
    assert (await count(store), reads.hits) == (5, 0)


# --- conflicts -----------------------------------------------------------------------------------------------------


async def test_on_a_conflict_the_change_is_decided_anew(store: FaultyStore) -> None:
    await store.put(KEY, encode(config(3)))
    Rival(store, 2, lambda number: encode(config(10 * (number + 1))))
    await update(store, KEY, TopicConfig, one_more)
    assert await count(store) == 21


async def test_a_record_that_comes_and_goes_meanwhile_is_no_trouble(store: FaultyStore) -> None:
    await store.put(KEY, encode(config(3)))
    inner = store.inner.transact

    async def after_a_delete(*args: object, **options: object) -> TransactionResult:
        store.inner.transact = inner  # type: ignore[method-assign]
        await store.inner.delete(KEY)
        return await inner(*args, **options)  # type: ignore[arg-type]

    store.inner.transact = after_a_delete  # type: ignore[method-assign]
    await update(store, KEY, TopicConfig, one_more)
    assert await count(store) == 1


async def test_after_the_last_try_nothing_is_written_and_the_error_says_so(store: FaultyStore) -> None:
    rival = Rival(store, TRIES + 1, lambda number: encode(config(100 + number)))
    with pytest.raises(StoreUnavailable, match="the topic is being written by others too; try again"):
        await update(store, KEY, TopicConfig, one_more, what="the topic")
    assert rival.transactions == TRIES
    assert await count(store) == 100 + TRIES - 1


# --- fences --------------------------------------------------------------------------------------------------------


async def test_what_goes_along_is_written_in_the_same_transaction(store: FaultyStore) -> None:
    await store.put("/root/old", b"")
    done = await update(
        store, KEY, TopicConfig, becomes(3), fences=[Absent(OTHER)], operations=[Put(OTHER, b"x"), Delete("/root/old")]
    )
    found = await store.get(OTHER)
    assert isinstance(done, Updated)
    assert isinstance(found, Found)
    assert found.entry.mod_revision == done.revision
    assert isinstance(await store.get("/root/old"), Missing)


async def test_a_fence_that_does_not_hold_is_returned_with_what_was_read(store: FaultyStore) -> None:
    await store.put(OTHER, b"x")
    result = await update(store, KEY, TopicConfig, becomes(3), fences=[Exists("/root/no"), Absent(OTHER)])
    assert isinstance(result, FenceFailed)
    missing, found = result.reads
    assert isinstance(missing, Missing)
    assert isinstance(found, Found)
    assert found.entry.value == b"x"
    assert isinstance(await store.get(KEY), Missing)


# --- unknown outcomes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("before", [0, 3])
async def test_a_write_of_unknown_outcome_is_there_once(store: FaultyStore, before: int, applied: bool) -> None:
    if before:
        await store.put(KEY, encode(config(before)))
    lost = store.inject(LoseAnswer(applied=applied), kinds={"transact"})
    result = await update(store, KEY, TopicConfig, one_more)
    found = await store.get(KEY)
    assert isinstance(found, Found)
    assert result == Updated(config(before + 1), found.entry.mod_revision)
    assert (await count(store), lost.hits) == (before + 1, 1)


@pytest.mark.parametrize("before", [0, 3])
async def test_an_effect_that_comes_later_than_the_error_does_no_harm(store: FaultyStore, before: int) -> None:
    if before:
        await store.put(KEY, encode(config(before)))
    store.inject(EffectAfter(error_after=1, effect_after=5), kinds={"transact"})
    await update(store, KEY, TopicConfig, one_more)
    await update(store, KEY, TopicConfig, one_more)
    await eventually(lambda: store.late_effects == 0)
    assert await count(store) == before + 2


async def test_a_write_that_was_overwritten_before_its_outcome_was_known_is_decided_anew(store: FaultyStore) -> None:
    """Nobody can tell whether it was; a change whose wish is fulfilled has nothing to do."""
    await store.put(KEY, encode(config(3)))

    async def applied_and_overwritten(*args: object, **options: object) -> TransactionResult:
        store.inner.transact = inner  # type: ignore[method-assign]
        await inner(*args, **options)  # type: ignore[arg-type]
        await store.inner.put(KEY, encode(config(8)))
        raise OutcomeUnknown("no answer")

    inner = store.inner.transact
    store.inner.transact = applied_and_overwritten  # type: ignore[method-assign]
    assert await update(store, KEY, TopicConfig, at_least_four) == Unchanged(config(8))


async def test_a_store_that_never_responds_leaves_the_outcome_unknown(store: FaultyStore) -> None:
    lost = store.inject(LoseAnswer(applied=False), kinds={"transact"}, times=None)
    with pytest.raises(OutcomeUnknown, match="did not say whether /root/t was written"):
        await update(store, KEY, TopicConfig, becomes(3))
    assert lost.hits == UNKNOWN_TRIES


async def test_no_error_claims_that_nothing_happened_after_an_unknown_outcome(store: FaultyStore) -> None:
    """`StoreUnavailable` means that the request had no effect, and the first one may have had."""
    store.inject(LoseAnswer(applied=True), kinds={"transact"})
    store.inject(Refuse(), kinds={"transact"})
    with pytest.raises(OutcomeUnknown):
        await update(store, KEY, TopicConfig, becomes(3))
    assert await count(store) == 3


async def test_conflicts_up_to_the_last_try_after_an_unknown_outcome_leave_it_unknown(store: FaultyStore) -> None:
    store.inject(LoseAnswer(applied=True), kinds={"transact"})
    Rival(store, TRIES + 2, lambda number: encode(config(100 * (number + 1))))
    with pytest.raises(OutcomeUnknown, match="may have been written"):
        await update(store, KEY, TopicConfig, one_more)


async def test_a_store_that_refuses_at_once_is_believed(store: FaultyStore) -> None:
    store.inject(Refuse(), kinds={"transact"})
    with pytest.raises(StoreUnavailable):
        await update(store, KEY, TopicConfig, becomes(3))
    assert isinstance(await store.get(KEY), Missing)


# --- unreadable records --------------------------------------------------------------------------------------------


async def test_an_unreadable_record_is_left_alone(store: FaultyStore) -> None:
    await store.put(KEY, b"not json")
    with pytest.raises(UnreadableRecord):
        await update(store, KEY, TopicConfig, becomes(3))
    found = await store.get(KEY)
    assert isinstance(found, Found)
    assert found.entry.value == b"not json"


async def test_an_unreadable_record_is_replaced_where_that_is_allowed(store: FaultyStore) -> None:
    await store.put(KEY, b"not json")
    assert isinstance(await update(store, KEY, TopicConfig, becomes(3), replace_unreadable=True), Updated)
    assert await count(store) == 3


async def test_a_record_that_becomes_unreadable_meanwhile_is_left_alone_too(store: FaultyStore) -> None:
    await store.put(KEY, encode(config(3)))
    Rival(store, 1, lambda _: b"not json")
    with pytest.raises(UnreadableRecord):
        await update(store, KEY, TopicConfig, one_more)


# --- the single write ----------------------------------------------------------------------------------------------


async def test_a_swap_returns_the_record_that_was_faster(store: FaultyStore) -> None:
    await store.put(KEY, b"theirs")
    result = await swap(store, Put(KEY, b"ours"), 0)
    assert isinstance(result, Lost)
    assert isinstance(result.found, Found)
    assert (result.found.entry.value, result.doubtful) == (b"theirs", False)


async def test_equal_bytes_under_another_lease_are_not_ours(store: FaultyStore) -> None:
    lease = (await store.grant(60)).lease
    store.inject(LoseAnswer(applied=False), kinds={"transact"})
    Rival(store, 1, lambda _: b"ours")
    result = await swap(store, Put(KEY, b"ours", lease), 0)
    assert isinstance(result, Lost)
    assert result.doubtful


async def test_a_swap_of_unknown_outcome_returns_the_revision_it_was_written_at(store: FaultyStore) -> None:
    store.inject(LoseAnswer(applied=True), kinds={"transact"})
    result = await swap(store, Put(KEY, b"ours"), 0)
    assert result == Swapped((await store.get(KEY)).revision)
