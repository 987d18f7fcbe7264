"""How rows get into a fenced place, in two steps: tasks stage, the driver commits. Spark's two ways of writing a
stream, `foreachBatch` and a data source's writer, drive the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from assigner.model.keys import TopicPartition
from assigner.spark.errors import without_traceback
from assigner.spark.sinks.columns import check_columns
from assigner.spark.sinks.ledger import Ledger, next_offsets
from assigner.spark.sinks.outcome import Outcome, Totals

Staged = TypeVar("Staged", bound=WriterCommitMessage)
# Rows in one message of a task; tells mapInArrow what comes back.
_PACKED = "staged binary"


class SinkWriter(Protocol[Staged]):
    """A place to write rows of one schema to. It is pickled to executors: it holds settings and no connections."""

    @property
    def staged_type(self) -> type[Staged]:
        """What `stage` returns. Results of tasks are decoded as nothing else."""
        ...

    def prepare(self) -> None:
        """Called before tasks stage; makes what is missing. Any number of processes may do so at once."""
        ...

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Staged | None:
        """In a task: put rows where nobody sees them. None: there were none."""
        ...

    def commit(self, staged: list[Staged], batch_id: int) -> Outcome:
        """In the driver: judge, and make what passes visible together with the fences."""
        ...

    def abort(self, staged: list[Staged]) -> None:
        """In the driver: take back what was staged by the tasks that did not fail."""
        ...


class FencedBatches(Generic[Staged]):
    """A function for `foreachBatch`, with sums of what became of the rows."""

    def __init__(self, target: Callable[[StructType], SinkWriter[Staged]], ledger: Ledger) -> None:
        self._target = target
        self.ledger = ledger
        self.totals = Totals()
        self.last: Outcome | None = None
        """What became of the last batch."""

    @without_traceback
    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        check_columns(rows.columns)
        target = self._target(rows.schema)
        target.prepare()
        packed = rows.mapInArrow(_in_task(target), _PACKED).collect()
        self.last = target.commit([msgspec.msgpack.decode(row[0], type=target.staged_type) for row in packed], batch_id)
        self.totals.add(self.last)

    def next_offsets(self) -> dict[TopicPartition, int]:
        """For each partition the offset after its last row here."""
        return next_offsets(self.ledger)


def _in_task(target: SinkWriter[Staged]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staged = target.stage(batches)
        if staged is not None:
            yield pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(staged)], pa.binary())], ["staged"])

    return stage


class FencedStreamWriter(DataSourceStreamArrowWriter, Generic[Staged]):
    """The writer of a fenced data source in a streaming query."""

    def __init__(self, target: SinkWriter[Staged]) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._target.prepare()
        return self._target.stage(iterator) or _Nothing()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._target.commit(_present(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._target.abort(_present(messages))


class FencedWriter(DataSourceArrowWriter, Generic[Staged]):
    """The writer of a fenced data source in a batch job: a backfill, or a repair."""

    def __init__(self, target: SinkWriter[Staged]) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._target.prepare()
        return self._target.stage(iterator) or _Nothing()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.commit(_present(messages), 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.abort(_present(messages))


class _Nothing(WriterCommitMessage):
    """Of a task that had no rows: Spark wants a message all the same."""


def _present(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """What was staged. None stands for a task that failed."""
    return [cast(Staged, each) for each in messages if each is not None and not isinstance(each, _Nothing)]
