"""Writes to a fenced directory of Parquet files: one manifest commits rows and fences together.

    query = rows.writeStream.foreachBatch(fenced_parquet("/lake/payments", group="billing")).start()
    read_fenced(spark, "/lake/payments").count()

Executors write data files; the driver's commit names those that pass. Only `read_fenced` and `format("fenced_parquet")`
know which files count. All members need the same directory, on a file system with exclusive links.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from assigner.errors import FailedPrecondition, InvalidInput
from assigner.model.keys import TopicPartition
from assigner.spark.sinks.columns import StateRow, check_columns, data_columns
from assigner.spark.sinks.fence import Fence, OnStale, stale_policy
from assigner.spark.sinks.ledger import SinkId
from assigner.spark.sinks.outcome import Outcome, log_outcome
from assigner.spark.sinks.parquet import files
from assigner.spark.sinks.parquet.commit import Commit, fences_of
from assigner.spark.sinks.parquet.files import FilesStaged
from assigner.spark.sinks.parquet.manifests import (
    COMMITS,
    DATA,
    STATES,
    Contents,
    FencedPartition,
    Manifest,
    ManifestLog,
    StateFile,
    refuse_link,
)
from assigner.spark.sinks.writer import FencedBatches

_TRIES = 1_000
_UNUSABLE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True)
class ParquetPlace:
    """A directory, and the sink whose fences apply to it."""

    directory: Path
    sink: SinkId
    on_stale: OnStale = OnStale.DROP


@dataclass(frozen=True)
class ParquetTarget:
    """Writes rows of one schema to a `ParquetPlace`."""

    place: ParquetPlace
    schema: StructType

    @property
    def staged_type(self) -> type[FilesStaged]:
        return FilesStaged

    def prepare(self) -> None:
        with _writing_to(self.place.directory):
            ManifestLog(self.place.directory).prepare()

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FilesStaged | None:
        with _writing_to(self.place.directory):
            return files.stage(self.place.directory, batches)

    def commit(self, staged: list[FilesStaged], batch_id: int) -> Outcome:
        if not staged:
            return Outcome(batch_id=batch_id)
        place = self.place
        outcome, decision = Commit(place.directory, place.sink, stored_schema(self.schema), place.on_stale).run(
            staged, batch_id
        )
        log_outcome(str(place.sink), outcome, decision)
        return outcome

    def abort(self, staged: list[FilesStaged]) -> None:
        for each in staged:
            files.remove(self.place.directory, each)


@contextmanager
def _writing_to(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        if failure.errno not in _UNUSABLE:
            raise
        raise InvalidInput(
            f"path {directory} can't be written on this machine ({failure}); mount one directory there for the driver "
            f"and all executors, and let Spark's user write to it"
        ) from failure


class ParquetLedger:
    """Reads and resets the fences and states in a directory."""

    def __init__(self, place: ParquetPlace) -> None:
        self._place = place
        self._log = ManifestLog(place.directory)

    def fences(self) -> dict[TopicPartition, Fence]:
        return fences_of(self._log.read(), self._place.sink)

    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StateRow]:
        stored = self._log.read().states
        found = {tp: stored.get(FencedPartition.of(self._place.sink, tp)) for tp in partitions}
        return {tp: self._read(tp, file) for tp, file in found.items() if file is not None}

    def _read(self, tp: TopicPartition, found: StateFile) -> StateRow:
        state = refuse_link(self._place.directory / STATES / found.name).read_bytes()
        return StateRow(
            topic=tp.topic, partition=tp.partition, epoch=found.epoch, next_offset=found.next_offset, state=state
        )

    def reset(self, topic: str) -> None:
        for _ in range(_TRIES):
            contents = self._log.read()
            forgotten = [at for at in contents.fences if self._is_of(at, topic)]
            if not forgotten or self._log.append(contents, Manifest(written_at=time.time(), forgotten=forgotten)):
                return
        raise FailedPrecondition(
            f"{self._place.directory} is committed to so often that a reset always came too late; retry"
        )

    def _is_of(self, at: FencedPartition, topic: str) -> bool:
        return (at.group, at.sink, at.topic) == (self._place.sink.group, self._place.sink.name, topic)


def fenced_parquet(path: str, *, group: str, sink: str = "rows", on_stale: str = "drop") -> FencedBatches[FilesStaged]:
    """Make a function for `foreachBatch` that writes to a directory exactly once, across all members of the group.

    `path`: the same directory for all members. `sink`: one name for all members that write here. `on_stale`: `drop` or
    `fail`.
    """
    place = parquet_place(path, group=group, sink=sink, on_stale=on_stale)

    def target(schema: StructType) -> ParquetTarget:
        check_columns(schema.names)
        return ParquetTarget(place, schema)

    return FencedBatches(target, ParquetLedger(place))


def parquet_place(path: str, *, group: str, sink: str = "rows", on_stale: str = "drop") -> ParquetPlace:
    return ParquetPlace(local_directory(path), SinkId(group, sink), stale_policy(on_stale))


def read_fenced(spark: SparkSession, path: str) -> DataFrame:
    """Read the rows that are committed now."""
    directory = local_directory(path)
    contents = committed(directory)
    schema = schema_of(directory, contents)
    if not contents.files:
        return spark.createDataFrame([], schema)
    names = [refuse_link(directory / DATA / name).as_uri() for name in contents.files]
    return spark.read.schema(schema).parquet(*names)


def committed(directory: Path) -> Contents:
    if not (directory / COMMITS).is_dir():
        raise InvalidInput(f"{directory} is no fenced directory; name the path that a fenced sink writes to")
    return ManifestLog(directory).read()


def schema_of(directory: Path, contents: Contents) -> StructType:
    if contents.schema is None:
        raise InvalidInput(f"nothing was committed to {directory} yet, so its schema is not known; read it later")
    return StructType.fromJson(json.loads(contents.schema))


def stored_schema(schema: StructType) -> str:
    """Encode the schema as JSON, as it is compared and stored. Nullability is not part of it."""
    kept = [StructField(name, schema[name].dataType) for name in data_columns(schema.names)]
    return StructType(kept).json()


def local_directory(path: str) -> Path:
    parts = urlsplit(path)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise InvalidInput(
            f"path {path} is not on a mounted file system; fenced directories need exclusive links, which "
            f"{parts.scheme} has not: mount a shared file system (NFS, CephFS, EFS) on the driver and all executors"
        )
    return Path(unquote(parts.path) if parts.scheme else path).absolute()
