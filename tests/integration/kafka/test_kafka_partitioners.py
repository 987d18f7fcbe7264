"""Keys against the real producers: records with keys land where our partitioners say, and the stored vectors are true.

`REGENERATE_VECTORS=1` writes the files in `tests/resources/partitions` anew.
"""

from __future__ import annotations

import csv
import io
import os
import random
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from assigner.core.routing.partitioner import Partitioner
from tests.support.servers.kafka import KafkaBroker, KafkaUnavailableError, ensure_kafka
from tests.support.servers.mock_kafka import LOGGED

VECTORS = Path(__file__).parents[2] / "resources" / "partitions"
RANDOM_WHERE_POSSIBLE = {Partitioner.MURMUR2: "murmur2_random", Partitioner.CRC32: "consistent_random"}
"""librdkafka's partitioners that spread records without a key, and hash all others."""
PARTITIONS = (1, 3, 16)
KEYS = 100

pytestmark = pytest.mark.kafka


def keys() -> list[bytes]:
    source = random.Random(7)
    return [
        *(text.encode() for text in ("a", "user-42", "überall", "キー")),
        *(source.randbytes(n) for n in range(1, KEYS)),
    ]


def landed(broker: KafkaBroker, partitioner: str, partitions: int) -> list[int]:
    """Produce a record for each key to a new topic, and return the partitions that the broker confirmed."""
    topic = f"keys-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions)
    found: dict[bytes, int] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None, error
        found[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": partitioner, **LOGGED})
    for key in keys():
        producer.produce(topic, key=key, value=b"", on_delivery=delivered)
    assert producer.flush(60) == 0
    return [found[key] for key in keys()]


def table(rows: Sequence[tuple[bytes, int, int]]) -> str:
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(["key", "partitions", "partition"])
    lines.writerows([key.hex(), count, chosen] for key, count, chosen in rows)
    return written.getvalue()


@pytest.mark.parametrize("partitioner", Partitioner)
def test_records_with_keys_land_where_the_partitioner_says(kafka_broker: KafkaBroker, partitioner: Partitioner) -> None:
    rows = [
        (key, count, chosen)
        for count in PARTITIONS
        for key, chosen in zip(keys(), landed(kafka_broker, RANDOM_WHERE_POSSIBLE[partitioner], count), strict=True)
    ]
    for key, count, chosen in rows:
        assert partitioner.partition_of(key, count) == chosen, (key, count)
    compare(f"librdkafka_{partitioner.value}.csv", table(rows))


def test_the_default_of_librdkafka_is_crc32(kafka_broker: KafkaBroker) -> None:
    topic = f"keys-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, 16)
    found: dict[bytes | None, int | None] = {}
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, **LOGGED})
    for key in keys():
        producer.produce(topic, key=key, on_delivery=lambda _, m: found.update({m.key(): m.partition()}))
    assert producer.flush(60) == 0
    assert found == {key: Partitioner.CRC32.partition_of(key, 16) for key in keys()}


@pytest.mark.processes
def test_the_stored_vectors_are_those_of_the_java_client() -> None:
    try:
        libraries = ensure_kafka() / "libs"
    except KafkaUnavailableError as reason:
        pytest.skip(str(reason))
    java = shutil.which("java")
    assert java is not None
    command = [java, "-cp", f"{libraries}/*", str(VECTORS / "KafkaPartitions.java")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compare("java_client.csv", done.stdout)


def compare(name: str, told: str) -> None:
    if os.environ.get("REGENERATE_VECTORS"):
        (VECTORS / name).write_text(told)
    assert (VECTORS / name).read_text() == told
