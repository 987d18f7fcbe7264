"""Topics as a real Kafka describes them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from assigner.backends.memory import MemoryStore
from assigner.client import AssignerConsumer, Handler, TopicPartition
from assigner.errors import SourceUnavailable, UnknownTopic
from assigner.model.keys import Keys
from assigner.model.records import Stored, TopicConfig, stored
from assigner.observability.metrics import Metrics
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, KafkaSection, Settings
from assigner.store import CreateRevisionIs, Found, Store
from assigner.testing.waiting import eventually
from assigner.topics import KafkaSource, TopicLookups, TopicMissing, TopicRefresher, TopicUnavailable
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED

GROUP = "readers"


class Kafka:
    """An operator's hands on the broker."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self._admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap, **LOGGED})

    async def create(self, topic: str, partitions: int) -> str:
        await anyio.to_thread.run_sync(self.broker.create_topic, topic, partitions)
        return topic

    async def grow(self, topic: str, partitions: int) -> None:
        await self._done(lambda: self._admin.create_partitions([NewPartitions(topic, partitions)]))

    async def delete(self, topic: str) -> None:
        await self._done(lambda: self._admin.delete_topics([topic]))

    async def _done(self, request: Callable[[], dict[str, Any]]) -> None:
        def run() -> None:
            for future in request().values():
                future.result(timeout=30)

        await anyio.to_thread.run_sync(run)


@pytest.fixture
def kafka(kafka_broker: KafkaBroker) -> Kafka:
    return Kafka(kafka_broker)


@pytest.fixture
async def source(kafka_broker: KafkaBroker) -> AsyncIterator[KafkaSource]:
    source = KafkaSource(kafka_broker.bootstrap, timeout=10)
    yield source
    await source.aclose()


@pytest.fixture
def topic() -> str:
    return f"events-{uuid.uuid4().hex[:8]}"


async def described(
    source: KafkaSource, topic: str, condition: Callable[[TopicConfig], bool] = lambda _: True
) -> TopicConfig:
    """Kafka's metadata follows a change with a delay: ask until it says what is expected."""
    answers: list[TopicConfig] = []

    async def satisfied() -> bool:
        answer = (await source.describe([topic]))[topic]
        if isinstance(answer, TopicConfig) and condition(answer):
            answers.append(answer)
        return bool(answers)

    await eventually(satisfied, within=30, every=0.05)
    return answers[0]


async def test_a_topic_has_its_count_its_id_and_the_racks_of_its_replicas(
    kafka: Kafka, source: KafkaSource, topic: str
) -> None:
    config = await described(source, await kafka.create(topic, 3))
    assert config.partition_count == 3
    assert len(config.topic_id) >= 20
    assert config.replica_racks == (("rack-1",),) * 3
    assert config.source == "kafka"


async def test_growth_shows_and_keeps_the_id(kafka: Kafka, source: KafkaSource, topic: str) -> None:
    before = await described(source, await kafka.create(topic, 2))
    await kafka.grow(topic, 5)
    after = await described(source, topic, lambda config: config.partition_count == 5)
    assert after.topic_id == before.topic_id


async def test_a_topic_made_again_has_another_id(kafka: Kafka, source: KafkaSource, topic: str) -> None:
    before = await described(source, await kafka.create(topic, 2))
    await kafka.delete(topic)
    await recreate(kafka, topic, 2)
    after = await described(source, topic, lambda config: config.topic_id != before.topic_id)
    assert after.partition_count == 2


async def recreate(kafka: Kafka, topic: str, partitions: int) -> None:
    """A deleted name is free again only after a moment."""

    async def made() -> bool:
        try:
            await kafka.create(topic, partitions)
        except KafkaException:
            return False
        return True

    await eventually(made, within=30, every=0.1)


async def missing(source: KafkaSource, topic: str) -> bool:
    return (await source.describe([topic]))[topic] == TopicMissing()


async def test_known_and_unknown_topics_are_distinguished_in_one_response(
    kafka: Kafka, source: KafkaSource, topic: str
) -> None:
    await described(source, await kafka.create(topic, 1))
    answers = await source.describe([topic, "nowhere-to-be-found", topic])
    assert isinstance(answers[topic], TopicConfig)
    assert answers["nowhere-to-be-found"] == TopicMissing()


async def test_asking_for_a_topic_does_not_create_it(source: KafkaSource, topic: str) -> None:
    for _ in range(5):
        assert await missing(source, topic)


async def test_more_topics_than_fit_one_request_are_all_answered(source: KafkaSource) -> None:
    names = [f"absent-{number}" for number in range(1100)]
    answers = await source.describe(names)
    assert set(answers) == set(names)
    assert set(answers.values()) == {TopicMissing()}


async def test_a_source_goes_on_after_it_was_closed(kafka: Kafka, source: KafkaSource, topic: str) -> None:
    await described(source, await kafka.create(topic, 1))
    await source.aclose()
    assert (await described(source, topic)).partition_count == 1


async def test_a_consumers_topic_is_discovered_and_written(
    kafka: Kafka, source: KafkaSource, topic: str, memory: Store
) -> None:
    await described(source, await kafka.create(topic, 4))
    config = await TopicLookups(memory, Keys()).ensure(GROUP, topic, source)
    assert (config.partition_count, config.source) == (4, "kafka")
    assert (await current(memory, topic))[topic].record == config
    with pytest.raises(UnknownTopic, match=r"topic 'no-such' of group 'readers' .* create it in Kafka"):
        await TopicLookups(memory, Keys()).ensure(GROUP, "no-such", source)


async def test_a_leader_follows_growth_deletion_and_return(
    kafka: Kafka, source: KafkaSource, topic: str, memory: Store
) -> None:
    await described(source, await kafka.create(topic, 2))
    first = await TopicLookups(memory, Keys()).ensure(GROUP, topic, source)

    await kafka.grow(topic, 3)
    grown = await refreshed(memory, source, topic, lambda config: config.partition_count == 3)
    assert grown.topic_id == first.topic_id

    await kafka.delete(topic)
    await eventually(lambda: missing(source, topic), within=30, every=0.05)
    assert await refresh_once(memory, source, topic) == 0
    assert (await current(memory, topic))[topic].record == grown

    await recreate(kafka, topic, 2)
    again = await refreshed(memory, source, topic, lambda config: config.topic_id != first.topic_id)
    assert again.partition_count == 2


async def test_an_unreachable_broker_is_an_answer_in_time(memory: Store, unused_address: str) -> None:
    source = KafkaSource(unused_address, timeout=1.0)
    with anyio.fail_after(40):  # librdkafka's own patience is a minute
        answers = await source.describe(["a", "b"])
    assert all(isinstance(answer, TopicUnavailable) for answer in answers.values())
    with pytest.raises(SourceUnavailable, match=r"kafka can't tell: .*; try again"):
        await TopicLookups(memory, Keys()).ensure(GROUP, "a", source)
    await source.aclose()


async def test_a_frozen_broker_does_not_block_the_loop(start_kafka: Callable[..., KafkaBroker]) -> None:
    broker = start_kafka()
    source = KafkaSource(broker.bootstrap, timeout=1.0)
    assert (await source.describe(["a"]))["a"] == TopicMissing()
    broker.freeze()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            with anyio.fail_after(40):
                assert isinstance((await source.describe(["a"]))["a"], TopicUnavailable)
            tasks.cancel_scope.cancel()
        assert ticks > 20
    finally:
        broker.thaw()
    await source.aclose()


# --- the store's side --------------------------------------------------------------------------------------------


@pytest.fixture
async def memory() -> AsyncIterator[Store]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
def unused_address() -> str:
    """Nobody listens on port 1."""
    return "127.0.0.1:1"


async def current(store: Store, topic: str) -> dict[str, Stored[TopicConfig]]:
    found = await store.get(Keys().group(GROUP).topic(topic))
    assert isinstance(found, Found)
    return {topic: stored(TopicConfig, found.entry)}


async def refresh_once(store: Store, source: KafkaSource, topic: str) -> int:
    leader = Keys().group(GROUP).leader
    found = await store.get(leader)
    if not isinstance(found, Found):
        await store.put(leader, b"{}")
        found = await store.get(leader)
    assert isinstance(found, Found)
    fence = CreateRevisionIs(leader, found.entry.create_revision)
    known = await current(store, topic)
    refresher = TopicRefresher(store, Keys(), GROUP, source, fence, 30.0, lambda: known, Metrics())
    return await refresher.refresh()


async def refreshed(
    store: Store, source: KafkaSource, topic: str, condition: Callable[[TopicConfig], bool]
) -> TopicConfig:
    async def followed() -> bool:
        await refresh_once(store, source, topic)
        return condition((await current(store, topic))[topic].record)

    await eventually(followed, within=30, every=0.05)
    return (await current(store, topic))[topic].record


async def test_a_service_finds_a_topic_in_kafka_and_follows_its_growth(kafka: Kafka, topic: str) -> None:
    settings = Settings(
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        kafka=KafkaSection(bootstrap_servers=kafka.broker.bootstrap, refresh_interval=0.2),
    )
    await kafka.create(topic, 2)
    async with (
        Service(settings) as service,
        AssignerConsumer(service.address, GROUP, "reader", [topic], Handler()) as reader,
    ):
        await eventually(lambda: len(reader.partitions) == 2, within=30)
        await kafka.grow(topic, 5)
        await eventually(lambda: len(reader.partitions) == 5, within=30)
        counted = (await service.instance.metrics.render()).decode()
    assert f'assigner_topic_changes_total{{group="{GROUP}"}} 1.0' in counted
    assert f'assigner_topic_lookups_total{{group="{GROUP}",outcome="ok"}}' in counted


async def test_offsets_of_a_topic_vanish_with_it_and_do_not_come_back_with_its_successor(
    kafka: Kafka, topic: str
) -> None:
    settings = Settings(
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        kafka=KafkaSection(bootstrap_servers=kafka.broker.bootstrap, refresh_interval=0.2),
    )
    await kafka.create(topic, 1)
    partition = TopicPartition(topic, 0)
    async with (
        Service(settings) as service,
        AssignerConsumer(service.address, GROUP, "reader", [topic], Handler()) as reader,
    ):
        await eventually(lambda: len(reader.partitions) == 1, within=30)
        await reader.commit({partition: 7})
        first = reader.partitions[partition]

        async def is_gone() -> bool:
            return not await reader.committed([partition])

        assert not await is_gone()
        await kafka.delete(topic)
        await eventually(is_gone, within=30)
        await recreate(kafka, topic, 1)
        await eventually(lambda: reader.partitions.get(partition, 0) > first, within=30)
        assert await is_gone()
        await reader.commit({partition: 3})
        assert not await is_gone()
