"""Fenced sinks: exactly once across all members of a group. See `docs/how-to/exactly-once-with-spark.md`."""

from assigner.spark.sinks.fence import PATIENCE, Fence, OnStale, Slice, StaleRows
from assigner.spark.sinks.identity import SinkId
from assigner.spark.sinks.ledger import Ledger, next_offsets
from assigner.spark.sinks.outcome import Outcome, Totals
from assigner.spark.sinks.parquet import ParquetLedger, fenced_parquet, parquet_place, read_fenced
from assigner.spark.sinks.parquet_source import FencedParquetSource
from assigner.spark.sinks.parquet_upkeep import compact, vacuum
from assigner.spark.sinks.sql import SqlLedger, fenced_sql, sql_place
from assigner.spark.sinks.sql_source import FencedSqlSource
from assigner.spark.sinks.target import FencedBatches

__all__ = [
    "PATIENCE",
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
    "next_offsets",
    "parquet_place",
    "read_fenced",
    "sql_place",
    "vacuum",
]
