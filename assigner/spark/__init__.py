"""Spark queries as members of a group: the data source `assigned_kafka`, fenced sinks, and bulk jobs.

Needs the extra `[spark]`. Importing this package loads no Spark; each function loads what it uses. It may import the
client library, the model and the core's values, never the server; nothing but the command line imports it.

One batch of a streaming query, in the order of files:

1. `source.reader` is called by Spark, in the process that plans (`planning_process`); `options` parsed its options.
2. `source.planner` begins a batch: `member` reports what is finished, releases what the assigner asked for, and returns
   what the query holds; `kafka_offsets` tells where the topics end; `positions` is the result, as Spark checkpoints it.
3. `source.fetch` reads ranges of offsets on executors into rows of `schema`; `state` adds control rows, so that the
   state of a partition moves with it.
4. `sinks` write the rows, and refuse those of a fenced epoch.
5. `query_drain` ends a query: the running batch finishes, then its partitions are handed over.

`file_sink` warns of queries that lose rows in Spark's own file sink; `requirements` and `errors` make errors readable.
`jobs` are separate: batch jobs around the assigner.

Not promised: exactly once with a sink that does not check epochs (docs/guarantees.md).
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


def drain(query: StreamingQuery, timeout: float = 120.0, *, tls: Tls | None = None, token_file: str = "") -> None:
    """Finish the running batch, hand all partitions over, then stop the query."""
    from assigner.spark import query_drain

    query_drain.drain(query, timeout, tls=tls, token_file=token_file)


def drain_on_sigterm(
    *queries: StreamingQuery, timeout: float = 120.0, tls: Tls | None = None, token_file: str = ""
) -> None:
    """Drain the query when the driver gets SIGTERM. Call it from the main thread."""
    from assigner.spark import query_drain

    query_drain.drain_on_sigterm(*queries, timeout=timeout, tls=tls, token_file=token_file)


__all__ = ["drain", "drain_on_sigterm", "register"]
