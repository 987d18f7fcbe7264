"""Fenced sinks under real Spark queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from sqlalchemy import text

from assigner.model.keys import TopicPartition
from assigner.spark.sinks import (
    SqlLedger,
    fenced_parquet,
    fenced_sql,
    next_offsets,
    read_fenced,
    register,
    sql_place,
)
from assigner.spark.sinks.sql.database import open_database
from tests.support.servers.postgres import PostgresServer
from tests.support.spark.feeds import Feed, records, run
from tests.support.spark.sink_rows import SCHEMA

TP = TopicPartition("orders", 0)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sink.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_schema()


@pytest.fixture
def feeds(spark: SparkSession, tmp_path: Path) -> Callable[[str], Feed]:
    return lambda name: Feed(spark, tmp_path / name, SCHEMA)


def in_table(url: str) -> Counter[int]:
    with open_database(url).connect() as connection:
        return Counter(offset for (offset,) in connection.execute(text('SELECT "offset" FROM payments')))


def in_lake(spark: SparkSession, lake: str) -> Counter[int]:
    return Counter(row["offset"] for row in read_fenced(spark, lake).collect())


def once(offsets: range) -> Counter[int]:
    return Counter(offsets)


# --- the zombie ----------------------------------------------------------------------------------------------------


def test_with_a_zombie_plain_parquet_holds_rows_twice_and_fenced_sinks_once(
    feeds: Callable[[str], Feed], spark: SparkSession, tmp_path: Path, lake: str
) -> None:
    """A member writes 0-10 and dies unheard: not reported. The next owner starts at 0 and writes 0-20. The first, which
    was only cut off, writes 10-20 at last."""
    plain, table = str(tmp_path / "plain"), f"sqlite:///{tmp_path / 'zombie.db'}"
    zombie, owner = feeds("zombie"), feeds("owner")
    to_table = {feed: fenced_sql(table, "payments", group="billing") for feed in (zombie, owner)}
    to_lake = {feed: fenced_parquet(lake, group="billing") for feed in (zombie, owner)}

    def turn(feed: Feed, rows: list[dict[str, Any]]) -> None:
        def write(batch: DataFrame, batch_id: int) -> None:
            batch.write.mode("append").parquet(plain)
            to_table[feed](batch, batch_id)
            to_lake[feed](batch, batch_id)

        feed.give(rows)
        run(feed.stream().writeStream.foreachBatch(write), feed)

    turn(zombie, records(1, range(10)))
    turn(owner, records(2, range(20)))
    turn(zombie, records(1, range(10, 20)))

    twice = Counter(row["offset"] for row in spark.read.parquet(plain).collect())
    assert sum(count - 1 for count in twice.values()) == 20
    assert in_table(table) == in_lake(spark, lake) == once(range(20))
    assert to_table[zombie].totals.refused == to_lake[zombie].totals.refused == 10
    assert to_table[owner].totals.skipped == to_lake[owner].totals.skipped == 10


# --- foreachBatch --------------------------------------------------------------------------------------------------


def test_a_batch_that_was_written_but_not_finished_is_replayed_to_no_effect(
    feeds: Callable[[str], Feed], url: str
) -> None:
    """The query dies between the sink's commit and Spark's own; restarted, Spark repeats the batch."""
    feed, sink = feeds("member"), fenced_sql(url, "payments", group="billing")
    feed.give(records(1, range(10)))

    def dying(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        raise RuntimeError("killed")

    with pytest.raises(PySparkException, match="killed"):
        run(feed.stream().writeStream.foreachBatch(dying), feed)
    assert sink.next_offsets() == {TP: 10}
    feed.give(records(1, range(10, 15)))
    run(feed.stream().writeStream.foreachBatch(sink), feed)
    assert in_table(url) == once(range(15))
    assert (sink.totals.written, sink.totals.skipped) == (15, 10)


def test_rows_without_an_epoch_fail_the_query_with_the_remedy(feeds: Callable[[str], Feed], lake: str) -> None:
    feed = feeds("member")
    feed.give(records(1, range(2)))
    with pytest.raises(PySparkException, match="includeEpoch=true"):
        run(feed.stream().drop("epoch").writeStream.foreachBatch(fenced_parquet(lake, group="g")), feed)


# --- data sources --------------------------------------------------------------------------------------------------


def test_fenced_sql_is_a_format_to_write_streams_and_batches_to(
    spark: SparkSession, feeds: Callable[[str], Feed], postgres_server: PostgresServer
) -> None:
    register(spark)
    url = postgres_server.new_schema()
    feed = feeds("member")
    options = {"url": url, "table": "payments", "group": "billing"}
    feed.give([*records(2, range(10)), *records(2, range(5), partition=1)])
    feed.give([*records(2, range(5, 20))])
    # More tasks than rows in the second batch: some have none.
    run(feed.stream().repartition(3, "partition").writeStream.format("fenced_sql").options(**options), feed)
    assert in_table(url) == once(range(20)) + once(range(5))
    late = spark.createDataFrame([tuple(row.values()) for row in records(1, range(30, 33))], SCHEMA)
    late.write.format("fenced_sql").options(**options).mode("append").save()
    assert in_table(url) == once(range(20)) + once(range(5))
    ledger = SqlLedger(sql_place(url, "payments", group="billing"))
    assert next_offsets(ledger) == {TP: 20, TopicPartition("orders", 1): 5}
    assert ledger.fences()[TP].refused_rows == 3


def test_fenced_parquet_is_a_format_to_write_to_and_to_read_from(
    spark: SparkSession, feeds: Callable[[str], Feed], lake: str
) -> None:
    register(spark)
    feed = feeds("member")
    feed.give(records(1, range(10)))
    feed.give(records(1, range(5, 12)))
    run(feed.stream().writeStream.format("fenced_parquet").options(path=lake, group="billing"), feed)
    assert in_lake(spark, lake) == once(range(12))
    read = spark.read.format("fenced_parquet").load(lake)
    assert read.schema == read_fenced(spark, lake).schema
    assert sorted(read.collect()) == sorted(read_fenced(spark, lake).collect())
    assert read_fenced(spark, lake).where("offset >= 10").count() == 2


def test_a_fenced_directory_read_as_plain_parquet_is_an_error_and_not_wrong(
    spark: SparkSession, feeds: Callable[[str], Feed], lake: str
) -> None:
    feed = feeds("member")
    feed.give(records(1, range(3)))
    run(feed.stream().writeStream.foreachBatch(fenced_parquet(lake, group="billing")), feed)
    with pytest.raises(PySparkException, match="infer schema"):
        spark.read.parquet(lake)


def test_a_batch_of_which_a_task_fails_leaves_nothing_behind(
    spark: SparkSession, feeds: Callable[[str], Feed], lake: str
) -> None:
    register(spark)
    feed = feeds("member")
    feed.give([*records(1, range(10)), *records(1, range(10), partition=1)])

    broken = expr("if(partition = 1, raise_error('bad record'), value)")
    rows = feed.stream().repartitionByRange(2, "partition").withColumn("value", broken)
    with pytest.raises(PySparkException, match="bad record"):
        run(rows.writeStream.format("fenced_parquet").options(path=lake, group="billing"), feed)
    assert list((Path(lake) / "_manifests").glob("*.json")) == []
