"""Commits a batch in one transaction: locks fences, applies the fencing rule, moves accepted rows, raises the fences.

All members lock fences in the order of topic and partition, so they wait for each other without deadlock. A member that
waited decides by the fences that the other one left. If any staged row is missing (a crash of the server, a sweep)
nothing is committed and Spark repeats the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    and_,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from assigner.model.keys import TopicPartition
from assigner.spark.sinks.columns import StateRow
from assigner.spark.sinks.fence import Fence, FenceDecision, OnStale, decide, merged
from assigner.spark.sinks.ledger import SinkId
from assigner.spark.sinks.outcome import Outcome, StagedRowsLost, outcome_of
from assigner.spark.sinks.sql.database import is_postgresql
from assigner.spark.sinks.sql.staging import Staged
from assigner.spark.sinks.sql.tables import TOKEN, LedgerTables, SinkTables

# Bound parameters of a statement are limited, to 32,766 in SQLite.
_PARTITIONS_PER_STATEMENT = 1_000


def commit(
    engine: Engine, tables: SinkTables, sink: SinkId, staged: Sequence[Staged], on_stale: OnStale, batch_id: int
) -> tuple[Outcome, FenceDecision]:
    """Make the staged rows of a batch visible, once and in one step."""
    slices = merged(part for each in staged for part in (*each.slices, *each.states))
    partitions = [part.tp for part in slices]
    tokens = [each.token for each in staged]
    ensure_fences(engine, tables, sink, partitions)
    with engine.begin() as connection:
        decision = decide(lock_fences(connection, tables, sink, partitions), slices, on_stale)
        # Decided by the fences in the table, which are still those before the batch.
        written = _move_rows(connection, tables, sink, tokens)
        states = _move_states(connection, tables, sink, tokens)
        _save_fences(connection, tables, sink, decision)
        _clear_staging(connection, tables, staged)
    return outcome_of(batch_id, slices, decision, written=written, states=states), decision


# --- fences --------------------------------------------------------------------------------------------------------


def read_fences(connection: Connection, tables: LedgerTables, sink: SinkId) -> dict[TopicPartition, Fence]:
    return _fences(connection, _fence_query(tables, sink))


def lock_fences(
    connection: Connection, tables: LedgerTables, sink: SinkId, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Fence]:
    """Lock and read the fences of these partitions, which must be sorted, until the transaction ends."""
    return _some_fences(connection, tables, sink, partitions, lock=True)


def ensure_fences(engine: Engine, tables: LedgerTables, sink: SinkId, partitions: Sequence[TopicPartition]) -> None:
    """Create the missing fences of partitions in a separate transaction: an insertion waits for others of the same key,
    and must not do so while it holds locks."""
    with engine.connect() as connection:
        known = _some_fences(connection, tables, sink, partitions)
    missing = [tp for tp in partitions if tp not in known]
    if not missing:
        return
    with engine.begin() as connection:
        dialect = postgresql if is_postgresql(connection) else sqlite
        statement = dialect.insert(tables.fences).on_conflict_do_nothing()
        neutral = msgspec.structs.asdict(Fence())
        connection.execute(statement, [{**_key(sink, tp), **neutral} for tp in missing])


def _fence_query(tables: LedgerTables, sink: SinkId) -> Select[Any]:
    fences = tables.fences.c
    columns = [fences.topic, fences.partition, *(fences[name] for name in Fence.__struct_fields__)]
    return select(*columns).where(_is_of(tables.fences, sink)).order_by(fences.topic, fences.partition)


def _some_fences(
    connection: Connection, tables: LedgerTables, sink: SinkId, partitions: Sequence[TopicPartition], lock: bool = False
) -> dict[TopicPartition, Fence]:
    found: dict[TopicPartition, Fence] = {}
    for chunk in _chunks(partitions):
        query = _fence_query(tables, sink).where(_is_one_of(tables.fences, chunk))
        found.update(_fences(connection, query.with_for_update() if lock else query))
    return found


def _fences(connection: Connection, query: Select[Any]) -> dict[TopicPartition, Fence]:
    found: dict[TopicPartition, Fence] = {}
    for topic, partition, *numbers in connection.execute(query):
        found[TopicPartition(topic, partition)] = Fence(**dict(zip(Fence.__struct_fields__, numbers, strict=True)))
    return found


def _save_fences(connection: Connection, tables: SinkTables, sink: SinkId, decision: FenceDecision) -> None:
    fences = tables.fences
    key = and_(
        _is_of(fences, sink), fences.c.topic == bindparam("at_topic"), fences.c.partition == bindparam("at_partition")
    )
    changed = [
        {"at_topic": tp.topic, "at_partition": tp.partition, **msgspec.structs.asdict(fence)}
        for tp, fence in decision.fences.items()
    ]
    if changed:
        connection.execute(update(fences).where(key), changed)


# --- rows ----------------------------------------------------------------------------------------------------------


def _move_rows(connection: Connection, tables: SinkTables, sink: SinkId, tokens: list[str]) -> int:
    staged, fences = tables.staged.c, tables.fences.c
    columns = tables.stored_columns(connection)
    passing = and_(
        staged[TOKEN].in_(tokens),
        _is_of(tables.fences, sink),
        staged.topic == fences.topic,
        staged.partition == fences.partition,
        staged.epoch >= fences.epoch,
        staged.offset >= fences.next_offset,
    )
    rows = select(*(staged[name] for name in columns)).where(passing)
    statement = insert(tables.target).from_select(columns, rows).execution_options(preserve_rowcount=True)
    return connection.execute(statement).rowcount


def _move_states(connection: Connection, tables: SinkTables, sink: SinkId, tokens: list[str]) -> int:
    staged, fences, states = tables.staged_states.c, tables.fences.c, tables.states
    passing = and_(
        staged[TOKEN].in_(tokens),
        _is_of(tables.fences, sink),
        staged.topic == fences.topic,
        staged.partition == fences.partition,
        staged.epoch >= fences.epoch,
    )
    keys = connection.execute(select(staged.topic, staged.partition).where(passing)).all()
    for topic, partition in keys:
        here = and_(_is_of(states, sink), states.c.topic == topic, states.c.partition == partition)
        connection.execute(delete(states).where(here))
    columns = ["group_name", "sink", "topic", "partition", "epoch", "next_offset", "state"]
    rows = select(fences.group_name, fences.sink, *(staged[name] for name in columns[2:])).where(passing)
    if keys:
        connection.execute(insert(states).from_select(columns, rows))
    return len(keys)


def read_states(
    connection: Connection, tables: LedgerTables, sink: SinkId, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, StateRow]:
    states, found = tables.states, dict[TopicPartition, StateRow]()
    columns = [states.c[name] for name in StateRow.__struct_fields__]
    for chunk in _chunks(partitions):
        query = select(*columns).where(_is_of(states, sink), _is_one_of(states, chunk))
        for row in connection.execute(query):
            one = StateRow(**row._mapping)
            found[TopicPartition(one.topic, one.partition)] = one
    return found


def _clear_staging(connection: Connection, tables: SinkTables, staged: Sequence[Staged]) -> None:
    tokens = [each.token for each in staged]
    expected = sum(part.rows for each in staged for part in each.slices) + sum(len(each.states) for each in staged)
    found = sum(
        connection.execute(delete(table).where(table.c[TOKEN].in_(tokens))).rowcount
        for table in (tables.staged, tables.staged_states)
    )
    if found != expected:
        raise StagedRowsLost(
            f"{expected} rows were staged for {tables.target.fullname} and {found} are there; the database lost them "
            f"in a crash or they were swept as orphans. Nothing was written; restart the query, it repeats the batch"
        )


# --- keys ----------------------------------------------------------------------------------------------------------


def _is_of(table: Any, sink: SinkId) -> ColumnElement[bool]:
    return and_(table.c.group_name == sink.group, table.c.sink == sink.name)


def _is_one_of(table: Any, partitions: Sequence[TopicPartition]) -> ColumnElement[bool]:
    where = tuple_(table.c.topic, table.c.partition)
    return where.in_([(tp.topic, tp.partition) for tp in partitions])


def _key(sink: SinkId, tp: TopicPartition) -> dict[str, Any]:
    return {"group_name": sink.group, "sink": sink.name, "topic": tp.topic, "partition": tp.partition}


def _chunks(partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    for start in range(0, len(partitions), _PARTITIONS_PER_STATEMENT):
        yield partitions[start : start + _PARTITIONS_PER_STATEMENT]
