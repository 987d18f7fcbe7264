"""Reading ranges on executors, against a mock cluster. Gaps in offsets need a real broker: see integration tests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from assigner.errors import SourceUnavailable
from assigner.model.keys import TopicPartition
from assigner.spark.kafka_offsets import DataLost, KafkaLog
from assigner.spark.options import EARLIEST, LATEST, SourceOptions, read_options
from assigner.spark.positions import OffsetRange
from assigner.spark.schema import arrow_schema, row_schema
from assigner.spark.source import fetch, rows
from assigner.spark.source.batch_reader import BatchReader
from assigner.spark.source.fetch import read_ranges
from tests.support.servers.mock_kafka import MockKafka

SCHEMA = arrow_schema(row_schema(headers=True, epoch=True))


@pytest.fixture(scope="module")
def kafka() -> MockKafka:
    return MockKafka()


def options(kafka: MockKafka, topic: str, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "kafkaTimeout": "20", **more}
    return read_options(given, streaming=False)


def read(kafka: MockKafka, topic: str, first: int, end: int, **more: str) -> pa.Table:
    one = OffsetRange(TopicPartition(topic, 0), 7, first, end)
    return pa.Table.from_batches(read_ranges([one], options(kafka, topic, **more), SCHEMA), SCHEMA)


def test_a_range_is_read_from_its_first_offset_to_before_its_end(kafka: MockKafka) -> None:
    kafka.produce("plain", 100)
    found = read(kafka, "plain", 10, 20)
    assert found["offset"].to_pylist() == list(range(10, 20))
    assert found["value"].to_pylist() == [f"plain/0/{n}".encode() for n in range(10, 20)]
    assert set(found["topic"].to_pylist()) == {"plain"}
    assert set(found["partition"].to_pylist()) == {0}
    assert set(found["epoch"].to_pylist()) == {7}


def test_a_row_has_all_that_kafka_knows(kafka: MockKafka) -> None:
    kafka.produce("full", 1, key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=1_700_000_000_123)
    kafka.produce("full", 1, value=None)
    first, second = read(kafka, "full", 0, 2).to_pylist()
    assert first["key"] == b"k"
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert first["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)
    assert first["timestampType"] == 0
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)


def test_a_range_larger_than_a_chunk_comes_in_several_batches(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "CHUNK", 30)
    kafka.produce("chunks", 100)
    assert read(kafka, "chunks", 0, 100)["offset"].to_pylist() == list(range(100))


def test_no_batch_holds_more_bytes_than_the_limit(kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BYTES", 100)
    kafka.produce("heavy", 10, value=b"x" * 40)
    one = OffsetRange(TopicPartition("heavy", 0), 1, 0, 10)
    found = list(read_ranges([one], options(kafka, "heavy"), SCHEMA))
    assert [batch.num_rows for batch in found] == [2] * 5


def test_a_record_above_the_limit_has_a_batch_of_its_own(kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BYTES", 10)
    kafka.produce("huge", 3, value=b"x" * 40)
    one = OffsetRange(TopicPartition("huge", 0), 1, 0, 3)
    assert [batch.num_rows for batch in read_ranges([one], options(kafka, "huge"), SCHEMA)] == [1, 1, 1]


# --- what is not there -------------------------------------------------------------------------------------------


def test_offsets_beyond_the_end_of_the_log_are_a_loss(kafka: MockKafka) -> None:
    kafka.produce("short", 10)
    with pytest.raises(DataLost, match=r"offsets 10 to 20 of short/0 are gone .*log ends at 10.*option failOnDataLoss"):
        read(kafka, "short", 5, 20, kafkaTimeout="0.5")


def test_a_range_after_the_end_of_the_log_is_a_loss(kafka: MockKafka) -> None:
    kafka.produce("shorter", 10)
    with pytest.raises(DataLost, match="offsets 15 to 20 of shorter/0"):
        read(kafka, "shorter", 15, 20)


def test_a_loss_can_be_accepted(kafka: MockKafka) -> None:
    kafka.produce("accepted", 10)
    found = read(kafka, "accepted", 5, 20, kafkaTimeout="0.5", failOnDataLoss="false")
    assert found["offset"].to_pylist() == list(range(5, 10))
    assert read(kafka, "accepted", 15, 20, failOnDataLoss="false").num_rows == 0


def test_offsets_that_were_deleted_are_a_loss(kafka: MockKafka) -> None:
    # The mock cluster keeps about 5 MB of a partition.
    kafka.produce("deleted", 120, partitions=[0], value=b"x" * 100_000)
    start = KafkaLog(options(kafka, "deleted")).starts([TopicPartition("deleted", 0)])[TopicPartition("deleted", 0)]
    assert 0 < start < 120
    with pytest.raises(DataLost, match=f"offsets 0 to {start} of deleted/0 .*the log begins at {start}"):
        read(kafka, "deleted", 0, 120)
    found = read(kafka, "deleted", 0, 120, failOnDataLoss="false")
    assert found["offset"].to_pylist() == list(range(start, 120))
    assert read(kafka, "deleted", 0, start, failOnDataLoss="false").num_rows == 0


def test_a_broker_that_executors_do_not_reach_is_named(kafka: MockKafka) -> None:
    unreachable = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaTimeout": "0.3", "kafka.log_level": "0"}
    with pytest.raises(SourceUnavailable, match=r"check that executors reach option kafka\.bootstrap\.servers"):
        read(kafka, "plain", 0, 1, **unreachable)


def test_a_setting_that_kafkas_client_does_not_know_is_named(kafka: MockKafka) -> None:
    with pytest.raises(SourceUnavailable, match=r'option kafka\.\* is not accepted.*"no.such.setting"'):
        read(kafka, "plain", 0, 1, **{"kafka.no.such.setting": "1"})


# --- batch reads -------------------------------------------------------------------------------------------------


def planned(kafka: MockKafka, topic: str, **more: str) -> list[Any]:
    reader = BatchReader(options(kafka, topic, **more), row_schema(headers=False, epoch=False))
    return [one for task in reader.partitions() for one in task.value]


def test_a_batch_read_covers_what_is_there(kafka: MockKafka) -> None:
    kafka.produce("batch", 10)
    reader = BatchReader(options(kafka, "batch"), row_schema(headers=False, epoch=False))
    found = [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]
    assert len({(row["partition"], row["offset"]) for row in found}) == len(found) == 40


def test_a_batch_read_may_be_bounded_and_cut(kafka: MockKafka) -> None:
    kafka.produce("bounded", 10)
    named = '{"bounded": {"0": 2, "1": -2, "2": -1, "3": 9}}'
    assert sum(one.rows for one in planned(kafka, "bounded", startingOffsets=named)) == 8 + 10 + 0 + 1
    assert len(planned(kafka, "bounded", minPartitions="8")) == 8
    assert planned(kafka, "bounded", endingOffsets="earliest") == []


def test_an_empty_batch_read_reads_nothing(kafka: MockKafka) -> None:
    from pyspark.sql.datasource import InputPartition

    reader = BatchReader(options(kafka, "plain"), row_schema(headers=False, epoch=False))
    assert list(reader.read(InputPartition(None))) == []


def test_named_offsets_are_resolved(kafka: MockKafka) -> None:
    kafka.produce("words", 10)
    p0, p1, p2 = (TopicPartition("words", n) for n in range(3))
    assert KafkaLog(options(kafka, "words")).resolved({p0: EARLIEST, p1: LATEST, p2: 7}) == {p0: 0, p1: 10, p2: 7}
