"""Ranges whose offsets have gaps, read from a real broker: transactions leave markers and aborted records behind,
compaction removes what was overwritten."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from assigner.model.keys import TopicPartition
from assigner.spark.kafka_offsets import KafkaLog
from assigner.spark.options import SourceOptions, read_options
from assigner.spark.positions import OffsetRange
from assigner.spark.schema import arrow_schema, row_schema
from assigner.spark.source.fetch import read_ranges
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED
from tests.support.service_processes import until

SCHEMA = arrow_schema(row_schema(headers=False, epoch=False))


@pytest.fixture
def make_topic(kafka_broker: KafkaBroker) -> Callable[..., str]:
    def make(**config: str) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        kafka_broker.create_topic(name, 1, **config)
        return name

    return make


def options(broker: KafkaBroker, topic: str, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "kafkaTimeout": "30", **more}
    return read_options(given, streaming=False)


def read(broker: KafkaBroker, topic: str, first: int, end: int, **more: str) -> list[bytes]:
    one = OffsetRange(TopicPartition(topic, 0), 1, first, end)
    return [
        value
        for batch in read_ranges([one], options(broker, topic, **more), SCHEMA)
        for value in batch.column("value").to_pylist()
    ]


def end_of(broker: KafkaBroker, topic: str, **more: str) -> int:
    tp = TopicPartition(topic, 0)
    return KafkaLog(options(broker, topic, **more)).ends([tp])[tp]


def transactional(broker: KafkaBroker) -> Any:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": uuid.uuid4().hex, **LOGGED})
    producer.init_transactions(30)
    return producer


def in_transaction(producer: Any, topic: str, values: list[bytes], *, commit: bool) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def test_ranges_end_although_their_last_offsets_are_markers_and_aborted_records(
    kafka_broker: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic, producer = make_topic(), transactional(kafka_broker)
    in_transaction(producer, topic, [b"a", b"b"], commit=True)
    in_transaction(producer, topic, [b"lost"] * 5, commit=False)
    end = 9  # 2 records, a marker, 5 records, a marker
    # A transaction has ended for its producer before the broker has written the marker.
    until(lambda: end_of(kafka_broker, topic) == end, 60, "the marker of the aborted transaction is written")
    assert read(kafka_broker, topic, 0, end) == [b"a", b"b"]
    assert read(kafka_broker, topic, 2, end) == []
    in_transaction(producer, topic, [b"c"], commit=True)
    # Now what comes after the range tells its end, instead of the end of the log.
    assert read(kafka_broker, topic, 0, 9) == [b"a", b"b"]
    assert read(kafka_broker, topic, 3, 8) == []
    everything = read(kafka_broker, topic, 0, 11, **{"kafka.isolation.level": "read_uncommitted"})
    assert everything == [b"a", b"b", *[b"lost"] * 5, b"c"]


def test_what_an_open_transaction_writes_is_not_there_yet(
    kafka_broker: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic, producer = make_topic(), transactional(kafka_broker)
    in_transaction(producer, topic, [b"a"], commit=True)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    assert end_of(kafka_broker, topic) == 2
    assert end_of(kafka_broker, topic, **{"kafka.isolation.level": "read_uncommitted"}) == 3
    assert read(kafka_broker, topic, 0, 2) == [b"a"]
    producer.commit_transaction(30)


def test_a_compacted_topic_is_read_to_the_end_of_each_range(
    kafka_broker: KafkaBroker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(
        **{
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.bytes": "1048576",
        }
    )
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, **LOGGED})
    for number in range(50):
        producer.produce(topic, b"%d" % number, key=b"same", partition=0)
    assert producer.flush(30) == 0
    deadline = time.monotonic() + 40
    while len(read(kafka_broker, topic, 0, 50)) > 25:
        assert time.monotonic() < deadline, "the broker has not compacted the topic"
        # Only segments that are not written to any more are compacted.
        producer.produce(topic, b"more", key=uuid.uuid4().bytes, partition=0)
        producer.flush(30)
        time.sleep(0.5)
    assert read(kafka_broker, topic, 0, 40) == []
    assert read(kafka_broker, topic, 10, 49) == []
    assert read(kafka_broker, topic, 0, 50) == [b"49"]
