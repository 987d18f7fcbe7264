"""Defines the rows of `assigned_kafka`: Spark's Kafka columns, optional ones, and control rows for stateful operators.

On request rows have the headers, the epoch under which they were read, and the column `control`.

Spark's state belongs to a query, not to a partition. So rows among the data tell a stateful operator when to write the
state of a partition out and when to load it: rows are the one thing that reaches every operator in step with the data.

With the option `controlRows=true` the source's rows have the columns `epoch` and `control`. In a record `control` is
null. In a control row it names the kind, `offset` is the offset of the next record to be read, `epoch` the partition's
epoch, `value` the state (for `restore` only), and all other columns are null.

- `restore`, with the first batch under a new epoch: the operator replaces its state by `value`, which is null if none
  is stored. Records follow from `offset` on, which is where that state ends.
- `resume`, instead of it, if no other query owned the partition since this query's own checkpoint: the operator keeps
  its state under the new epoch.
- `snapshot`, every `snapshotEvery` records: the operator emits its state.
- `release`, when the partition is to be released, in the batch after its last records: the operator emits its state
  and drops it.

In a batch, `restore` and `resume` count before all records, `release` and `snapshot` after them, wherever they stand.
The operator answers `snapshot` and `release` by a row with `control` = `state` (see `assigner.spark.state`), which a
fenced sink stores in the batch's transaction. So `Released` may be sent once that batch is finished, and no sooner.
"""

from __future__ import annotations

from enum import Enum

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from assigner.model.keys import TopicPartition

HEADERS = "headers"
CONTROL = "control"
EPOCH = "epoch"
STATE = "state"
"""In what an operator emits: the column that holds a state, and the value of `control` in the rows that have one."""

_COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


class ControlKind(str, Enum):
    """The kinds of control rows: what each asks a stateful operator to do."""

    RESTORE = "restore"
    RESUME = "resume"
    SNAPSHOT = "snapshot"
    RELEASE = "release"


def control_row(
    kind: ControlKind, tp: TopicPartition, *, epoch: int, offset: int, state: bytes | None = None
) -> dict[str, object]:
    """Build the columns of a control row that are not null. `offset`: that of the next record to be read."""
    row: dict[str, object] = {
        CONTROL: kind.value,
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": offset,
        EPOCH: epoch,
    }
    if state is not None:
        row["value"] = state
    return row


def row_schema(*, headers: bool, epoch: bool, control: bool = False) -> StructType:
    fields = list(_COLUMNS)
    if headers:
        fields.append(StructField(HEADERS, ArrayType(_HEADER)))
    if epoch:
        fields.append(StructField(EPOCH, LongType()))
    if control:
        fields.append(StructField(CONTROL, StringType()))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Build the Arrow schema that Spark expects of record batches."""
    return to_arrow_schema(schema, timezone="UTC")
