"""Finding the topics that a consumer names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence

import anyio
import pytest

from assigner.backends.memory import MemoryStore
from assigner.errors import SourceUnavailable, UnknownTopic, UnreadableRecord
from assigner.model.keys import Keys
from assigner.model.records import TopicConfig
from assigner.store import Found, Store
from assigner.topics import SettingsSource, TopicAnswer, TopicLookups, TopicMissing, TopicUnavailable, set_topic

KEYS = Keys()
KEY = KEYS.group("g").topic("t")


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
def lookups(store: Store) -> TopicLookups:
    return TopicLookups(store, KEYS)


class FakeSource:
    """Answers as told, counts the questions, and waits for `gate` if there is one."""

    name = "kafka"
    remedy = "create it"

    def __init__(self, answers: Mapping[str, TopicAnswer], gate: anyio.Event | None = None) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, ...]] = []
        self.gate = gate

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicAnswer]:
        self.asked.append(tuple(topics))
        if self.gate is not None:
            await self.gate.wait()
        return {topic: self.answers.get(topic, TopicMissing()) for topic in topics}


def config(count: int, **fields: object) -> TopicConfig:
    return TopicConfig(topic="t", partition_count=count, **{"source": "admin", **fields})  # type: ignore[arg-type]


async def test_a_known_topic_is_not_asked_about(store: Store, lookups: TopicLookups) -> None:
    await set_topic(store, KEYS, "g", config(4))
    source = FakeSource({})
    assert (await lookups.ensure("g", "t", source)).partition_count == 4
    assert source.asked == []


async def test_an_unknown_topic_is_asked_for_and_written(store: Store, lookups: TopicLookups) -> None:
    found = config(3, source="kafka", topic_id="id")
    assert await lookups.ensure("g", "t", FakeSource({"t": found})) == found
    stored = await store.get(KEY)
    assert isinstance(stored, Found)
    assert json.loads(stored.entry.value)["topic_id"] == "id"


async def test_settings_are_a_source_too(store: Store, lookups: TopicLookups) -> None:
    source = SettingsSource({"t": 8})
    assert (await lookups.ensure("g", "t", source)).source == "settings"
    with pytest.raises(UnknownTopic, match="topic 'u' of group 'g' is not known, and settings does not have it"):
        await lookups.ensure("g", "u", source)


async def test_a_topic_nobody_has_is_refused_with_a_remedy(store: Store, lookups: TopicLookups) -> None:
    with pytest.raises(UnknownTopic, match=r"topic 't' of group 'g' is not known, .*; create it"):
        await lookups.ensure("g", "t", FakeSource({}))
    assert not isinstance(await store.get(KEY), Found)


async def test_a_source_that_fails_is_not_taken_for_an_absent_topic(store: Store, lookups: TopicLookups) -> None:
    with pytest.raises(SourceUnavailable, match="kafka can't tell: timed out; try again"):
        await lookups.ensure("g", "t", FakeSource({"t": TopicUnavailable("timed out")}))


async def test_an_unreadable_record_is_left_alone(store: Store, lookups: TopicLookups) -> None:
    await store.put(KEY, b"[]")
    with pytest.raises(UnreadableRecord):
        await lookups.ensure("g", "t", FakeSource({"t": config(1)}))


async def test_callers_at_once_cause_one_question(store: Store, lookups: TopicLookups) -> None:
    source = FakeSource({"t": config(5)}, gate=anyio.Event())
    counts: list[int] = []

    async def ask() -> None:
        counts.append((await lookups.ensure("g", "t", source)).partition_count)

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert source.gate is not None
        source.gate.set()
    assert counts == [5] * 50
    assert source.asked == [("t",)]


async def test_a_refusal_is_shared_by_those_that_asked_at_once(store: Store, lookups: TopicLookups) -> None:
    source = FakeSource({}, gate=anyio.Event())
    refusals: list[str] = []

    async def ask() -> None:
        try:
            await lookups.ensure("g", "t", source)
        except UnknownTopic as error:
            refusals.append(str(error))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert source.gate is not None
        source.gate.set()
    assert len(refusals) == 20
    assert len(source.asked) == 1


async def test_when_the_asking_caller_is_cancelled_another_asks(store: Store, lookups: TopicLookups) -> None:
    source = FakeSource({"t": config(5)}, gate=anyio.Event())
    counts: list[int] = []

    async def ask() -> None:
        counts.append((await lookups.ensure("g", "t", source)).partition_count)

    async with anyio.create_task_group() as tasks:
        first = anyio.CancelScope()

        async def ask_until_cancelled() -> None:
            with first:
                await ask()

        tasks.start_soon(ask_until_cancelled)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        assert source.gate is not None
        source.gate.set()
    assert counts == [5]
    assert len(source.asked) == 2


async def test_the_faster_writer_wins(store: Store, lookups: TopicLookups) -> None:
    source = FakeSource({"t": config(5)}, gate=anyio.Event())
    results: list[TopicConfig] = []

    async def ask() -> None:
        results.append(await lookups.ensure("g", "t", source))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        await set_topic(store, KEYS, "g", config(9))
        assert source.gate is not None
        source.gate.set()
    assert [result.partition_count for result in results] == [9]
