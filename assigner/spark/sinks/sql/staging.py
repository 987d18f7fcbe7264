"""Stages the rows of tasks in a table: each task under a token of its own, in a transaction of its own.

The driver gets the tokens; staged rows have no effect until the driver's commit moves them. A task that is repeated
stages under another token. Rows whose token no commit ever names are orphans: a crash, a failed task, a lost driver.
Tokens begin with the time, so that orphans are recognised by their age and deleted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from sqlalchemy import Connection, Engine, Table, delete, insert, inspect, table
from sqlalchemy import column as named
from sqlalchemy.exc import OperationalError

from assigner.logs import get_logger
from assigner.spark.sinks.columns import StateRow, check_columns, data_rows, slices_of, state_rows
from assigner.spark.sinks.fence import Slice, merged
from assigner.spark.sinks.sql.tables import TOKEN, LedgerTables, SinkTables, split_name, staged_prefix

# Longer than any batch may take. A batch whose rows were swept fails and is repeated; it never loses rows.
ORPHAN_SECONDS = 24 * 3600
_ROWS_PER_STATEMENT = 5_000
_log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Staged(WriterCommitMessage):
    """The rows that one task staged. Not a Struct, because Spark requires its own base class."""

    token: str
    slices: list[Slice]
    states: list[Slice]
    """The slice that each staged state covers."""


def new_token(now: float | None = None) -> str:
    return f"{int(time.time() if now is None else now):012d}-{uuid.uuid4().hex}"


def stage(engine: Engine, tables: SinkTables, batches: Iterable[pa.RecordBatch]) -> Staged | None:
    """Stage a task's rows. None: the task had no rows."""
    token, slices, states = new_token(), list[Slice](), list[Slice]()
    with engine.begin() as connection:
        for batch in batches:
            check_columns(batch.schema.names)
            rows = data_rows(batch)
            slices.extend(slices_of(rows))
            _insert(connection, tables.staged, [TOKEN, *rows.schema.names], _with_token(token, rows))
            states.extend(_stage_states(connection, tables, token, state_rows(batch)))
    if not slices and not states:
        return None
    return Staged(token=token, slices=merged(slices), states=merged(states))


def unstage(engine: Engine, tables: SinkTables, tokens: list[str]) -> None:
    """Delete the staged rows of a failed batch."""
    with engine.begin() as connection:
        for staged in (tables.staged, tables.staged_states):
            connection.execute(delete(staged).where(staged.c[TOKEN].in_(tokens)))


def sweep(engine: Engine, ledger: LedgerTables, target: str, older_than: float = ORPHAN_SECONDS) -> int:
    """Delete orphaned rows, also those of other versions of the query. Returns how many rows were deleted."""
    namespace, name = split_name(target)
    limit = new_token(time.time() - older_than)
    with engine.connect() as connection:
        names = inspect(connection).get_table_names(namespace)
    found = [each for each in names if each.startswith(staged_prefix(name))]
    staging = [table(each, named(TOKEN), schema=namespace) for each in found] + [ledger.staged_states]
    try:
        with engine.begin() as connection:
            return sum(connection.execute(delete(each).where(each.c[TOKEN] < limit)).rowcount for each in staging)
    except OperationalError as failure:
        # Another member sweeps the same rows. One of the two is enough.
        _log.info("staged_rows_sweep_skipped", table=target, error=str(failure.orig))
        return 0


def _with_token(token: str, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = [_python_values(column) for column in rows.columns]
    return ((token, *values) for values in zip(*columns, strict=True))


def _python_values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    values: list[Any] = column.to_pylist()
    return values


def _stage_states(connection: Connection, tables: SinkTables, token: str, states: list[StateRow]) -> Iterator[Slice]:
    columns = [TOKEN, "topic", "partition", "epoch", "next_offset", "state"]
    rows = ((token, row.topic, row.partition, row.epoch, row.next_offset, row.state) for row in states)
    _insert(connection, tables.staged_states, columns, rows)
    return (row.extent for row in states)


def _insert(connection: Connection, into: Table, columns: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    driver = connection.connection.driver_connection
    if connection.dialect.name == "postgresql" and connection.dialect.driver == "psycopg" and driver is not None:
        _copy(connection, driver, into, columns, rows)
        return
    while chunk := list(islice(rows, _ROWS_PER_STATEMENT)):
        connection.execute(insert(into), [dict(zip(columns, row, strict=True)) for row in chunk])


def _copy(
    connection: Connection, driver: Any, into: Table, columns: list[str], rows: Iterator[tuple[Any, ...]]
) -> None:
    quote = connection.dialect.identifier_preparer
    names = ", ".join(quote.quote(name) for name in columns)
    with driver.cursor() as cursor, cursor.copy(f"COPY {quote.format_table(into)} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
