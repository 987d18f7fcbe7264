"""Unmodified Kafka clients that write and read through a gateway: confluent-kafka, aiokafka, kafka-python.

The first and the last block, so the event loop that the gateway runs on calls them on threads.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.servers.mock_kafka import LOGGED

SECONDS = 60.0
"""How long a client may take on a busy machine."""


def write(bootstrap: str, topic: str, values: list[bytes], **properties: Any) -> Producer:
    """Produce the values, and wait until the broker has them, or with `acks=0` until they were sent. Then some may be
    lost if the producer is dropped before they have arrived, whoever is in between."""
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **LOGGED, **properties})
    for value in values:
        producer.produce(topic, value=value, on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failures
    return producer


def read(bootstrap: str, topic: str, partitions: int, count: int, **properties: Any) -> list[bytes]:
    """Read that many records of the topic from its beginning, without a group."""
    found: list[bytes] = []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **LOGGED, **properties})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    until = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < until:
        found += [bytes(one.value() or b"") for one in consumer.consume(500, 0.2) if not one.error()]
    consumer.close()
    return found


async def aio_round(bootstrap: str, topic: str, value: bytes, **properties: Any) -> bytes:
    """Write a record with aiokafka and read it back."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **properties)
    await producer.start()
    try:
        written = await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **properties)
    await consumer.start()
    try:
        where = AioPartition(topic, written.partition)
        consumer.assign([where])
        consumer.seek(where, written.offset)
        return bytes((await consumer.getone()).value)
    finally:
        await consumer.stop()


def refusal(bootstrap: str, **properties: Any) -> str:
    """Why a client can't list topics; empty: it can."""
    heard: list[str] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "error_cb": lambda error: heard.append(str(error)), **LOGGED, **properties}
    )
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            producer.list_topics(timeout=1)
        except KafkaException:
            producer.poll(0)
            if heard:
                return "; ".join(heard)
        else:
            return ""
    return "nothing happened"


def trusting(authority: Any) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
