"""State that moves between real queries with the partitions it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from assigner.errors import InvalidInput
from assigner.spark import drain, register
from assigner.spark.sinks import fenced_sql
from assigner.spark.state import with_partition_state
from tests.spark.test_source import PATIENCE, eventually, options, owned
from tests.support.servers.mock_kafka import PARTITIONS, MockKafka
from tests.support.spark.fake_query import GROUP, an_assigner
from tests.support.spark.fake_state import Tally, TallyTable


def test_counts_go_on_when_a_query_joins_and_when_one_is_drained(stateful: SparkSession, tmp_path: Path) -> None:
    """Each record's number in its partition is counted in the state: right in every row, whoever wrote it."""
    register(stateful)
    kafka, table = MockKafka(), TallyTable(tmp_path)
    kafka.produce("counted", 20)

    def start(member: str) -> Any:
        given = options(assigner, kafka, member, "counted", controlRows="true", **table.options)
        rows = stateful.readStream.format("assigned_kafka").options(**given).load()
        writer = with_partition_state(rows, Tally()).writeStream.foreachBatch(
            fenced_sql(table.url, "tally", group=GROUP)
        )
        where = writer.option("checkpointLocation", str(tmp_path / member))
        return where.trigger(processingTime="200 milliseconds").start()

    def done() -> bool:
        assert not any(query.exception() for query in queries)
        return table.is_complete(kafka, "counted")

    with an_assigner("counted") as assigner:
        queries = [start("m1")]
        eventually(done, "everything is counted")
        queries.append(start("m2"))
        eventually(lambda: owned(assigner) == {"m1": 2, "m2": 2}, "they share")
        kafka.produce("counted", 20)
        eventually(done, "everything is counted by two")
        drain(queries[0], PATIENCE)
        assert owned(assigner) == {"m2": PARTITIONS}
        kafka.produce("counted", 20)
        eventually(done, "everything is counted by the one that is left")
        assert not table.wrong()


def test_rows_without_control_rows_are_refused_before_the_query_starts(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="controlRows=true"):
        with_partition_state(spark.createDataFrame([("orders", 0)], "topic string, partition int"), Tally())
