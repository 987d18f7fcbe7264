"""Writes to a fenced SQL table: one transaction of SQLite or PostgreSQL commits rows and fences together.

    query = rows.writeStream.foreachBatch(fenced_sql(url, "payments", group="billing")).start()

Executors stage rows in the same database; the driver's commit moves those that pass. Exactly once holds for each row
that is a function of the records it came from, and only for tables written through fences alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType
from sqlalchemy import ColumnElement, Engine, Table, and_, delete

from assigner.model.keys import TopicPartition
from assigner.spark.sinks.columns import StateRow, check_columns
from assigner.spark.sinks.fence import Fence, OnStale, stale_policy
from assigner.spark.sinks.ledger import SinkId
from assigner.spark.sinks.outcome import Outcome, log_outcome
from assigner.spark.sinks.sql.commit import commit, read_fences, read_states
from assigner.spark.sinks.sql.database import open_database, parsed_url
from assigner.spark.sinks.sql.staging import ORPHAN_SECONDS, Staged, stage, sweep, unstage
from assigner.spark.sinks.sql.tables import LedgerTables, SinkTables, split_name
from assigner.spark.sinks.writer import FencedBatches

# How many batches pass between two sweeps of orphans.
SWEEP_EVERY = 100


@dataclass(frozen=True)
class SqlPlace:
    """A table, and the sink whose fences apply to it. The URL may hold a password and is not shown."""

    url: str
    table: str
    sink: SinkId
    on_stale: OnStale = OnStale.DROP

    def __post_init__(self) -> None:
        parsed_url(self.url)
        split_name(self.table)

    def __repr__(self) -> str:
        return f"SqlPlace({parsed_url(self.url).render_as_string(hide_password=True)}, {self.table}, {self.sink})"

    @property
    def dialect(self) -> str:
        return parsed_url(self.url).get_backend_name()

    def vacuum(self, older_than: float = ORPHAN_SECONDS) -> int:
        """Delete staged rows that no batch will commit and that are older than so many seconds. Returns how many were
        deleted."""
        engine, tables = SqlLedger(self).opened()
        return sweep(engine, tables, self.table, older_than)


@dataclass(frozen=True)
class SqlTarget:
    """Writes rows of one schema to a `SqlPlace`."""

    place: SqlPlace
    schema: StructType

    @property
    def staged_type(self) -> type[Staged]:
        return Staged

    def prepare(self) -> None:
        self._tables.ensure(self._engine)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Staged | None:
        return stage(self._engine, self._tables, batches)

    def commit(self, staged: list[Staged], batch_id: int) -> Outcome:
        if not staged:
            return Outcome(batch_id=batch_id)
        place = self.place
        outcome, decision = commit(self._engine, self._tables, place.sink, staged, place.on_stale, batch_id)
        log_outcome(str(place.sink), outcome, decision)
        if batch_id % SWEEP_EVERY == 0:
            sweep(self._engine, self._tables, place.table)
        return outcome

    def abort(self, staged: list[Staged]) -> None:
        if staged:
            unstage(self._engine, self._tables, [each.token for each in staged])

    @property
    def _engine(self) -> Engine:
        return open_database(self.place.url)

    @property
    def _tables(self) -> SinkTables:
        return SinkTables(self.place.dialect, self.place.table, self.schema)


class SqlLedger:
    """Reads and resets the fences and states in a database."""

    def __init__(self, place: SqlPlace) -> None:
        self._place = place

    def fences(self) -> dict[TopicPartition, Fence]:
        engine, tables = self.opened()
        with engine.connect() as connection:
            return read_fences(connection, tables, self._place.sink)

    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StateRow]:
        engine, tables = self.opened()
        with engine.connect() as connection:
            return read_states(connection, tables, self._place.sink, list(partitions))

    def reset(self, topic: str) -> None:
        engine, tables = self.opened()
        with engine.begin() as connection:
            for table in (tables.fences, tables.states):
                connection.execute(delete(table).where(self._of_topic(table, topic)))

    def opened(self) -> tuple[Engine, LedgerTables]:
        engine = open_database(self._place.url)
        tables = LedgerTables(self._place.dialect, split_name(self._place.table)[0])
        tables.ensure(engine)
        return engine, tables

    def _of_topic(self, table: Table, topic: str) -> ColumnElement[bool]:
        sink = self._place.sink
        return and_(table.c.group_name == sink.group, table.c.sink == sink.name, table.c.topic == topic)


def fenced_sql(
    url: str, table: str, *, group: str, sink: str | None = None, on_stale: str = "drop"
) -> FencedBatches[Staged]:
    """Make a function for `foreachBatch` that writes to a table exactly once, across all members of the group.

    `url`: `postgresql://...` or `sqlite:////file`. `table`: made from the rows' schema where it does not exist. `sink`:
    one name for all members that write here, the table's name unless given. `on_stale`: `drop` or `fail`.
    """
    place = sql_place(url, table, group=group, sink=sink, on_stale=on_stale)

    def target(schema: StructType) -> SqlTarget:
        check_columns(schema.names)
        return SqlTarget(place, schema)

    return FencedBatches(target, SqlLedger(place))


def sql_place(url: str, table: str, *, group: str, sink: str | None = None, on_stale: str = "drop") -> SqlPlace:
    return SqlPlace(url, table, SinkId(group, sink or table), stale_policy(on_stale))
