"""Streams of rows as the source would give them, from files that the tests write: no Kafka, no assigner."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType


class Feed:
    """A query's input: each `give` is one batch."""

    def __init__(self, spark: SparkSession, directory: Path, schema: StructType) -> None:
        self._spark, self._schema = spark, schema
        self._directory, self.checkpoint = directory / "feed", str(directory / "checkpoint")
        self._directory.mkdir(parents=True)
        self._numbers = itertools.count()
        self._began = self._directory.stat().st_mtime_ns

    def give(self, rows: Iterable[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(list(rows), schema=to_arrow_schema(self._schema, timezone="UTC"))
        number = next(self._numbers)
        draft = self._directory / f".draft-{number:05d}"
        pq.write_table(table, draft)
        # Spark orders files by their modification time in milliseconds alone; those that share one come in any order.
        modified = self._began + number * 1_000_000_000
        os.utime(draft, ns=(modified, modified))
        draft.rename(self._directory / f"{number:05d}.parquet")

    def stream(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._directory))


def run(writer: Any, feed: Feed) -> None:
    """Run a query over all that its feed has now, batch by batch, then let it end."""
    query: StreamingQuery = writer.option("checkpointLocation", feed.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def records(epoch: int, offsets: Iterable[int], *, partition: int = 0) -> list[dict[str, Any]]:
    return [
        {"topic": "orders", "partition": partition, "offset": n, "epoch": epoch, "value": f"{partition}:{n}"}
        for n in offsets
    ]
