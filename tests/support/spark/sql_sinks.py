"""Fenced SQL tables driven as Spark would: tasks stage, the driver commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark
from sqlalchemy import text

from assigner.model.keys import TopicPartition
from assigner.spark.sinks.outcome import Outcome
from assigner.spark.sinks.sql.database import open_database
from assigner.spark.sinks.sql.sink import SqlTarget, sql_place
from tests.support.spark.sink_rows import SCHEMA, TOPIC

TP = TopicPartition(TOPIC, 0)


def target(url: str, schema: spark.StructType = SCHEMA, **options: Any) -> SqlTarget:
    made = SqlTarget(sql_place(url, "payments", **{"group": "billing", **options}), schema)
    made.prepare()
    return made


def put(sink: SqlTarget, *tasks: pa.RecordBatch, batch_id: int = 1) -> Outcome:
    """A batch, each of whose tasks has one record batch."""
    return sink.commit([staged for task in tasks if (staged := sink.stage([task])) is not None], batch_id)


def query(url: str, statement: str) -> Sequence[Any]:
    with open_database(url).connect() as connection:
        return connection.execute(text(statement)).all()


def offsets(url: str, table: str = "payments") -> list[int]:
    return [offset for (offset,) in query(url, f'SELECT "offset" FROM {table} ORDER BY topic, partition, "offset"')]
