"""Fenced Parquet directories, driven as Spark would: tasks write files, the driver commits a manifest."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from assigner.errors import InvalidInput, UnreadableRecord
from assigner.model.keys import TopicPartition
from assigner.spark.sinks.fence import StaleRows
from assigner.spark.sinks.ledger import next_offsets
from assigner.spark.sinks.outcome import Outcome, StagedRowsLost
from assigner.spark.sinks.parquet.maintenance import compact, vacuum
from assigner.spark.sinks.parquet.manifests import CHECKPOINT_EVERY, Contents, DataFile, Manifest, ManifestLog
from assigner.spark.sinks.parquet.sink import ParquetLedger, ParquetTarget, committed, local_directory, parquet_place
from tests.support.spark.sink_rows import SCHEMA, STATEFUL_SCHEMA, TOPIC, rows, with_states

TP = TopicPartition(TOPIC, 0)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def target(path: str, schema: StructType = SCHEMA, *, group: str = "billing", on_stale: str = "drop") -> ParquetTarget:
    made = ParquetTarget(parquet_place(path, group=group, on_stale=on_stale), schema)
    made.prepare()
    return made


def put(sink: ParquetTarget, *tasks: pa.RecordBatch) -> Outcome:
    return sink.commit([staged for task in tasks if (staged := sink.stage([task])) is not None], 1)


def offsets(path: str) -> list[int]:
    """What a reader sees, by partition and offset."""
    contents = committed(Path(path))
    tables = [pq.read_table(Path(path) / "_data" / name) for name in contents.files]
    found = [(row["topic"], row["partition"], row["offset"]) for table in tables for row in table.to_pylist()]
    assert sum(file.rows for file in contents.files.values()) == len(found)
    return [offset for _, _, offset in sorted(found)]


def data_files(path: str, folder: str = "_data") -> set[str]:
    return {each.name for each in (Path(path) / folder).iterdir()}


# --- one writer ----------------------------------------------------------------------------------------------------


def test_rows_and_fences_are_committed_together(lake: str) -> None:
    sink = target(lake)
    outcome = put(sink, rows(3, range(10)), rows(3, range(10, 15)))
    assert (outcome.written, outcome.skipped, outcome.refused) == (15, 0, 0)
    assert offsets(lake) == list(range(15))
    assert next_offsets(ParquetLedger(sink.place)) == {TP: 15}


def test_a_batch_that_is_replayed_commits_nothing(lake: str) -> None:
    sink = target(lake)
    put(sink, rows(3, range(10)))
    before = committed(Path(lake)).number
    outcome = put(sink, rows(3, range(10)))
    assert (outcome.written, outcome.skipped) == (0, 10)
    assert committed(Path(lake)).number == before
    assert offsets(lake) == list(range(10))


def test_a_file_of_which_a_part_is_new_is_taken_in_part(lake: str) -> None:
    sink = target(lake)
    put(sink, rows(3, range(10)), rows(3, range(2), partition=1))
    both = pa.Table.from_batches([rows(4, range(5, 20)), rows(4, range(2), partition=1)]).combine_chunks()
    outcome = put(sink, both.to_batches()[0])
    assert (outcome.written, outcome.skipped) == (10, 7)
    assert offsets(lake) == [*range(20), 0, 1]


def test_a_zombies_rows_are_refused_and_its_other_partitions_are_not(lake: str) -> None:
    sink = target(lake)
    put(sink, rows(4, range(10)))
    both = pa.Table.from_batches([rows(3, range(10, 20)), rows(3, range(5), partition=1)]).combine_chunks()
    outcome = put(sink, both.to_batches()[0])
    assert (outcome.written, outcome.refused) == (5, 10)
    assert offsets(lake) == [*range(10), *range(5)]
    assert ParquetLedger(sink.place).fences()[TP].refused_rows == 10


def test_with_fail_a_zombie_writes_nothing_at_all(lake: str) -> None:
    put(target(lake), rows(4, range(10)))
    with pytest.raises(StaleRows, match="orders/0"):
        put(target(lake, on_stale="fail"), rows(3, range(10, 20)), rows(3, range(5), partition=1))
    assert offsets(lake) == list(range(10))


def test_groups_that_share_a_directory_do_not_mind_each_other(lake: str) -> None:
    put(target(lake), rows(9, range(10)))
    assert put(target(lake, group="audit"), rows(1, range(10))).written == 10


def test_rows_of_another_shape_are_refused(lake: str) -> None:
    put(target(lake), rows(1, range(2)))
    other = StructType([*SCHEMA.fields, StructField("note", StringType())])
    batch = rows(1, range(2, 4)).append_column("note", pa.array(["a", "b"]))
    with pytest.raises(InvalidInput, match="another directory"):
        put(target(lake, other), batch)
    assert offsets(lake) == [0, 1]


def test_a_batch_without_rows_changes_nothing(lake: str) -> None:
    sink = target(lake)
    assert put(sink) == put(sink, rows(1, [])) == Outcome(batch_id=1)
    assert committed(Path(lake)).number == 0


def test_reset_lets_a_topic_begin_again(lake: str) -> None:
    sink = target(lake)
    put(sink, rows(9, range(3)), rows(9, range(3), topic="refunds"))
    ParquetLedger(sink.place).reset(TOPIC)
    assert put(sink, rows(1, range(4))).written == 4
    assert put(sink, rows(1, range(4), topic="refunds")).refused == 4


def test_aborted_files_are_deleted(lake: str) -> None:
    sink = target(lake, STATEFUL_SCHEMA)
    staged = sink.stage([with_states(rows(1, range(3)), [(0, 1, 3, b"s")])])
    assert staged is not None
    sink.abort([staged])
    assert data_files(lake) == set()
    assert data_files(lake, "_states") == set()


def test_states_are_committed_with_the_rows_and_a_zombies_are_not(lake: str) -> None:
    sink = target(lake, STATEFUL_SCHEMA)
    ledger = ParquetLedger(sink.place)
    assert ledger.states([TP]).get(TP) is None
    put(sink, with_states(rows(3, range(5)), [(0, 3, 6, b"first")]))
    assert put(sink, with_states(rows(4, []), [(0, 4, 9, b"second")])).states == 1
    assert put(sink, with_states(rows(3, []), [(0, 3, 50, b"zombie")])).states == 0
    state = ledger.states([TP]).get(TP)
    assert state is not None
    assert (state.epoch, state.next_offset, state.state) == (4, 9, b"second")
    assert next_offsets(ledger) == {TP: 9}
    ledger.reset(TOPIC)
    assert ledger.states([TP]).get(TP) is None


@pytest.mark.parametrize("path", ["s3a://bucket/lake", "hdfs://host/lake", "file://host/lake"])
def test_a_path_without_exclusive_links_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="mount a shared file system"):
        local_directory(path)


def test_paths_may_be_uris() -> None:
    assert local_directory("file:///lake/a%20b") == Path("/lake/a b")
    assert local_directory("/lake/a%20b") == Path("/lake/a%20b")


def test_a_directory_that_is_not_fenced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no fenced directory"):
        committed(tmp_path)


# --- many writers --------------------------------------------------------------------------------------------------


def _member(path: str, epoch: int, partitions: int, batches: int) -> int:
    """A process that writes the same offsets of the same partitions as every other one."""
    sink = target(path)
    written = 0
    for first in range(0, batches * 3, 3):
        written += put(sink, *(rows(epoch, range(first, first + 3), partition=n) for n in range(partitions))).written
    return written


@pytest.mark.processes
def test_processes_that_commit_at_once_lose_and_double_nothing(lake: str) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        # One epoch: two copies of one member, the worst of mistakes. Offsets alone keep them apart.
        written = sum(pool.map(_member, [lake] * 2, [1] * 2, [2] * 2, [30] * 2))
    assert written == 2 * 90
    assert offsets(lake) == list(range(90)) * 2


def test_a_commit_that_lost_its_race_is_judged_anew(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zombie has read the manifests; the new owner commits; the zombie's manifest must not follow."""
    sink, owner = target(lake), target(lake)
    put(sink, rows(3, range(10)))
    read = ManifestLog.read

    def overtaken(log: ManifestLog, known: Contents | None = None) -> Contents:
        found = read(log, known)
        monkeypatch.setattr(ManifestLog, "read", read)
        put(owner, rows(4, range(10, 15)))
        return found

    monkeypatch.setattr(ManifestLog, "read", overtaken)
    assert put(sink, rows(3, range(10, 20))).refused == 10
    assert offsets(lake) == list(range(15))


def test_of_commits_on_the_same_contents_one_succeeds(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path)
    log.prepare()
    contents = log.read()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: log.append(contents, manifest(f"{n}")), range(8)))
    assert sum(result is not None for result in results) == 1
    assert log.read().number == 1


# --- the log -------------------------------------------------------------------------------------------------------


def named(what: str) -> str:
    """A name as data files have it, the same for the same word."""
    return f"{0:012d}-{hashlib.md5(what.encode()).hexdigest()}.parquet"


def manifest(what: str, *, removed: list[str] | None = None) -> Manifest:
    return Manifest(
        written_at=time.time(), added=[DataFile(named(what), 1, 1)], removed=[named(one) for one in removed or []]
    )


@pytest.fixture
def log(tmp_path: Path) -> ManifestLog:
    log = ManifestLog(tmp_path)
    log.prepare()
    return log


def grown(log: ManifestLog, commits: int) -> Contents:
    contents = log.read()
    for _ in range(commits):
        following = log.append(contents, manifest(f"file-{contents.number + 1}"))
        assert following is not None
        contents = following
    return contents


def test_reading_the_log_gives_what_its_commits_add_up_to(log: ManifestLog) -> None:
    contents = grown(log, 3)
    assert log.append(contents, manifest("joined", removed=["file-1", "file-2"])) is not None
    found = log.read()
    assert (found.number, set(found.files)) == (4, {named("file-3"), named("joined")})
    assert set(found.removed) == {named("file-1"), named("file-2")}
    assert log.read(contents) == found


def test_a_whole_manifest_stands_for_all_before_it(log: ManifestLog, tmp_path: Path) -> None:
    contents = grown(log, CHECKPOINT_EVERY + 2)
    for path in log.outdated(time.time() + 10):
        path.unlink()
    assert sorted(path.name for path in (tmp_path / "_manifests").glob("*.json")) == [
        f"{CHECKPOINT_EVERY + 1:020d}.json",
        f"{CHECKPOINT_EVERY + 2:020d}.json",
    ]
    assert log.read() == contents
    assert log.read(Contents()) == contents


def test_nothing_of_the_log_is_outdated_before_a_whole_one_is_old_enough(log: ManifestLog) -> None:
    grown(log, CHECKPOINT_EVERY)
    assert log.outdated(time.time() - 60) == []


def test_a_committer_that_slept_until_its_number_was_vacuumed_is_not_deceived(log: ManifestLog) -> None:
    """Its number is free again, so its link succeeds; but a whole manifest already counts past it."""
    asleep = grown(log, 3)
    grown(log, CHECKPOINT_EVERY * 2)
    for path in log.outdated(time.time() + 10):
        path.unlink()
    assert log.append(asleep, manifest("late")) is None
    assert named("late") not in log.read().files


def test_a_number_with_half_a_manifest_does_not_exist(log: ManifestLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while a manifest is written leaves a draft, never a number."""
    contents = grown(log, 1)
    monkeypatch.setattr("assigner.spark.sinks.parquet.manifests.os.link", _crash)
    with pytest.raises(OSError, match="crash"):
        log.append(contents, manifest("lost"))
    monkeypatch.undo()
    assert log.read() == contents
    assert log.append(contents, manifest("next")) is not None


def _crash(*_: object) -> None:
    raise OSError("crash")


def test_an_unreadable_manifest_stops_reading_and_is_named(log: ManifestLog, tmp_path: Path) -> None:
    grown(log, 2)
    (tmp_path / "_manifests" / f"{2:020d}.json").write_text("{")
    with pytest.raises(UnreadableRecord, match=r"0002\.json is no manifest"):
        log.read()


def test_removed_files_are_forgotten_in_time(log: ManifestLog) -> None:
    contents = grown(log, CHECKPOINT_EVERY - 2)
    old = msgspec.structs.replace(manifest("a", removed=["file-1"]), written_at=time.time() - 30 * 86400)
    after_old = log.append(contents, old)
    assert after_old is not None
    assert log.append(after_old, manifest("b", removed=["file-2"])) is not None
    assert set(log.read().removed) == {named("file-2")}


def test_a_link_whose_answer_was_lost_counts(log: ManifestLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NFS: the link is made, the answer is lost, and its repetition says that the name exists."""
    link = os.link

    def repeated(source: Path, path: Path) -> None:
        link(source, path)
        link(source, path)

    monkeypatch.setattr("assigner.spark.sinks.parquet.manifests.os.link", repeated)
    assert log.append(log.read(), manifest("once")) is not None
    assert set(log.read().files) == {named("once")}


def test_a_file_system_without_links_is_refused(log: ManifestLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("assigner.spark.sinks.parquet.manifests.os.link", refused)
    with pytest.raises(InvalidInput, match="without hard links"):
        log.append(log.read(), manifest("a"))


# --- upkeep --------------------------------------------------------------------------------------------------------


def test_vacuum_deletes_orphans_and_nothing_that_counts(lake: str) -> None:
    sink = target(lake, STATEFUL_SCHEMA)
    put(sink, with_states(rows(1, range(5)), [(0, 1, 5, b"one")]))
    put(sink, with_states(rows(1, range(5, 9)), [(0, 1, 9, b"two")]))
    sink.stage([with_states(rows(1, range(9, 12)))])
    assert vacuum(lake) == 0
    assert vacuum(lake, older_than=-10) == 2
    assert offsets(lake) == list(range(9))
    state = ParquetLedger(sink.place).states([TP]).get(TP)
    assert state is not None
    assert state.state == b"two"


def test_a_batch_whose_files_were_vacuumed_fails_and_loses_nothing(lake: str) -> None:
    sink = target(lake)
    staged = sink.stage([rows(1, range(3))])
    assert staged is not None
    assert vacuum(lake, older_than=-10) == 1
    with pytest.raises(StagedRowsLost, match="exceed the longest batch"):
        sink.commit([staged], 1)
    assert put(sink, rows(1, range(3))).written == 3


def test_compaction_joins_files_and_readers_see_the_same_rows(lake: str) -> None:
    sink = target(lake)
    for first in range(0, 50, 5):
        put(sink, rows(1, range(first, first + 5)))
    before = data_files(lake)
    assert compact(lake) == 10
    assert offsets(lake) == list(range(50))
    assert len(committed(Path(lake)).files) == 1
    # Readers that planned before may still be at the old files.
    assert before < data_files(lake)
    assert vacuum(lake) == 0
    assert vacuum(lake, older_than=-10) == 10
    assert offsets(lake) == list(range(50))
    assert compact(lake) == 0


def test_compaction_leaves_large_files_and_keeps_to_its_size(lake: str) -> None:
    sink = target(lake)
    for first in range(0, 20, 5):
        put(sink, rows(1, range(first, first + 5)))
    size = max(file.size for file in committed(Path(lake)).files.values())
    assert compact(lake, target_bytes=size) == 0
    assert compact(lake, target_bytes=int(size * 2.5)) == 4
    assert len(committed(Path(lake)).files) == 2


def test_of_two_compactions_at_once_one_counts(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = target(lake)
    for first in range(0, 10, 5):
        put(sink, rows(1, range(first, first + 5)))
    read, done = ManifestLog.read, list[int]()

    def overtaken(log: ManifestLog, known: Contents | None = None) -> Contents:
        if not done:
            done.append(0)
            done[0] = compact(lake)
        return read(log, known)

    groups = committed(Path(lake))
    monkeypatch.setattr("assigner.spark.sinks.parquet.maintenance.committed", _once(groups))
    monkeypatch.setattr(ManifestLog, "read", overtaken)
    assert compact(lake) == 0
    assert done == [2]
    assert offsets(lake) == list(range(10))


def _once(stale: Contents) -> object:
    calls: Iterator[Contents] = iter([stale, stale])
    return lambda directory: next(calls)
