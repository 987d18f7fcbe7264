"""Writes and reads the data files of a fenced directory. Tasks write them, and readers ignore them until a manifest
names them.

They are under `_data`, which Spark ignores when it lists a directory: a read of the directory as plain Parquet fails
instead of returning refused rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import WriterCommitMessage

from assigner.model.keys import TopicPartition
from assigner.spark.sinks.columns import StateRow, check_columns, data_rows, slices_of, state_rows
from assigner.spark.sinks.fence import Slice, merged
from assigner.spark.sinks.parquet.manifests import (
    DATA,
    STATES,
    DataFile,
    StateName,
    new_data_name,
    new_state_name,
    refuse_link,
    sync_folder,
    write_durably,
)

_ROWS_PER_GROUP = 100_000
_COMPRESSION = "zstd"


@dataclass(frozen=True, kw_only=True)
class FilesStaged(WriterCommitMessage):
    """The files that one task wrote."""

    data: DataFile | None
    slices: list[Slice]
    states: list[tuple[Slice, StateName]]
    """The slice that each state covers, and its file."""


def stage(directory: Path, batches: Iterable[pa.RecordBatch]) -> FilesStaged | None:
    slices, states = list[Slice](), list[tuple[Slice, StateName]]()

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            check_columns(batch.schema.names)
            data = data_rows(batch)
            slices.extend(slices_of(data))
            states.extend((state.extent, _write_state(directory, state)) for state in state_rows(batch))
            yield data

    written = write_rows(directory, rows())
    if written is None and not states:
        return None
    return FilesStaged(data=written, slices=merged(slices), states=states)


def write_rows(directory: Path, batches: Iterator[pa.RecordBatch]) -> DataFile | None:
    """Write rows into a new file, in row groups of an efficient size. None: there were no rows."""
    path = directory / DATA / new_data_name()
    writer: pq.ParquetWriter | None = None
    count = 0
    try:
        for group in _grouped(batches):
            writer = writer or pq.ParquetWriter(path, group.schema, compression=_COMPRESSION)
            writer.write_table(group)
            count += group.num_rows
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        return None
    _sync_file(path)
    sync_folder(path.parent)
    return DataFile(path.name, count, path.stat().st_size)


def open_rows(directory: Path, file: DataFile) -> pq.ParquetFile:
    return pq.ParquetFile(refuse_link(directory / DATA / file.name))


def copy_passing(directory: Path, file: DataFile, floors: dict[TopicPartition, int]) -> DataFile | None:
    """Copy the rows of a file that pass the fences into a new file."""
    with open_rows(directory, file) as source:
        return write_rows(directory, (_passing_rows(batch, floors) for batch in source.iter_batches()))


def remove(directory: Path, staged: FilesStaged) -> None:
    if staged.data is not None:
        (directory / DATA / staged.data.name).unlink(missing_ok=True)
    for _, name in staged.states:
        (directory / STATES / name).unlink(missing_ok=True)


def _passing_rows(batch: pa.RecordBatch, floors: dict[TopicPartition, int]) -> pa.RecordBatch:
    topics, partitions = batch.column("topic").to_pylist(), batch.column("partition").to_pylist()
    # Above every offset: no row of a partition without a floor passes.
    none = 2**63 - 1
    limits = [floors.get(TopicPartition(*tp), none) for tp in zip(topics, partitions, strict=True)]
    return batch.filter(pc.greater_equal(batch.column("offset"), pa.array(limits, pa.int64())))


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= _ROWS_PER_GROUP:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _write_state(directory: Path, state: StateRow) -> StateName:
    name = new_state_name()
    write_durably(directory / STATES / name, state.state)
    return name


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
