"""A leader following what Kafka says of its topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import anyio
import msgspec
import pytest

from assigner.backends.memory import MemoryStore
from assigner.errors import StoreUnavailable
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Offset, Stored, TopicConfig, encode, stored
from assigner.store import Compare, CreateRevisionIs, Entry, Operation, Store, TransactionResult, read_all
from assigner.testing.faults import FaultyStore
from assigner.testing.waiting import eventually
from assigner.topics import TopicAnswer, TopicMissing, TopicRefresher, TopicUnavailable
from assigner.topics.refresh import CONFIRM_AFTER, MISSING_AFTER

KEYS = Keys()
GROUP = KEYS.group("g")


class FakeSource:
    name = "kafka"
    remedy = "create it"

    def __init__(self) -> None:
        self.answers: dict[str, TopicAnswer] = {}
        self.asked: list[tuple[str, ...]] = []
        self.error: Exception | None = None

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicAnswer]:
        self.asked.append(tuple(topics))
        if self.error:
            raise self.error
        return {topic: self.answers.get(topic, TopicMissing()) for topic in topics}


class Tally:
    def __init__(self) -> None:
        self.looks: list[tuple[str, int]] = []

    def topics_looked_up(self, group: str, outcome: str, changed: int) -> None:
        self.looks.append((outcome, changed))


def config(count: int, topic_id: str = "id-1", racks: tuple[tuple[str, ...], ...] = ()) -> TopicConfig:
    return TopicConfig(topic="t", partition_count=count, topic_id=topic_id, replica_racks=racks, source="kafka")


class Leader:
    """A group with a leader key, the topics it knows, and a refresher over them."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.source = FakeSource()
        self.tally = Tally()
        self.known: dict[str, Stored[TopicConfig]] = {}

    async def start(self, *configs: TopicConfig) -> None:
        written = await self.store.put(GROUP.leader, b"{}")
        self.fence = CreateRevisionIs(GROUP.leader, written.revision)
        for it in configs:
            await self.store.put(GROUP.topic(it.topic), encode(it))
        await self.reread()

    async def reread(self) -> None:
        entries: Sequence[Entry] = (await read_all(self.store, GROUP.prefix + "config/topics/")).entries
        self.known = {it.record.topic: it for it in (stored(TopicConfig, entry) for entry in entries)}

    def refresher(self, interval: float = 30.0) -> TopicRefresher:
        return TopicRefresher(
            self.store,
            KEYS,
            "g",
            self.source,
            self.fence,
            interval,
            lambda: self.known,
            self.tally,
        )

    async def look(self) -> TopicConfig:
        await self.refresher().refresh()
        await self.reread()
        return self.known["t"].record


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    store = MemoryStore()
    yield Leader(store)
    await store.close()


async def test_growth_is_taken_over(leader: Leader) -> None:
    await leader.start(config(2))
    leader.source.answers["t"] = config(5)
    assert (await leader.look()).partition_count == 5
    assert leader.tally.looks == [("ok", 1)]


async def test_a_recreated_topic_gets_its_new_id_even_with_fewer_partitions(leader: Leader) -> None:
    await leader.start(config(4))
    leader.source.answers["t"] = config(2, "id-2")
    after = await leader.look()
    assert (after.topic_id, after.partition_count) == ("id-2", 2)


async def test_an_id_is_recorded_where_none_was_known(leader: Leader) -> None:
    await leader.start(config(4, ""))
    leader.source.answers["t"] = config(4)
    assert (await leader.look()).topic_id == "id-1"


async def test_fewer_partitions_of_an_unidentified_topic_are_left_alone(leader: Leader) -> None:
    await leader.start(config(4, ""))
    leader.source.answers["t"] = config(2, "id-9")
    assert (await leader.look()).partition_count == 4


async def test_new_racks_are_recorded(leader: Leader) -> None:
    await leader.start(config(1, racks=(("r1",),)))
    leader.source.answers["t"] = config(1, racks=(("r1", "r2"),))
    assert (await leader.look()).replica_racks == (("r1", "r2"),)


async def test_nothing_new_writes_nothing(leader: Leader) -> None:
    await leader.start(config(2))
    leader.source.answers["t"] = config(2)
    revision = leader.known["t"].mod_revision
    await leader.look()
    assert leader.known["t"].mod_revision == revision


@pytest.mark.parametrize("answer", [TopicUnavailable("timed out"), config(1)], ids=["unavailable", "smaller"])
async def test_uncertain_answers_change_nothing(leader: Leader, answer: TopicAnswer) -> None:
    await leader.start(config(2))
    leader.source.answers["t"] = answer
    for _ in range(MISSING_AFTER):
        assert await leader.look() == config(2)


# --- topics that Kafka does not have ---------------------------------------------------------------------------------


async def looked(leader: Leader, refresher: TopicRefresher, *answers: TopicAnswer) -> TopicConfig:
    """The topic's configuration after the source gave these answers in turn."""
    for answer in answers:
        leader.source.answers["t"] = answer
        await refresher.refresh()
        await leader.reread()
    return leader.known["t"].record


async def test_a_topic_is_missing_once_kafka_has_said_so_several_times(leader: Leader) -> None:
    await leader.start(config(2))
    refresher = leader.refresher()
    assert not (await looked(leader, refresher, *[TopicMissing()] * (MISSING_AFTER - 1))).missing
    assert await looked(leader, refresher, TopicMissing()) == msgspec.structs.replace(config(2), missing=True)
    revision = leader.known["t"].mod_revision
    await looked(leader, refresher, TopicMissing(), TopicMissing())
    assert leader.known["t"].mod_revision == revision


async def test_an_answer_between_them_that_it_is_there_starts_the_count_again(leader: Leader) -> None:
    await leader.start(config(2))
    almost = [TopicMissing()] * (MISSING_AFTER - 1)
    assert not (await looked(leader, leader.refresher(), *almost, config(2), *almost)).missing


async def test_a_topic_that_is_back_is_missing_no_longer(leader: Leader) -> None:
    await leader.start(config(2))
    missing = [TopicMissing()] * MISSING_AFTER
    assert await looked(leader, leader.refresher(), *missing, TopicUnavailable("timed out"), config(2)) == config(2)


@pytest.mark.virtual_time
async def test_it_looks_again_soon_if_a_topic_seems_to_be_missing(leader: Leader) -> None:
    await leader.start(config(2))

    async def is_missing() -> bool:
        await leader.reread()
        return leader.known["t"].record.missing

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leader.refresher(interval=10_000.0).run)
        await eventually(is_missing, within=MISSING_AFTER * CONFIRM_AFTER)
        tasks.cancel_scope.cancel()
    assert len(leader.source.asked) == MISSING_AFTER


async def offsets(leader: Leader) -> list[str]:
    entries = (await read_all(leader.store, KEYS.offsets("g"))).entries
    return [entry.key.removeprefix(KEYS.offsets("g")) for entry in entries]


async def commit(leader: Leader, *tps: TopicPartition) -> None:
    for tp in tps:
        await leader.store.put(KEYS.offset("g", tp), encode(Offset(offset=7)))


async def test_offsets_of_a_recreated_topic_are_deleted_and_no_others(leader: Leader) -> None:
    """Also those of partitions that nobody owns."""
    await leader.start(config(300))
    await commit(leader, *(TopicPartition("t", number) for number in range(300)), TopicPartition("t-2", 0))
    leader.source.answers["t"] = config(2, "id-2")
    await leader.look()
    assert await offsets(leader) == ["t-2/0"]


class CommitsMeanwhile(FaultyStore):
    """An owner commits an offset of the new topic right after the topic got its new id."""

    def __init__(self, store: Store, tp: TopicPartition) -> None:
        super().__init__(store)
        self.tp = tp

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        result = await super().transact(compares, operations, otherwise=otherwise)
        if any(operation.key == GROUP.topic("t") for operation in operations):
            await self.put(KEYS.offset("g", self.tp), encode(Offset(offset=1, topic_id="id-2")))
        return result


async def test_what_is_committed_of_the_new_topic_meanwhile_stays(leader: Leader) -> None:
    await leader.start(config(3))
    await commit(leader, *(TopicPartition("t", number) for number in range(3)))
    leader.source.answers["t"] = config(3, "id-2")
    store = CommitsMeanwhile(leader.store, TopicPartition("t", 1))
    refresher = TopicRefresher(store, KEYS, "g", leader.source, leader.fence, 30.0, lambda: leader.known, leader.tally)
    await refresher.refresh()
    assert await offsets(leader) == ["t/1"]


async def test_topics_that_an_operator_set_are_not_looked_up(leader: Leader) -> None:
    await leader.start(TopicConfig(topic="t", partition_count=2, source="admin"))
    assert (await leader.look()).partition_count == 2
    assert leader.source.asked == []


async def test_fields_of_others_survive(leader: Leader) -> None:
    await leader.start()
    await leader.store.put(GROUP.topic("t"), encode(config(2), {"owner_team": "blue"}))
    await leader.reread()
    leader.source.answers["t"] = config(3)
    await leader.look()
    assert leader.known["t"].extra == {"owner_team": "blue"}


async def test_a_deposed_leader_writes_nothing(leader: Leader) -> None:
    await leader.start(config(2))
    await leader.store.delete(GROUP.leader)
    await leader.store.put(GROUP.leader, b"{}")
    leader.source.answers["t"] = config(5)
    assert (await leader.look()).partition_count == 2


async def test_a_count_set_meanwhile_is_not_overwritten(leader: Leader) -> None:
    await leader.start(config(2))
    operators = TopicConfig(topic="t", partition_count=9, source="admin")
    await leader.store.put(GROUP.topic("t"), encode(operators))
    leader.source.answers["t"] = config(5)
    assert await leader.look() == operators


async def test_a_partial_lookup_is_counted_as_such(leader: Leader) -> None:
    await leader.start(config(2), msgspec.structs.replace(config(2), topic="u"))
    leader.source.answers = {"t": config(3), "u": TopicUnavailable("timed out")}
    await leader.look()
    leader.source.answers["t"] = TopicUnavailable("timed out")
    await leader.look()
    assert leader.tally.looks == [("partial", 1), ("failed", 0)]


async def test_it_looks_again_after_each_interval(leader: Leader) -> None:
    await leader.start(config(2))
    leader.source.answers["t"] = config(2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leader.refresher(interval=0.01).run)
        await eventually(lambda: len(leader.source.asked) >= 3)
        tasks.cancel_scope.cancel()


async def test_it_survives_a_source_and_a_store_that_fail(leader: Leader) -> None:
    await leader.start(config(2))
    leader.source.answers["t"] = config(3)
    leader.source.error = StoreUnavailable("no answer")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leader.refresher(interval=0.01).run)
        await eventually(lambda: ("failed", 0) in leader.tally.looks)
        leader.source.error = None
        await eventually(lambda: ("ok", 1) in leader.tally.looks)
        tasks.cancel_scope.cancel()
    await leader.reread()
    assert leader.known["t"].record.partition_count == 3
