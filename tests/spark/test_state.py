"""State that moves between two real queries, through the sink they both write to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType
from sqlalchemy import text

from assigner.errors import InvalidInput
from assigner.keys import TopicPartition
from assigner.spark.beginnings import beginning_with_state
from assigner.spark.control_rows import ControlKind, control_row
from assigner.spark.sinks import fenced_sql
from assigner.spark.sinks.sql_database import open_database
from assigner.spark.state import with_partition_state
from tests.spark.feeds import Feed, run
from tests.unit.test_spark_state import Counts

TP = TopicPartition("orders", 0)
ROWS = StructType(
    [
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("epoch", LongType()),
        StructField("control", StringType()),
    ]
)
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def stateful(spark: SparkSession) -> SparkSession:
    spark.conf.set(_PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    return spark


def record(offset: int, epoch: int) -> dict[str, Any]:
    word = "even" if offset % 2 == 0 else "odd"
    return {"topic": "orders", "partition": 0, "offset": offset, "epoch": epoch, "value": word.encode()}


def test_counts_go_on_where_the_last_owner_let_go(stateful: SparkSession, tmp_path: Path) -> None:
    """Two queries with checkpoints of their own. The first reads 0-10 and lets go; the second goes on from the stored
    state with 10-16. Counts are those of one query that reads all."""
    url = f"sqlite:///{tmp_path / 'counts.db'}"
    first, second = (Feed(stateful, tmp_path / name, ROWS) for name in ("first", "second"))
    sinks = {feed: fenced_sql(url, "counts", group="billing") for feed in (first, second)}

    def turn(feed: Feed) -> None:
        counted = with_partition_state(feed.stream(), Counts())
        run(counted.writeStream.foreachBatch(sinks[feed]), feed)

    first.give([beginning(sinks[first].ledger.state, epoch=1).row, *(record(n, 1) for n in range(6))])
    first.give([*(record(n, 1) for n in range(6, 10)), control_row(ControlKind.RELEASE, TP, epoch=1, offset=10)])
    turn(first)
    start = beginning(sinks[second].ledger.state, epoch=2)
    assert start.offset == 10
    second.give([start.row, *(record(n, 2) for n in range(start.offset, 16))])
    turn(second)

    with open_database(url).connect() as connection:
        rows = connection.execute(text('SELECT "offset", word, seen FROM counts ORDER BY "offset"')).all()
    assert rows == [(n, "even" if n % 2 == 0 else "odd", n // 2 + 1) for n in range(16)]


def beginning(state: Callable[[TopicPartition], Any], epoch: int) -> Any:
    return beginning_with_state(TP, epoch, granted=0, checkpointed=None, stored=state(TP), origin=0)


def test_rows_without_control_rows_are_refused_before_the_query_starts(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="controlRows=true"):
        with_partition_state(spark.createDataFrame([("orders", 0)], "topic string, partition int"), Counts())
