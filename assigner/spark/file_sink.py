"""Warns when queries of a group lose rows in Spark's own file sink.

The file sink keeps a log of its batches in the directory it writes to, `_spark_metadata`, by number alone. A batch
whose number is there counts as written. So of two queries that write to one directory, the one with the lower numbers
writes nothing at all, and Spark commits its offsets. Nothing that the source does can prevent it; the log shows it.

Not promised: that every case is seen. Two queries with equal numbers skip each other's batches unnoticed until one of
them is ahead. Queries on Spark Connect are not checked, because they run elsewhere.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from assigner.logs import get_logger
from assigner.spark.positions import OWNER_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_SINK = "FileSink["
_LOG = "_spark_metadata"

_log = get_logger(__name__)
_watched: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def warn_of_shared_directories(spark: SparkSession) -> None:
    """Make a session warn when a query of ours writes to a directory in which another query's batches count as its
    own."""
    if spark not in _watched and hasattr(spark, "_jvm"):
        _watched.add(spark)
        spark.streams.addListener(SharedDirectories(spark))


class SharedDirectories(StreamingQueryListener):
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._reported: set[str] = set()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        query, where = str(progress.runId), progress.sink.description
        if query in self._reported or not where.startswith(_FILE_SINK) or not _is_ours(progress.json):
            return
        directory = where.removeprefix(_FILE_SINK).removesuffix("]")
        highest = self._highest_batch(directory)
        if highest > progress.batchId:
            self._reported.add(query)
            _log.error(
                "file_sink_rows_lost",
                directory=directory,
                query=str(progress.id),
                batch=progress.batchId,
                other_batch=highest,
                reason=f"Spark's file sink takes a batch for written if its number is in {_LOG}, whoever wrote it",
                remedy="give each member a directory of its own, or write by assigner.spark.sinks.fenced_parquet; "
                "then set the group's offsets back to before this batch",
            )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self._reported.discard(str(event.runId))

    def _highest_batch(self, directory: str) -> int:
        """The highest batch number in the sink's log, read through Spark's own file system."""
        jvm: Any = self._spark._jvm
        log = jvm.org.apache.hadoop.fs.Path(directory, _LOG)
        system = log.getFileSystem(self._spark._jsc.hadoopConfiguration())
        names = [found.getPath().getName() for found in system.listStatus(log)] if system.exists(log) else []
        # From time to time Spark compacts all earlier batches into one file such as `7.compact`.
        return max((int(stem) for name in names if (stem := name.removesuffix(".compact")).isdecimal()), default=-1)


def _is_ours(progress: str) -> bool:
    return any(OWNER_KEY in str(source.get("latestOffset")) for source in json.loads(progress)["sources"])
