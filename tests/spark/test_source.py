"""`assigned_kafka` under real Spark queries. What is certain when drivers are killed: see `test_exactly_once.py`."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from assigner.embedded import EmbeddedAssigner
from assigner.spark import drain, drain_on_sigterm, register
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import GROUP, an_assigner

TOPICS = ("a", "b", "c", "d")
PATIENCE = 90


def eventually(condition: Callable[[], Any], what: str, within: int = PATIENCE) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def kafka() -> MockKafka:
    return MockKafka()


@pytest.fixture
def stop_queries(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


def owned(assigner: EmbeddedAssigner) -> Counter[str]:
    found = assigner.call(lambda service: service.instance.operations.describe(GROUP))
    return Counter(one.owner for one in found.ownership)


def options(assigner: EmbeddedAssigner, kafka: MockKafka, member: str, topics: str, **more: str) -> dict[str, str]:
    return {
        "assigner": assigner.address,
        "group": GROUP,
        "member": member,
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": topics,
        "includeEpoch": "true",
        **more,
    }


# --- sharing -----------------------------------------------------------------------------------------------------


def test_partitions_move_between_running_queries_and_each_record_is_read_once(
    spark: SparkSession, kafka: MockKafka, tmp_path: Path, stop_queries: None
) -> None:
    """One query reads 16 partitions; another joins; the first one is drained. Their sinks know nothing of all that."""
    register(spark)
    where = [str(tmp_path / "rows" / member) for member in ("m1", "m2")]

    def start(member: str) -> Any:
        given = options(assigner, kafka, member, ",".join(TOPICS))
        rows = spark.readStream.format("assigned_kafka").options(**given).load().drop("key", "value")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / member))
        return writer.trigger(processingTime="200 milliseconds").start(str(tmp_path / "rows" / member))

    def produce() -> int:
        for topic in TOPICS:
            kafka.produce(topic, 10)
        return sum(end for (topic, _), end in kafka.ends.items() if topic in TOPICS)

    def rows() -> DataFrame:
        return spark.read.parquet(*[one for one in where if Path(one, "_spark_metadata", "0").exists()])

    with an_assigner(*TOPICS) as assigner:
        produce()
        first = start("m1")
        eventually(lambda: owned(assigner) == {"m1": 16}, "the first query owns everything")
        second = start("m2")
        eventually(lambda: owned(assigner) == {"m1": 8, "m2": 8}, "they share")
        produce()
        drain(first, PATIENCE)
        assert not first.isActive
        assert first.exception() is None
        assert owned(assigner) == {"m2": 16}
        wanted = produce()
        eventually(lambda: rows().count() >= wanted or not second.isActive, "every record is read")
        assert second.exception() is None
        found = rows()
        assert found.count() == found.select("topic", "partition", "offset").distinct().count() == wanted


# --- triggers and restarts ---------------------------------------------------------------------------------------


def test_available_now_reads_what_is_there_and_the_next_run_goes_on(
    spark: SparkSession, kafka: MockKafka, tmp_path: Path, stop_queries: None
) -> None:
    register(spark)
    kafka.produce("now", 50)
    where, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")

    def run(member: str = "m") -> None:
        given = options(assigner, kafka, member, "now", maxOffsetsPerTrigger="120")
        rows = spark.readStream.format("assigned_kafka").options(**given).load().drop("key")
        query = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        assert query.start(where).awaitTermination(PATIENCE)

    with an_assigner("now") as assigner:
        run()
        assert spark.read.parquet(where).count() == 200
        kafka.produce("now", 10)
        run()
        rows = spark.read.parquet(where)
        assert rows.count() == rows.select("partition", "offset").distinct().count() == 240
        with pytest.raises(StreamingQueryException, match="belongs to member 'm', but option member is 'n'"):
            run("n")
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "now", "minPartitions": "8"}
    read = spark.read.format("assigned_kafka").options(**given).load()
    assert read.count() == 240
    assert read.rdd.getNumPartitions() == 8


def test_sigterm_drains_and_a_member_in_use_is_lost_to_the_newer_query(
    spark: SparkSession, kafka: MockKafka, tmp_path: Path, stop_queries: None
) -> None:
    register(spark)
    kafka.produce("signals", 10)

    def start(name: str, **more: str) -> Any:
        given = options(assigner, kafka, "m", "signals")
        rows = spark.readStream.format("assigned_kafka").options(**given).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        return writer.options(**more).trigger(processingTime="100 milliseconds").start()

    before = signal.getsignal(signal.SIGTERM)
    with an_assigner("signals", ttl=3.0) as assigner:
        older = start("older")
        eventually(lambda: owned(assigner) == {"m": 4} and older.lastProgress, "the query owns everything")
        newer = start("newer")
        with pytest.raises(StreamingQueryException, match="member 'm' of group 'g' is now another query's"):
            older.awaitTermination(PATIENCE)
        eventually(lambda: newer.lastProgress and "signals-0" in newer.lastProgress.json, "the newer owns everything")
        drain_on_sigterm(newer, timeout=PATIENCE)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            assert newer.awaitTermination(PATIENCE)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert newer.exception() is None
        found = assigner.call(lambda service: service.instance.operations.describe(GROUP))
        assert not found.members


# --- refusals ----------------------------------------------------------------------------------------------------


def test_wrong_options_are_named_when_the_rows_are_asked_for(spark: SparkSession) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match="option memebr is not known to assigned_kafka; did you mean member"):
        spark.readStream.format("assigned_kafka").option("memebr", "x").load()


def test_progress_that_is_written_asynchronously_is_refused(
    spark: SparkSession, kafka: MockKafka, tmp_path: Path, stop_queries: None
) -> None:
    register(spark)
    kafka.produce("async", 10)
    with an_assigner("async") as assigner:
        given = options(assigner, kafka, "m", "async", maxOffsetsPerTrigger="4")
        rows = spark.readStream.format("assigned_kafka").options(**given).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.option("asyncProgressTrackingEnabled", "true").start()
        with pytest.raises(StreamingQueryException, match="leave out option asyncProgressTrackingEnabled"):
            query.awaitTermination(PATIENCE)


def test_a_query_that_reads_something_else_is_not_drained(spark: SparkSession, stop_queries: None) -> None:
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    with pytest.raises(Exception, match="reads no assigned_kafka"):
        drain(query, PATIENCE)
    query.stop()
