"""Rows for sinks, as the source would give them, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from assigner.spark.schema import CONTROL, EPOCH, STATE

TOPIC = "orders"
SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField(EPOCH, LongType()),
        StructField("value", StringType()),
    ]
)
STATEFUL_SCHEMA = StructType([*SCHEMA.fields, StructField(CONTROL, StringType()), StructField(STATE, BinaryType())])


def rows(epoch: int, offsets: Iterable[int], *, partition: int = 0, topic: str = TOPIC) -> pa.RecordBatch:
    """One row per offset, whose value tells where it came from."""
    at = list(offsets)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic] * len(at), pa.string()),
            "partition": pa.array([partition] * len(at), pa.int32()),
            "offset": pa.array(at, pa.int64()),
            EPOCH: pa.array([epoch] * len(at), pa.int64()),
            "value": pa.array([f"{topic}/{partition}:{offset}" for offset in at], pa.string()),
        }
    )


def with_states(batch: pa.RecordBatch, states: Sequence[tuple[int, int, int, bytes]] = ()) -> pa.RecordBatch:
    """The rows, and a state row for each (partition, epoch, next offset, state)."""
    table = pa.Table.from_batches([batch])
    nothing = pa.nulls(table.num_rows, pa.string())
    table = table.append_column(CONTROL, nothing).append_column(STATE, pa.nulls(table.num_rows, pa.binary()))
    extra = [
        {"topic": TOPIC, "partition": partition, "offset": at, EPOCH: epoch, CONTROL: STATE, STATE: state}
        for partition, epoch, at, state in states
    ]
    both = pa.concat_tables([table, pa.Table.from_pylist(extra, schema=table.schema)])
    return both.combine_chunks().to_batches()[0]
