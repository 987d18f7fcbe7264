"""aiokafka with partitions from the assigner, against a real broker and a real service: the adapter, and its page."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from assigner.client.aiokafka import AssignedKafkaConsumer
from assigner.embedded import EmbeddedAssigner
from assigner.model.records import HandoffMode
from assigner.testing.waiting import eventually
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.ports import free_port
from tests.unit.project.test_docs import ROOT, Example, blocks

PARTITIONS, RECORDS = 4, 400
PATIENCE = 60.0


class Sink:
    """Takes records only from the newest epoch it has seen, as a sink should."""

    def __init__(self) -> None:
        self.seen: dict[int, set[int]] = defaultdict(set)
        self.epochs: dict[int, int] = {}
        self.workers: set[str] = set()

    def total(self) -> int:
        return sum(len(offsets) for offsets in self.seen.values())

    def take(self, worker: str, record: Any, epoch: int | None) -> None:
        assert epoch is not None
        assert epoch >= self.epochs.get(record.partition, 0)
        self.epochs[record.partition] = epoch
        self.seen[record.partition].add(record.offset)
        self.workers.add(worker)


async def produce(kafka: str, topic: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for number in range(count):
            await producer.send(topic, f"{number}".encode(), partition=number % PARTITIONS)


async def test_nothing_is_lost_while_workers_come_and_go(kafka_broker: KafkaBroker) -> None:
    sink = Sink()
    readers: dict[str, AssignedKafkaConsumer] = {}
    kafka, topic, group = kafka_broker.bootstrap, f"orders-{uuid.uuid4().hex[:8]}", "billing"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    assigner = EmbeddedAssigner(topics={group: {topic: PARTITIONS}})
    await anyio.to_thread.run_sync(assigner.__enter__)
    await anyio.to_thread.run_sync(assigner.call, lambda service: _exclusive(service, group))

    async def work(name: str) -> None:
        place = (assigner.address, kafka, group, name, [topic])
        async with AssignedKafkaConsumer(*place, until_signal=False, drain_within=PATIENCE) as records:
            readers[name] = records
            async for record in records:
                sink.take(name, record, records.epoch_of(record))

    try:
        await anyio.to_thread.run_sync(kafka_broker.create_topic, topic, PARTITIONS)
        first = asyncio.create_task(work("worker-1"))
        await produce(kafka, topic, RECORDS)
        await eventually(lambda: sink.total() == RECORDS, within=PATIENCE)

        second = asyncio.create_task(work("worker-2"))
        while "worker-2" not in sink.workers:
            await produce(kafka, topic, RECORDS)
        await readers["worker-1"].stop()
        await first
        await produce(kafka, topic, RECORDS)
        tps = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        produced = await _ends(kafka, tps)

        async def all_committed() -> bool:
            stored = await admin.list_consumer_group_offsets(group, partitions=tps)
            return {tp: one.offset for tp, one in stored.items()} == produced

        await eventually(all_committed, within=PATIENCE, every=0.2)
        assert {tp: len(sink.seen[tp.partition]) for tp in tps} == produced
        stored = await admin.list_consumer_group_offsets(group, partitions=tps)
        assert {tp: int(one.metadata) for tp, one in stored.items()} == {tp: sink.epochs[tp.partition] for tp in tps}
        await readers["worker-2"].stop()
        await second
    finally:
        await admin.close()
        await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)


async def _exclusive(service: Any, group: str) -> None:
    """One at a time, so that a commit of the old owner never comes after one of the new."""
    changes = {"debounce": 0.1, "handoff_mode": HandoffMode.EXCLUSIVE}
    await service.instance.operations.set_options(group, changes)


async def _ends(kafka: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    async with AIOKafkaConsumer(bootstrap_servers=kafka) as reader:
        ends: dict[TopicPartition, int] = await reader.end_offsets(partitions)
        return ends


# --- the page ----------------------------------------------------------------------------------------------------


def commands() -> list[list[str]]:
    """What the page tells to type, without the prompts."""
    (text,) = blocks(ROOT / "docs" / "how-to" / "consume-with-aiokafka.md", "console")
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


@pytest.mark.processes
async def test_the_page_does_what_it_says(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    install, create, serve, consume = commands()
    topic, port = f"orders-{uuid.uuid4().hex[:8]}", free_port()
    places = {"127.0.0.1:9092": kafka_broker.bootstrap, "127.0.0.1:50051": f"127.0.0.1:{port}", "orders": topic}
    assert install[:2] == ["pip", "install"]
    # What Kafka's own tool would do takes a second of Java; its flags are Kafka's affair.
    assert create[0] == "kafka-topics.sh"
    partitions = int(create[create.index("--partitions") + 1])
    await anyio.to_thread.run_sync(kafka_broker.create_topic, topic, partitions)

    def run(words: list[str], name: str, *more: str) -> Example:
        at = ["-m", "assigner.cli"] if words[0] == "assigner" else []
        typed = [sys.executable, *at, *(places.get(word, word) for word in words[1:] if word != "&"), *more]
        return Example(tmp_path / name, typed)

    ports = ["--grpc-port", str(port), "--http-port", "0", "--debounce", "0.1"]
    with run(serve, "service", *ports), run(consume, "first") as first:
        await produce_until(kafka_broker.bootstrap, topic, lambda: "epoch" in first.output)
        second = [word.replace("worker-1", "worker-2") for word in consume]
        with run(second, "second") as other:
            await produce_until(kafka_broker.bootstrap, topic, lambda: "epoch" in other.output)
            first.process.send_signal(signal.SIGINT)
            assert await anyio.to_thread.run_sync(first.process.wait, PATIENCE) == 0, first.output
            await produce_until(kafka_broker.bootstrap, topic, lambda: partitions_in(other.output) == set(range(12)))
            assert "Traceback" not in first.output + other.output


async def produce_until(kafka: str, topic: str, is_enough: Any) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        with anyio.fail_after(2 * PATIENCE):
            while not is_enough():
                for partition in range(12):
                    await producer.send(topic, b"one", partition=partition)
                await anyio.sleep(0.2)


def partitions_in(output: str) -> set[int]:
    return {int(line.split()[0].rpartition("/")[2]) for line in output.splitlines() if " epoch " in line}
