"""Writes exactly once across all members of a group, by fenced sinks. See `docs/how-to/exactly-once-with-spark.md`.

The modules in order: `fence` is the rule, independent of any database; `columns` finds a row's partition, offset and
epoch; `writer` lets tasks stage rows and the driver commit them; `outcome` counts written, skipped and refused rows;
`ledger` is the interface by which the source reads a sink's fences and states. `sql` and `parquet` are the two
implementations.

Names are loaded when they are first used: Spark starts many Python processes, and one that writes Parquet should not
pay for SQL. Not promised: anything about rows that others write to the same table or directory without a fence.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from assigner.spark.sinks.fence import Fence, OnStale, Slice, StaleRows
    from assigner.spark.sinks.ledger import Ledger, SinkId, ledger_of, next_offsets
    from assigner.spark.sinks.outcome import Outcome, Totals
    from assigner.spark.sinks.parquet.maintenance import compact, vacuum
    from assigner.spark.sinks.parquet.sink import ParquetLedger, fenced_parquet, parquet_place, read_fenced
    from assigner.spark.sinks.parquet.source import FencedParquetSource
    from assigner.spark.sinks.sql.sink import SqlLedger, fenced_sql, sql_place
    from assigner.spark.sinks.sql.source import FencedSqlSource
    from assigner.spark.sinks.writer import FencedBatches

_MODULES = {
    "Fence": "fence",
    "FencedBatches": "writer",
    "FencedParquetSource": "parquet.source",
    "FencedSqlSource": "sql.source",
    "Ledger": "ledger",
    "OnStale": "fence",
    "Outcome": "outcome",
    "ParquetLedger": "parquet.sink",
    "SinkId": "ledger",
    "Slice": "fence",
    "SqlLedger": "sql.sink",
    "StaleRows": "fence",
    "Totals": "outcome",
    "compact": "parquet.maintenance",
    "fenced_parquet": "parquet.sink",
    "fenced_sql": "sql.sink",
    "ledger_of": "ledger",
    "next_offsets": "ledger",
    "parquet_place": "parquet.sink",
    "read_fenced": "parquet.sink",
    "sql_place": "sql.sink",
    "vacuum": "parquet.maintenance",
}

__all__ = [
    "Fence",
    "FencedBatches",
    "FencedParquetSource",
    "FencedSqlSource",
    "Ledger",
    "OnStale",
    "Outcome",
    "ParquetLedger",
    "SinkId",
    "Slice",
    "SqlLedger",
    "StaleRows",
    "Totals",
    "compact",
    "fenced_parquet",
    "fenced_sql",
    "ledger_of",
    "next_offsets",
    "parquet_place",
    "read_fenced",
    "register",
    "sql_place",
    "vacuum",
]


def register(spark: SparkSession) -> None:
    """Make `format("fenced_sql")` and `format("fenced_parquet")` known to the session."""
    from assigner.spark.sinks.parquet.source import FencedParquetSource
    from assigner.spark.sinks.sql.source import FencedSqlSource

    for source in (FencedSqlSource, FencedParquetSource):
        spark.dataSource.register(source)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
