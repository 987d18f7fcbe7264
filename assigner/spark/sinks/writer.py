"""Writes rows to a fenced sink in two steps: tasks stage rows, the driver commits them.

Spark has two ways to write a stream, `foreachBatch` and the writer of a data source; both drive the same two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark.errors import without_traceback
from assigner.spark.sinks.columns import check_columns
from assigner.spark.sinks.ledger import Ledger, next_offsets
from assigner.spark.sinks.outcome import Outcome, Totals

Staged = TypeVar("Staged", bound=WriterCommitMessage)
# The schema of a task's result, which mapInArrow needs.
_PACKED = "staged binary"
# What Spark itself adds to the options of a data source.
_SPARKS_OPTIONS = frozenset({"checkpointlocation", "queryname"})


class SinkWriter(Protocol[Staged]):
    """Writes rows of one schema to one place. It is pickled to executors: it holds settings and no connections."""

    @property
    def staged_type(self) -> type[Staged]:
        """The type that `stage` returns, as which results of tasks are decoded."""
        ...

    def prepare(self) -> None:
        """Create missing tables or directories before tasks stage, concurrently with other processes."""
        ...

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Staged | None:
        """Store rows of a task where readers do not see them. None: there were no rows."""
        ...

    def commit(self, staged: list[Staged], batch_id: int) -> Outcome:
        """Check the fences, then make accepted rows visible and raise the fences in one atomic step, in the driver."""
        ...

    def abort(self, staged: list[Staged]) -> None:
        """Delete what the successful tasks staged, in the driver."""
        ...


class FencedBatches(Generic[Staged]):
    """A function for `foreachBatch` that counts written, skipped and refused rows."""

    def __init__(self, target: Callable[[StructType], SinkWriter[Staged]], ledger: Ledger) -> None:
        self._target = target
        self.ledger = ledger
        self.totals = Totals()
        self.last: Outcome | None = None
        """The outcome of the last batch."""

    @without_traceback
    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        check_columns(rows.columns)
        target = self._target(rows.schema)
        target.prepare()
        packed = rows.mapInArrow(_in_task(target), _PACKED).collect()
        self.last = target.commit([msgspec.msgpack.decode(row[0], type=target.staged_type) for row in packed], batch_id)
        self.totals.add(self.last)

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Read the offset after the last row in the sink, for each partition."""
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
    """The message of a task without rows, because Spark requires one."""


def _present(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """Select the messages of tasks that staged rows. None stands for a task that failed."""
    return [cast(Staged, each) for each in messages if each is not None and not isinstance(each, _Nothing)]


# --- options of the data sources -------------------------------------------------------------------------------------


def check_options(
    source: str, options: Mapping[str, str], required: tuple[str, ...], optional: tuple[str, ...]
) -> None:
    """Refuse missing and unknown options of a fenced data source."""
    known = {name.lower(): name for name in (*required, *optional)}
    given = {name.lower(): name for name in options}
    for name in required:
        if not options.get(name):
            raise InvalidInput(f"{source} needs option {name}; required are {', '.join(required)}")
    unknown = [given[name] for name in given if name not in known and name not in _SPARKS_OPTIONS]
    if unknown:
        raise InvalidInput(f"{source} has no option {', '.join(unknown)}; it knows {', '.join(known.values())}")
