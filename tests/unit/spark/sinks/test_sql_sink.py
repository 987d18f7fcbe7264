"""Fenced SQL tables, on SQLite and on a real PostgreSQL, driven as Spark would: tasks stage, the driver commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import DBAPIError

from assigner.model.keys import TopicPartition
from assigner.spark.sinks.fence import Fence, StaleRows
from assigner.spark.sinks.ledger import next_offsets
from assigner.spark.sinks.outcome import Outcome, StagedRowsLost
from assigner.spark.sinks.sql import commit
from assigner.spark.sinks.sql.database import SinkUnavailable, open_database
from assigner.spark.sinks.sql.sink import SqlLedger, SqlTarget
from assigner.spark.sinks.sql.staging import new_token
from tests.support.servers.postgres import PostgresServer
from tests.support.spark.sink_rows import STATEFUL_SCHEMA, TOPIC, rows, with_states
from tests.support.spark.sql_sinks import TP, offsets, put, query, target


def orphan(at: float) -> dict[str, Any]:
    """A row that a task staged at some time and nobody committed."""
    return {"staged_token": new_token(at), "topic": "t", "partition": 0, "offset": 1, "epoch": 1, "value": None}


def staged(url: str, like: SqlTarget) -> int:
    return int(query(url, f"SELECT count(*) FROM {like._tables.staged.name}")[0][0])


# --- one writer ----------------------------------------------------------------------------------------------------


def test_rows_and_fences_are_stored_together(url: str) -> None:
    sink = target(url)
    outcome = put(sink, rows(3, range(10)), rows(3, range(10, 15)))
    assert (outcome.written, outcome.skipped, outcome.refused) == (15, 0, 0)
    assert offsets(url) == list(range(15))
    assert next_offsets(SqlLedger(sink.place)) == {TP: 15}
    assert staged(url, sink) == 0


def test_a_batch_that_is_replayed_writes_nothing_twice(url: str) -> None:
    sink = target(url)
    put(sink, rows(3, range(10)))
    outcome = put(sink, rows(3, range(10)))
    assert (outcome.written, outcome.skipped) == (0, 10)
    assert offsets(url) == list(range(10))


def test_a_new_owner_goes_on_where_the_old_ones_rows_end(url: str) -> None:
    put(target(url), rows(3, range(10)))
    outcome = put(target(url), rows(4, range(5, 20)))
    assert (outcome.written, outcome.skipped) == (10, 5)
    assert offsets(url) == list(range(20))


def test_a_zombies_rows_are_refused_and_its_other_partitions_are_not(url: str) -> None:
    sink = target(url)
    put(sink, rows(4, range(10)))
    outcome = put(sink, rows(3, range(10, 20)), rows(3, range(5), partition=1))
    assert (outcome.written, outcome.refused) == (5, 10)
    assert [stale.tp for stale in outcome.stale] == [TP]
    assert SqlLedger(sink.place).fences()[TP].refused_rows == 10


def test_with_fail_a_zombie_writes_nothing_at_all(url: str) -> None:
    put(target(url), rows(4, range(10)))
    with pytest.raises(StaleRows, match="orders/0"):
        put(target(url, on_stale="fail"), rows(3, range(10, 20)), rows(3, range(5), partition=1))
    assert offsets(url) == list(range(10))
    assert next_offsets(SqlLedger(target(url).place)) == {TP: 10}


def test_groups_and_sinks_that_share_a_database_do_not_mind_each_other(url: str) -> None:
    put(target(url), rows(9, range(10)))
    assert put(target(url, group="audit"), rows(1, range(10))).written == 10
    assert put(target(url, sink="copy"), rows(1, range(10))).written == 10
    assert put(target(url), rows(1, range(10))).refused == 10


def test_a_batch_without_rows_changes_nothing(url: str) -> None:
    sink = target(url)
    assert put(sink) == Outcome(batch_id=1)
    assert put(sink, rows(3, [])) == Outcome(batch_id=1)
    assert SqlLedger(sink.place).fences() == {}


def test_rows_that_filters_left_out_are_neither_waited_for_nor_written_later(url: str) -> None:
    """Only offset 12 of 10..20 came through the filter. A successor that reads them again has the same row to offer."""
    sink = target(url)
    put(sink, rows(3, [12]))
    assert put(sink, rows(4, [12])).skipped == 1
    assert offsets(url) == [12]


def test_several_rows_of_one_record_are_all_written(url: str) -> None:
    sink = target(url)
    put(sink, rows(3, [7, 7, 7]))
    put(sink, rows(3, [7, 7, 7]))
    assert offsets(url) == [7, 7, 7]


def test_reset_lets_a_topic_begin_again(url: str) -> None:
    sink = target(url)
    put(sink, rows(9, range(10)), rows(9, range(3), topic="refunds"))
    SqlLedger(sink.place).reset(TOPIC)
    assert put(sink, rows(1, range(4))).written == 4
    assert put(sink, rows(1, range(4), topic="refunds")).refused == 4


def test_more_partitions_than_fit_into_a_statement(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_PARTITIONS_PER_STATEMENT", 3)
    sink = target(url)
    tasks = [rows(1, range(2), partition=partition) for partition in range(10)]
    assert put(sink, *tasks).written == 20
    assert put(sink, *tasks).skipped == 20
    assert len(next_offsets(SqlLedger(sink.place))) == 10


def test_more_rows_than_fit_into_a_statement(url: str) -> None:
    assert put(target(url), rows(1, range(12_000))).written == 12_000


# --- many writers --------------------------------------------------------------------------------------------------


def test_a_zombie_that_waits_for_the_new_owners_transaction_is_refused_after_it(postgres: str) -> None:
    """Two connections: the new owner holds the fence, not committed, when the zombie comes."""
    sink = target(postgres)
    put(sink, rows(3, range(10)))
    engine, tables = open_database(postgres), sink._tables
    late = sink.stage([rows(3, range(10, 20))])
    assert late is not None
    with ThreadPoolExecutor() as pool:
        with engine.begin() as owner:
            commit.lock_fences(owner, tables, sink.place.sink, [TP])
            zombie = pool.submit(sink.commit, [late], 1)
            _until(lambda: _waiting_for_locks(postgres) == 1)
            assert not zombie.done()
            owner.execute(tables.fences.update().values(epoch=4))
        assert zombie.result(timeout=30).refused == 10
    assert offsets(postgres) == list(range(10))


def test_an_owner_that_freezes_with_its_fences_locked_does_not_stop_the_next(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends a transaction whose owner falls silent; what the owner does when it wakes up is lost on it."""
    sink = target(postgres)
    put(sink, rows(3, range(10)))
    with monkeypatch.context() as impatient:
        impatient.setattr("assigner.spark.sinks.sql.database.SILENT_SECONDS", 0.3)
        frozen = open_database(postgres).connect()
        commit.lock_fences(frozen, sink._tables, sink.place.sink, [TP])
    assert put(sink, rows(4, range(10, 20))).written == 10
    with pytest.raises(DBAPIError):
        frozen.execute(sink._tables.fences.update().values(epoch=3))
    frozen.close()
    assert SqlLedger(sink.place).fences()[TP].epoch == 4


def test_members_that_write_the_same_partitions_in_any_order_never_deadlock(url: str) -> None:
    """Four members write all partitions at once, each with its tasks in another order, and each under its own epoch."""
    partitions = range(5)
    begin = threading.Barrier(4)

    def member(epoch: int) -> int:
        sink = target(url)
        order = [*partitions[epoch:], *partitions[:epoch]]
        written = 0
        for first in range(0, 15, 5):
            begin.wait(timeout=60)
            written += put(sink, *(rows(epoch, range(first, first + 5), partition=n) for n in order)).written
        return written

    target(url)
    with ThreadPoolExecutor(4) as pool:
        written = sum(pool.map(member, range(1, 5)))
    assert written == len(offsets(url)) == 15 * len(partitions)
    assert offsets(url) == list(range(15)) * len(partitions)


def test_members_that_make_the_tables_at_once_do_not_collide(url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: target(url), range(6)))
    assert put(target(url), rows(1, range(3))).written == 3


def test_first_batches_of_two_members_at_once_are_both_taken(postgres: str) -> None:
    """Neither finds fences; both make them."""
    begin = threading.Barrier(6)

    def member(number: int) -> int:
        sink = target(postgres)
        begin.wait(timeout=60)
        return put(sink, *(rows(1, range(5), partition=partition) for partition in (number, 10, 11))).written

    target(postgres)
    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(member, range(6))) == 6 * 5 + 2 * 5


# --- staging -------------------------------------------------------------------------------------------------------


def test_what_is_staged_is_not_visible_and_is_taken_back_on_abort(url: str) -> None:
    sink = target(url)
    message = sink.stage([rows(1, range(5))])
    assert message is not None
    assert offsets(url) == []
    assert staged(url, sink) == 5
    sink.abort([message])
    assert staged(url, sink) == 0


def test_a_task_that_fails_midway_stages_nothing(url: str) -> None:
    sink = target(url)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(1, range(5))
        raise OSError("lost the disk")

    with pytest.raises(OSError, match="lost the disk"):
        sink.stage(failing())
    assert staged(url, sink) == 0


def test_orphans_are_swept_by_age_and_young_ones_stay(url: str) -> None:
    sink = target(url)
    sink.stage([rows(1, range(5))])
    with open_database(url).begin() as connection:
        connection.execute(sink._tables.staged.insert(), [orphan(time.time() - 3 * 86400)])
    assert sink.place.vacuum() == 1
    assert staged(url, sink) == 5
    assert sink.place.vacuum(older_than=-10) == 5


def test_a_commit_now_and_then_sweeps(url: str) -> None:
    sink = target(url)
    with open_database(url).begin() as connection:
        connection.execute(sink._tables.staged.insert(), [orphan(0)])
    put(sink, rows(1, range(5)), batch_id=101)
    assert staged(url, sink) == 1
    put(sink, rows(1, range(5, 6)), batch_id=200)
    assert staged(url, sink) == 0


def test_staged_rows_that_were_swept_fail_the_batch_and_lose_nothing(url: str) -> None:
    sink = target(url)
    message = sink.stage([rows(1, range(5))])
    assert message is not None
    sink.place.vacuum(older_than=-10)
    with pytest.raises(StagedRowsLost, match=r"5 rows were staged for payments and 0 are there.*repeats the batch"):
        sink.commit([message], 1)
    assert SqlLedger(sink.place).fences()[TP] == Fence()
    assert put(sink, rows(1, range(5))).written == 5


def test_a_crash_of_postgresql_between_staging_and_commit_fails_the_batch_and_loses_nothing(
    start_postgres: Callable[[], PostgresServer],
) -> None:
    server = start_postgres()
    sink = target(server.new_schema())
    put(sink, rows(1, range(3)))
    message = sink.stage([rows(1, range(3, 8))])
    assert message is not None
    server.crash()
    with pytest.raises(SinkUnavailable, match=r"no connection to postgresql://.*option url"):
        sink.commit([message], 1)
    server.start()
    with pytest.raises(StagedRowsLost):
        sink.commit([message], 1)
    assert offsets(sink.place.url) == [0, 1, 2]
    assert put(sink, rows(1, range(3, 8))).written == 5


# --- states --------------------------------------------------------------------------------------------------------


def test_a_state_is_stored_with_the_batch_and_replaced_by_the_next(url: str) -> None:
    sink = target(url, STATEFUL_SCHEMA)
    ledger = SqlLedger(sink.place)
    assert ledger.states([TP]).get(TP) is None
    assert put(sink, with_states(rows(3, range(5)), [(0, 3, 6, b"first")])).states == 1
    put(sink, with_states(rows(4, range(6, 9)), [(0, 4, 9, b"second"), (1, 4, 2, b"other")]))
    state = ledger.states([TP]).get(TP)
    assert state is not None
    assert (state.epoch, state.next_offset, state.state) == (4, 9, b"second")
    assert offsets(url) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert next_offsets(ledger) == {TP: 9, TopicPartition(TOPIC, 1): 2}


def test_a_zombies_state_is_refused(url: str) -> None:
    sink = target(url, STATEFUL_SCHEMA)
    put(sink, with_states(rows(4, range(5)), [(0, 4, 5, b"newer")]))
    assert put(sink, with_states(rows(3, []), [(0, 3, 50, b"zombie")])).states == 0
    state = SqlLedger(sink.place).states([TP]).get(TP)
    assert state is not None
    assert state.state == b"newer"
    assert next_offsets(SqlLedger(sink.place)) == {TP: 5}


def test_reset_forgets_states_too(url: str) -> None:
    sink = target(url, STATEFUL_SCHEMA)
    put(sink, with_states(rows(4, range(5)), [(0, 4, 5, b"old")]))
    SqlLedger(sink.place).reset(TOPIC)
    assert SqlLedger(sink.place).states([TP]).get(TP) is None


def _waiting_for_locks(url: str) -> int:
    return int(query(url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")[0][0])


def _until(holds: Callable[[], bool], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
