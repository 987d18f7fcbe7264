"""Implements `spark.readStream.format("assigned_kafka")`: the query joins a group and reads the partitions it owns.

Spark makes readers in several processes. Only the one that plans batches joins the group, and only once a batch is to
be planned. Executors get ranges of offsets and know nothing of the group.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from assigner.errors import InvalidInput
from assigner.model.names import session_digest
from assigner.spark.errors import without_traceback
from assigner.spark.options import SourceOptions, columns_wanted, read_options, refuse_unknown
from assigner.spark.planning_process import RunnerProcess
from assigner.spark.positions import OWNER_KEY, Owner, Positions
from assigner.spark.schema import arrow_schema, row_schema
from assigner.spark.source.batch_reader import BatchReader
from assigner.spark.source.fetch import read_ranges
from assigner.spark.source.rows import control_batch
from assigner.spark.source.tasks import ControlTask, control_tasks, tasks_for

if TYPE_CHECKING:
    from assigner.spark.member.member import MemberStatistics
    from assigner.spark.source.planner import Planner

NAME = "assigned_kafka"


class AssignedKafka(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    @without_traceback
    def schema(self) -> StructType:
        refuse_unknown(self.options)
        if "member" in self.options:
            # Only streams have one, so all that a stream needs can be checked before anything runs.
            read_options(self.options, streaming=True)
        return row_schema(**columns_wanted(self.options))

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        return BatchReader(options, self._checked(schema, options))

    @without_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = read_options(self.options, streaming=True)
        return StreamReader(options, self._checked(schema, options))

    def _checked(self, schema: StructType, options: SourceOptions) -> StructType:
        if schema != row_schema(headers=options.headers, epoch=options.epoch, control=options.control_rows):
            raise InvalidInput("the columns of assigned_kafka are fixed; leave out schema(...) and select in the query")
        return schema


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._process = RunnerProcess()
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the reader without its planner.
        return {"_options": self._options, "_schema": self._schema}

    # --- planning, in the one process that joins the group -----------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return Positions(Owner(self._options.group, self._options.member)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.max_rows)

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self.planner.latest(start, _rows(limit, self._options.max_rows))

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges, controls = self.planner.batch(start, end)
        return [*control_tasks(controls), *tasks_for(ranges, self._options)]

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        self.planner.committed(end)

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.planner.read_to_here()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Report where the topics end, and how `query_drain` reaches the member, for the query's progress event."""
        if self._planner is None:
            return None
        ends = {f"{tp.topic}-{tp.partition}": end for tp, end in sorted(self._planner.ends.items())}
        where = {
            "assigner": ",".join(self._options.assigner),
            "group": self._options.group,
            "member": self._options.member,
            "session": session_digest(self._planner.member_thread.session),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        return {**ends, OWNER_KEY: where}

    def statistics(self) -> MemberStatistics | None:
        """The member's statistics; None if no batch was planned yet."""
        return None if self._planner is None else self._planner.statistics()

    def stop(self) -> None:
        if self._planner is None:
            return
        self._process.start_watchdog()
        if self._process.is_orphaned():
            self._planner.member_thread.abandon()
        else:
            self._planner.member_thread.stop()

    @property
    def planner(self) -> Planner:
        """The planner, made at the first use, which joins the group."""
        if self._planner is None:
            # Here, because executors unpickle readers too, and have no use for the client.
            from assigner.spark.source.planner import Planner

            self._planner = Planner(self._options)
            self._process.prepare(self._planner.member_thread.drain)
        return self._planner

    # --- reading, on executors ---------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._schema)
        if isinstance(partition, ControlTask):
            return iter((control_batch(partition.value, schema),))
        return read_ranges(partition.value, self._options, schema)


def _rows(limit: ReadLimit, otherwise: int) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    return limit.max_rows if isinstance(limit, ReadMaxRows) else otherwise
