"""Setting topics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from assigner.backends.memory import MemoryStore
from assigner.errors import (
    FailedPrecondition,
    InvalidInput,
    InvalidName,
    OutcomeUnknown,
    StoreUnavailable,
    UnreadableRecord,
)
from assigner.model.keys import Keys
from assigner.model.records import TopicConfig, encode
from assigner.store import Compare, Found, Operation, Store, TransactionResult
from assigner.topics import set_topic
from assigner.topics.writer import add_topic

KEYS = Keys()
KEY = KEYS.group("g").topic("t")


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


def config(count: int, **fields: object) -> TopicConfig:
    return TopicConfig(topic="t", partition_count=count, **{"source": "admin", **fields})  # type: ignore[arg-type]


async def fields(store: Store, key: str = KEY) -> dict[str, object]:
    found = await store.get(key)
    assert isinstance(found, Found)
    decoded: dict[str, object] = json.loads(found.entry.value)
    return decoded


# --- setting ---


async def test_a_topic_is_set_and_grows(store: Store) -> None:
    assert (await set_topic(store, KEYS, "g", config(4))).partition_count == 4
    assert (await set_topic(store, KEYS, "g", config(6))).partition_count == 6
    assert (await fields(store))["partition_count"] == 6


async def test_setting_what_is_there_writes_nothing(store: Store) -> None:
    await set_topic(store, KEYS, "g", config(4))
    before = await store.get(KEY)
    await set_topic(store, KEYS, "g", config(4))
    after = await store.get(KEY)
    assert isinstance(before, Found)
    assert isinstance(after, Found)
    assert after.entry == before.entry


async def test_shrinking_is_refused_unless_forced(store: Store) -> None:
    await set_topic(store, KEYS, "g", config(6))
    with pytest.raises(
        FailedPrecondition, match="topic 't' of group 'g' has 6 partitions; 4 would drop the ownership of 2"
    ):
        await set_topic(store, KEYS, "g", config(4))
    assert (await set_topic(store, KEYS, "g", config(4), force=True)).partition_count == 4


async def test_fields_of_others_survive(store: Store) -> None:
    await store.put(KEY, b'{"topic":"t","partition_count":2,"retention":"7d"}')
    await set_topic(store, KEYS, "g", config(3))
    written = await fields(store)
    assert (written["partition_count"], written["retention"]) == (3, "7d")


async def test_a_count_set_by_an_operator_keeps_the_topics_identity(store: Store) -> None:
    discovered = config(2, topic_id="abc", replica_racks=(("r1",), ("r2",)), source="kafka")
    await set_topic(store, KEYS, "g", discovered)
    after = await set_topic(store, KEYS, "g", config(3))
    assert (after.topic_id, after.replica_racks, after.source) == ("abc", (("r1",), ("r2",)), "admin")


@pytest.mark.parametrize("count", [0, -1, 1_000_001])
async def test_a_count_out_of_range_is_refused(store: Store, count: int) -> None:
    with pytest.raises(InvalidInput, match=r"topic 't' can't have .* partitions; use 1 to 100000"):
        await set_topic(store, KEYS, "g", config(count))


async def test_the_largest_count_is_taken(store: Store) -> None:
    assert (await set_topic(store, KEYS, "g", config(1_000_000))).partition_count == 1_000_000


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 250, "tab\t"])
async def test_a_bad_topic_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidName):
        await set_topic(store, KEYS, "g", TopicConfig(topic=name, partition_count=1))


async def test_a_bad_group_name_is_refused(store: Store) -> None:
    with pytest.raises(InvalidName, match="branch of the store"):
        await set_topic(store, KEYS, "consumers", config(1))


async def test_an_unreadable_record_is_replaced_by_force_only(store: Store) -> None:
    await store.put(KEY, b"not json")
    with pytest.raises(UnreadableRecord, match="or replace it by setting the topic with force"):
        await set_topic(store, KEYS, "g", config(2))
    assert (await store.get(KEY)).entry.value == b"not json"  # type: ignore[union-attr]
    assert (await set_topic(store, KEYS, "g", config(2), force=True)).partition_count == 2


async def test_of_concurrent_growths_the_largest_stays(store: Store) -> None:
    async def grow(count: int) -> None:
        try:
            await set_topic(store, KEYS, "g", config(count))
        except FailedPrecondition as error:
            assert "would drop" in str(error)  # noqa: PT017

    async with anyio.create_task_group() as tasks:
        for count in (3, 9, 5, 7):
            tasks.start_soon(grow, count)
    assert (await fields(store))["partition_count"] == 9


class LosingResponses(MemoryStore):
    """Writes, and then says that it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 1

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        result = await super().transact(compares, operations, otherwise=otherwise)
        if self.lost:
            self.lost -= 1
            raise OutcomeUnknown("the answer was lost")
        return result


async def test_a_write_of_unknown_outcome_is_looked_up() -> None:
    store = LosingResponses()
    assert (await set_topic(store, KEYS, "g", config(4))).partition_count == 4
    store.lost = 1
    assert (
        await add_topic(store, KEYS, "g", TopicConfig(topic="u", partition_count=2, source="settings"))
    ).partition_count == 2
    await store.close()


class AlwaysLater(MemoryStore):
    """Somebody else writes the topic right before each transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        self.written += 1
        await self.put(KEY, encode(config(1, topic_id=str(self.written))))
        return await super().transact(compares, operations, otherwise=otherwise)


async def test_endless_conflicts_end_in_an_error_that_invites_another_try() -> None:
    store = AlwaysLater()
    with pytest.raises(StoreUnavailable, match="topic 't' of group 'g' is being written by others too; try again"):
        await set_topic(store, KEYS, "g", config(4))
    await store.close()
