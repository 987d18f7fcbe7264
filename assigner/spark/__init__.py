"""Spark queries as members of a group: the data source `assigned_kafka`, and how to let one go.

Needs the extra `[spark]`. Importing this package costs nothing else; Spark is loaded by what is used of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assigner.spark.requirements import require_extra

require_extra()

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from assigner.spark.options import Tls


def register(spark: SparkSession) -> None:
    """Make `format("assigned_kafka")` known to the session, and watch that its queries lose no rows in file sinks."""
    from assigner.spark.file_sink import warn_of_shared_directories
    from assigner.spark.source.reader import AssignedKafka

    spark.dataSource.register(AssignedKafka)
    warn_of_shared_directories(spark)


def drain(query: StreamingQuery, timeout: float = 120.0, *, tls: Tls | None = None) -> None:
    """Finish the running batch, hand all partitions over, then stop the query."""
    from assigner.spark import query_drain

    query_drain.drain(query, timeout, tls=tls)


def drain_on_sigterm(*queries: StreamingQuery, timeout: float = 120.0, tls: Tls | None = None) -> None:
    """Do that when the driver gets SIGTERM. Call it from the main thread."""
    from assigner.spark import query_drain

    query_drain.drain_on_sigterm(*queries, timeout=timeout, tls=tls)


__all__ = ["drain", "drain_on_sigterm", "register"]
