"""A Spark driver as a team would deploy it, in a process of its own: records of a group go into a fenced table.

Beside the fenced table each batch is appended to a plain Parquet directory, to see what fencing is for. Tests tell the
driver what to do by files in its directory, and read there what it did.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import assigner.spark
from assigner.spark.sinks import fenced_sql

TABLE = "events"
GO, HOLD, DOOM = "go", "hold", "doom"
"""It is told: start the query; hold each batch after it is written; die once a batch is written."""
UP, HELD, BATCHES = "up", "held", "batches.jsonl"
"""It tells: the session is there; a batch is held; what became of each batch."""
_LOOK_AGAIN = 0.02


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver is started for."""

    directory: str
    options: dict[str, str]
    """Of `assigned_kafka`."""
    checkpoint: str
    url: str
    """Of the database with the fenced table."""
    plain: str
    """Where rows go unfenced."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch in the fenced table."""

    written: int
    skipped: int
    refused: int


class Job:
    """The query's `foreachBatch`, and the accidents that may happen to it."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._directory = Path(order.directory)
        self._fenced = fenced_sql(order.url, TABLE, group=order.options["group"])

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        # Two tasks: on a small machine more of them only cost time.
        rows = rows.select("topic", "partition", "offset", "epoch", "value").coalesce(2).persist()
        rows.select("topic", "partition", "offset").write.mode("append").parquet(self._order.plain)
        self._fenced(rows, batch_id)
        rows.unpersist()
        done = self._fenced.last
        assert done is not None
        if done.written and self._is_told(DOOM):
            kill_this_tree()
        with (self._directory / BATCHES).open("ab") as log:
            batch = Batch(written=done.written, skipped=done.skipped, refused=done.refused)
            log.write(msgspec.json.encode(batch) + b"\n")
        if self._is_told(HOLD):
            (self._directory / HELD).touch()
            wait_until_gone(self._directory / HOLD)

    def _is_told(self, what: str) -> bool:
        return (self._directory / what).exists()


def kill_this_tree() -> None:
    """End this process, its JVM, and all processes of the JVM as a power cut would."""
    me = psutil.Process()
    family = [*me.children(recursive=True), me]
    for one in family[:-1]:
        # So that nobody notices the end of another one and says goodbye.
        os.kill(one.pid, signal.SIGSTOP)
    for one in family:
        os.kill(one.pid, signal.SIGKILL)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(_LOOK_AGAIN)


def wait_until_gone(path: Path) -> None:
    while path.exists():
        time.sleep(_LOOK_AGAIN)


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("driver").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.driver.memory", "512m").config("spark.log.level", "ERROR")
    builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.sql.catalogImplementation", "in-memory")
    return builder.getOrCreate()


def start(spark: SparkSession, order: Order) -> StreamingQuery:
    assigner.spark.register(spark)
    rows = spark.readStream.format("assigned_kafka").options(**order.options).load()
    writer = rows.writeStream.foreachBatch(Job(order)).option("checkpointLocation", order.checkpoint)
    return writer.trigger(processingTime="1 second").start()


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    spark = session()
    (Path(order.directory) / UP).touch()
    wait_for(Path(order.directory) / GO)
    query = start(spark, order)
    assigner.spark.drain_on_sigterm(query)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
