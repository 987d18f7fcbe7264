"""The worked example of the docs, against a real broker and a real service."""

from __future__ import annotations

import asyncio
import importlib.util
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from assigner.embedded import EmbeddedAssigner
from assigner.records import HandoffMode
from assigner.testing.waiting import eventually
from tests.real_kafka import KafkaBroker

PARTITIONS, RECORDS = 4, 400


def _example() -> Any:
    path = Path(__file__).parents[2] / "docs" / "examples" / "aiokafka_consumer.py"
    spec = importlib.util.spec_from_file_location("aiokafka_consumer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Sink:
    """Takes records only from the newest epoch it has seen, as a sink should."""

    def __init__(self) -> None:
        self.seen: dict[int, set[int]] = defaultdict(set)
        self.epochs: dict[int, int] = {}
        self.workers: set[str] = set()

    def total(self) -> int:
        return sum(len(offsets) for offsets in self.seen.values())

    def of(self, worker: str) -> Any:
        async def process(record: Any, epoch: int) -> None:
            await asyncio.sleep(0)
            assert epoch >= self.epochs.get(record.partition, 0)
            self.epochs[record.partition] = epoch
            self.seen[record.partition].add(record.offset)
            self.workers.add(worker)

        return process


async def produce(kafka: str, topic: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for number in range(count):
            await producer.send(topic, f"{number}".encode(), partition=number % PARTITIONS)


async def test_the_aiokafka_example_loses_nothing_while_workers_come_and_go(kafka_broker: KafkaBroker) -> None:
    example, sink = _example(), Sink()
    kafka, topic, group = kafka_broker.bootstrap, f"orders-{uuid.uuid4().hex[:8]}", "billing"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    assigner = EmbeddedAssigner(topics={group: {topic: PARTITIONS}})
    await anyio.to_thread.run_sync(assigner.__enter__)
    await anyio.to_thread.run_sync(assigner.call, lambda service: _exclusive(service, group))

    def work(name: str) -> asyncio.Task[None]:
        process = sink.of(name)
        return asyncio.create_task(example.consume(assigner.address, kafka, group, topic, name, process))

    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        first = work("worker-1")
        await produce(kafka, topic, RECORDS)
        await eventually(lambda: sink.total() == RECORDS, within=30)

        second = work("worker-2")
        while "worker-2" not in sink.workers:
            await produce(kafka, topic, RECORDS)
        first.cancel()
        await asyncio.wait({first})
        await produce(kafka, topic, RECORDS)
        tps = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        produced = await _ends(example, kafka, tps)

        async def all_committed() -> bool:
            stored = await admin.list_consumer_group_offsets(group, partitions=tps)
            return {tp: one.offset for tp, one in stored.items()} == produced

        await eventually(all_committed, within=30, every=0.2)
        assert {tp: len(sink.seen[tp.partition]) for tp in tps} == produced
        stored = await admin.list_consumer_group_offsets(group, partitions=tps)
        assert {tp: int(one.metadata) for tp, one in stored.items()} == {tp: sink.epochs[tp.partition] for tp in tps}
        second.cancel()
        await asyncio.wait({second})
        for task in (first, second):
            assert task.cancelled() or task.exception() is None
    finally:
        await admin.close()
        await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)


async def _exclusive(service: Any, group: str) -> None:
    """One at a time, so that a commit of the old owner never comes after one of the new."""
    changes = {"debounce": 0.1, "handoff_mode": HandoffMode.EXCLUSIVE}
    await service.instance.operations.set_options(group, changes)


async def _ends(example: Any, kafka: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    async with example.AIOKafkaConsumer(bootstrap_servers=kafka) as reader:
        ends: dict[TopicPartition, int] = await reader.end_offsets(partitions)
        return ends
