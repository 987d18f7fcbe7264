"""Implements `PartitionProcessor`, a stateful operator with one state per topic-partition, handed over by control rows.

    class Counts(PartitionProcessor[dict[str, int]]):
        def begin(self): return {}
        def process(self, state, rows): ...

    rows = spark.readStream.format("assigned_kafka").option("controlRows", True)...load()
    counted = with_partition_state(rows, Counts(StructType.fromDDL("user string, n bigint")))
    counted.writeStream.foreachBatch(fenced_sql(...))

The state is one value per partition, read and written whole with each batch; keep it to some megabytes. A handover
writes it to the sink in the transaction of the last batch and reads it from there: after a handoff or a crash, the next
owner continues from a state and an offset that belong together. See `assigner.spark.schema` for the rows.

Not promised: that output made per batch (a sum over the batch, say) is the same after a crash, when records are read
again in other batches. Rows that depend on the state and on one record, and carry its offset, are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark.schema import CONTROL, EPOCH, STATE, ControlKind
from assigner.spark.sinks.columns import ORIGIN

S = TypeVar("S")
_STORED = "epoch bigint, next_offset bigint, state binary"
_ENDING = (ControlKind.SNAPSHOT, ControlKind.RELEASE)


class _Held(msgspec.Struct, frozen=True):
    """A partition's state, as it is kept in Spark's state store."""

    epoch: int
    next_offset: int
    state: bytes | None
    """None: nothing was processed yet."""


class PartitionProcessor(StatefulProcessor, ABC, Generic[S]):
    """Base class of stateful operators: subclasses define `begin` and `process`, this class hands states over."""

    def __init__(self, output: StructType) -> None:
        """`output`: the columns that `process` makes, besides those that tell where a row came from."""
        taken = [name for name in output.names if name in (*ORIGIN, CONTROL, STATE)]
        if taken:
            raise InvalidInput(f"output has the column {taken[0]}, which is filled in for you; leave it out")
        self._output = output

    @abstractmethod
    def begin(self) -> S:
        """Make the state of a partition before its first record."""

    @abstractmethod
    def process(self, state: S, rows: pd.DataFrame) -> tuple[S, pd.DataFrame]:
        """Process records in the order of their offsets. Returns the new state and the output rows: the output's
        columns, and `offset`, that of the record each row was made from."""

    def encode(self, state: S) -> bytes:
        return msgspec.msgpack.encode(state)

    def decode(self, state: bytes) -> S:
        decoded: S = msgspec.msgpack.decode(state)
        return decoded

    @property
    def schema(self) -> StructType:
        """Build the schema of the output rows: the origin, the output's columns, and those of states."""
        return StructType(
            [
                StructField("topic", StringType()),
                StructField("partition", IntegerType()),
                StructField("offset", LongType()),
                StructField(EPOCH, LongType()),
                *self._output.fields,
                StructField(CONTROL, StringType()),
                StructField(STATE, BinaryType()),
            ]
        )

    # .. what Spark calls ..

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = handle.getValueState("partition", _STORED)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        # The rows of a batch are unordered, and a restore comes first and a release last, so all rows are collected.
        batch = pd.concat(list(rows), ignore_index=True)
        tp = TopicPartition(str(batch["topic"].iloc[0]), int(batch["partition"].iloc[0]))
        is_record = batch[CONTROL].isna()
        controls = [_Control.of(row) for row in batch[~is_record].to_dict("records")]
        held = self._begun(tp, self._load(), controls)
        records = batch[is_record].drop(columns=CONTROL).sort_values("offset", kind="stable", ignore_index=True)
        held, made = self._processed(tp, held, records)
        if len(made):
            yield made
        for control in (each for each in controls if each.kind in _ENDING):
            yield self._state_row(tp, held, control)
        self._save(held, released=any(each.kind is ControlKind.RELEASE for each in controls))

    # .. the steps of a batch ..

    def _load(self) -> _Held | None:
        stored = self._store.get()
        return None if stored is None else _Held(int(stored[0]), int(stored[1]), _bytes(stored[2]))

    def _begun(self, tp: TopicPartition, held: _Held | None, controls: list[_Control]) -> _Held:
        for control in controls:
            match control.kind:
                case ControlKind.RESTORE:
                    held = _Held(control.epoch, control.offset, control.state)
                case ControlKind.RESUME:
                    held = self._resumed(tp, held, control)
                case ControlKind.SNAPSHOT | ControlKind.RELEASE:
                    pass
        if held is None:
            raise InvalidInput(
                f"rows of {tp} come without a restore row, so their state is not known; read with option "
                f"controlRows=true, and keep the rows whose {CONTROL} is not null up to here"
            )
        return held

    def _resumed(self, tp: TopicPartition, held: _Held | None, control: _Control) -> _Held:
        if held is None or held.next_offset > control.offset:
            reached = "there is none" if held is None else f"it holds records up to {held.next_offset}"
            raise InvalidInput(
                f"{tp} is to go on at {control.offset} with the state of this query's checkpoint, but {reached}; its "
                f"offsets and states do not belong together: start with another checkpointLocation"
            )
        return _Held(control.epoch, control.offset, held.state)

    def _processed(self, tp: TopicPartition, held: _Held, records: pd.DataFrame) -> tuple[_Held, pd.DataFrame]:
        strangers = records[records[EPOCH] != held.epoch]
        if len(strangers):
            raise InvalidInput(
                f"records of {tp} carry epoch {strangers[EPOCH].iloc[0]}, its state epoch {held.epoch}, and no restore "
                f"row came between; read with option controlRows=true and filter no control row out"
            )
        new = records[records["offset"] >= held.next_offset]
        if new.empty:
            return held, new
        state, made = self.process(self._decoded(held), new.reset_index(drop=True))
        following = _Held(held.epoch, int(new["offset"].iloc[-1]) + 1, self.encode(state))
        return following, self._with_origin(tp, held.epoch, made)

    def _state_row(self, tp: TopicPartition, held: _Held, control: _Control) -> pd.DataFrame:
        row: dict[str, object] = dict.fromkeys(self.schema.names)
        row |= {"topic": tp.topic, "partition": tp.partition, EPOCH: held.epoch}
        row |= {"offset": max(control.offset, held.next_offset), CONTROL: STATE, STATE: self._encoded(held)}
        return pd.DataFrame([row], columns=self.schema.names, dtype=object)

    def _save(self, held: _Held, *, released: bool) -> None:
        if released:
            self._store.clear()
        else:
            self._store.update((held.epoch, held.next_offset, self._encoded(held)))

    def _with_origin(self, tp: TopicPartition, epoch: int, made: pd.DataFrame) -> pd.DataFrame:
        expected = ["offset", *self._output.names]
        missing = [name for name in expected if name not in made.columns]
        if missing and len(made):
            raise InvalidInput(
                f"process made rows without the column {missing[0]}; it is to make {', '.join(expected)}"
            )
        whole = made.assign(**{"topic": tp.topic, "partition": tp.partition, EPOCH: epoch, CONTROL: None, STATE: None})
        return whole.reindex(columns=self.schema.names)

    def _decoded(self, held: _Held) -> S:
        return self.begin() if held.state is None else self.decode(held.state)

    def _encoded(self, held: _Held) -> bytes:
        return self.encode(self.begin()) if held.state is None else held.state


class _Control(msgspec.Struct, frozen=True):
    kind: ControlKind
    epoch: int
    offset: int
    state: bytes | None

    @classmethod
    def of(cls, row: dict[Any, Any]) -> _Control:
        return cls(ControlKind(row[CONTROL]), int(row[EPOCH]), int(row["offset"]), _bytes(row.get("value")))


def _bytes(value: object) -> bytes | None:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def with_partition_state(rows: DataFrame, processor: PartitionProcessor[Any]) -> DataFrame:
    """Apply the processor to the source's rows. The result has its output rows and the states; write it to a fenced
    sink."""
    if CONTROL not in rows.columns:
        raise InvalidInput(f"rows have no column {CONTROL}; read with option controlRows=true and keep the column")
    return rows.groupBy("topic", "partition").transformWithStateInPandas(
        statefulProcessor=processor, outputStructType=processor.schema, outputMode="Append", timeMode="None"
    )
