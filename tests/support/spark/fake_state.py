"""A query with state, without Spark: the source's rows go through a processor to a fenced table, as in a real query.

The state store is kept as Spark does: what a batch changes counts once the batch is finished.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType
from sqlalchemy import text

from assigner.embedded import EmbeddedAssigner
from assigner.spark.schema import arrow_schema
from assigner.spark.sinks.sql.database import open_database
from assigner.spark.sinks.sql.sink import SqlLedger, SqlTarget, sql_place
from assigner.spark.state import PartitionProcessor
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import GROUP, ActedQuery, Checkpoint, Sink

States = dict[Any, tuple[Any, ...]]


class Tally(PartitionProcessor[int]):
    """The how manieth record of its partition each one is. In a topic without gaps: the offset plus one."""

    def __init__(self) -> None:
        super().__init__(StructType([StructField("nth", LongType())]))

    def begin(self) -> int:
        return 0

    def process(self, state: int, rows: pd.DataFrame) -> tuple[int, pd.DataFrame]:
        nth = range(state + 1, state + 1 + len(rows))
        return state + len(rows), pd.DataFrame({"offset": rows["offset"], "nth": list(nth)})


class TallyTable:
    """The fenced table that all queries write to."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:///{directory / 'tally.db'}"
        self._place = sql_place(self.url, "tally", group=GROUP)
        self.ledger = SqlLedger(self._place)
        self._target = SqlTarget(self._place, Tally().schema)
        self._target.prepare()

    @property
    def options(self) -> dict[str, str]:
        return {"fence.url": self.url, "fence.table": "tally"}

    def write(self, batch: pa.RecordBatch) -> None:
        staged = self._target.stage([batch])
        self._target.commit([staged] if staged is not None else [], 1)

    def rows(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """For each partition what was written, in the order of offsets: offset and count."""
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        with open_database(self.url).connect() as connection:
            query = 'SELECT topic, "partition", "offset", nth FROM tally ORDER BY topic, "partition", "offset"'
            for topic, partition, offset, nth in connection.execute(text(query)):
                found.setdefault((topic, partition), []).append((offset, nth))
        return found

    def is_complete(self, kafka: MockKafka, *topics: str) -> bool:
        written = {tp: len(rows) for tp, rows in self.rows().items()}
        return all(written.get((t, p), 0) >= end for (t, p), end in kafka.ends.items() if t in topics)

    def wrong(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Partitions whose rows are not 0, 1, 2 and so on, each once and counted right."""
        return {tp: rows for tp, rows in self.rows().items() if rows != [(n, n + 1) for n in range(len(rows))]}


class StatefulCheckpoint(Checkpoint):
    states: States = {}


class StatefulQuery(ActedQuery):
    checkpoint: StatefulCheckpoint

    def __init__(
        self,
        service: EmbeddedAssigner,
        kafka: MockKafka,
        member: str,
        topics: str,
        table: TallyTable,
        checkpoint: StatefulCheckpoint | None = None,
        **options: str,
    ) -> None:
        kept = checkpoint if checkpoint is not None else StatefulCheckpoint()
        given = {"controlRows": "true", **table.options, **options}
        super().__init__(service, kafka, member, topics, Sink(), kept, **given)
        self._table = table
        self._states: States = {}

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        self._states = dict(self.checkpoint.states)
        if batches:
            rows = pa.Table.from_batches(batches).to_pandas()
            made = [one for key, some in rows.groupby(["topic", "partition"]) for one in self._processed(key, some)]
            schema = arrow_schema(Tally().schema)
            for frame in made:
                self._table.write(pa.RecordBatch.from_pylist(_plain(frame.to_dict("records")), schema=schema))

    def _processed(self, key: Any, rows: pd.DataFrame) -> Iterable[pd.DataFrame]:
        processor = Tally()
        processor.init(_Handle(self._states, key))  # type: ignore[arg-type]
        made = list(processor.handleInputRows(key, iter([rows.reset_index(drop=True)]), None))
        return [pd.concat(made)] if made else []

    def _finish(self) -> None:
        super()._finish()
        self.checkpoint.states = self._states


def _plain(rows: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
    return [{name: None if value is pd.NA or value != value else value for name, value in row.items()} for row in rows]


class _Handle(msgspec.Struct):
    """A state store, for one key."""

    states: States
    key: Any

    def getValueState(self, name: str, schema: str) -> _Handle:  # noqa: N802 - Spark's name
        return self

    def get(self) -> tuple[Any, ...] | None:
        return self.states.get(self.key)

    def update(self, value: tuple[Any, ...]) -> None:
        self.states[self.key] = value

    def clear(self) -> None:
        self.states.pop(self.key, None)
