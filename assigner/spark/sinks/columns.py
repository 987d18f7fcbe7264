"""Reads the origin of rows from their columns: partition, offset and epoch, and which rows are states.

The columns `topic`, `partition`, `offset` and `epoch` tell where each row came from; a batch without them can't be
fenced and is refused. Rows with a value in `control` are no data: states are stored beside the fences, others are
dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from assigner.errors import InvalidInput
from assigner.model.names import check_topic
from assigner.spark.schema import CONTROL, EPOCH, STATE
from assigner.spark.sinks.fence import Slice

ORIGIN = ("topic", "partition", "offset", EPOCH)
_WHERE = ["topic", "partition", EPOCH]


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's state, complete up to before `next_offset`."""

    topic: str
    partition: int
    epoch: int
    next_offset: int
    state: bytes

    @property
    def extent(self) -> Slice:
        """The offsets that the state covers. They raise the fence even if the records made no rows."""
        at = self.next_offset
        return Slice(topic=self.topic, partition=self.partition, epoch=self.epoch, first=at, next_offset=at, rows=0)


def check_columns(names: Iterable[str]) -> None:
    present = set(names)
    missing = [name for name in ORIGIN if name not in present]
    if missing:
        raise InvalidInput(
            f"a fenced sink needs the column{'s' * (len(missing) > 1)} {', '.join(missing)} to know whose rows come; "
            f"keep {', '.join(ORIGIN)} in the query and read with option includeEpoch=true"
        )
    if CONTROL in present and STATE not in present:
        raise InvalidInput(
            f"rows have the column {CONTROL} but none named {STATE}; drop {CONTROL} after filtering by "
            f"`{CONTROL} IS NULL`, or let assigner.spark.state make the rows"
        )


def data_columns(names: Iterable[str]) -> list[str]:
    """Select the columns that are stored."""
    present = list(names)
    return [name for name in present if name not in (CONTROL, STATE)] if CONTROL in present else present


def data_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    if CONTROL not in batch.schema.names:
        return batch
    kept = batch.filter(pc.is_null(batch.column(CONTROL)))
    return kept.select(data_columns(batch.schema.names))


def state_rows(batch: pa.RecordBatch) -> list[StateRow]:
    if CONTROL not in batch.schema.names:
        return []
    kept = batch.filter(pc.fill_null(pc.equal(batch.column(CONTROL), STATE), False))
    columns = [kept.column(name).to_pylist() for name in (*ORIGIN, STATE)]
    return [
        StateRow(topic=topic, partition=partition, epoch=epoch, next_offset=offset, state=state)
        for topic, partition, offset, epoch, state in zip(*columns, strict=True)
    ]


def slices_of(batch: pa.RecordBatch) -> list[Slice]:
    """Group the rows into slices, one for each partition and epoch."""
    if not batch.num_rows:
        return []
    origin = batch.select(list(ORIGIN))
    _refuse_nulls(origin)
    grouped = pa.table(origin).group_by(_WHERE).aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    return [_slice(row) for row in grouped.to_pylist()]


def _refuse_nulls(origin: pa.RecordBatch) -> None:
    for name in ORIGIN:
        if origin.column(name).null_count:
            raise InvalidInput(
                f"{name} is null in a row that a fenced sink was given; every row needs the {', '.join(ORIGIN)} it "
                f"came from: take care in outer joins and unions"
            )


def _slice(row: dict[str, int | str]) -> Slice:
    topic, numbers = str(row["topic"]), [int(row[name]) for name in ("partition", EPOCH, "offset_min", "offset_max")]
    check_topic(topic)
    if min(numbers) < 0:
        raise InvalidInput(f"rows of {topic} have a partition, epoch or offset below 0; keep these columns as read")
    partition, epoch, first, last = numbers
    return Slice(
        topic=topic,
        partition=partition,
        epoch=epoch,
        first=first,
        next_offset=last + 1,
        rows=int(row["offset_count"]),
    )
