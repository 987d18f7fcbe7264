"""Keys go to the partitions that Kafka's producers choose, by vectors of the Java client and of librdkafka."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from assigner.core.routing.partitioner import Partitioner, crc32_partition, murmur2, murmur2_partition
from assigner.errors import InvalidInput

VECTORS = Path(__file__).parents[3] / "resources" / "partitions"


def rows(name: str) -> list[tuple[bytes, dict[str, int]]]:
    with (VECTORS / name).open(newline="") as file:
        read = list(csv.DictReader(file))
    assert read, "a file without vectors proves nothing"
    return [(bytes.fromhex(row.pop("key")), {name: int(value) for name, value in row.items()}) for row in read]


def test_murmur2_chooses_the_java_clients_partition() -> None:
    for key, said in rows("java_client.csv"):
        assert murmur2(key) == said["hash"] % 2**32, key
        assert murmur2_partition(key, said["partitions"]) == said["partition"], (key, said)


@pytest.mark.parametrize("partitioner", Partitioner)
def test_each_partitioner_chooses_librdkafkas_partition(partitioner: Partitioner) -> None:
    for key, said in rows(f"librdkafka_{partitioner.value}.csv"):
        assert partitioner.partition_of(key, said["partitions"]) == said["partition"], (key, said)


def test_a_negative_hash_has_its_sign_cleared() -> None:
    key, _ = next((key, said) for key, said in rows("java_client.csv") if said["hash"] < 0)
    assert murmur2(key) >= 2**31
    assert murmur2_partition(key, 2**31) == murmur2(key) - 2**31


@pytest.mark.parametrize("partition", [murmur2_partition, crc32_partition])
@pytest.mark.parametrize("partitions", [0, -1])
def test_a_topic_without_partitions_is_refused(partition: object, partitions: int) -> None:
    assert callable(partition)
    with pytest.raises(InvalidInput, match="needs at least 1"):
        partition(b"key", partitions)
