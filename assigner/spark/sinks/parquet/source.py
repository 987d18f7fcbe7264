"""Implements `format("fenced_parquet")`: the fenced directory as a data source to write to and to read from.

    register(spark)
    rows.writeStream.format("fenced_parquet").option("path", path).option("group", "billing")
    spark.read.format("fenced_parquet").load(path)

It reads through Python, one file per task; `read_fenced` reads the same rows with Spark's own reader and its push-down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from assigner.errors import InvalidInput
from assigner.spark.sinks.columns import check_columns
from assigner.spark.sinks.parquet.files import FilesStaged
from assigner.spark.sinks.parquet.manifests import DATA, refuse_link
from assigner.spark.sinks.parquet.sink import ParquetTarget, committed, local_directory, parquet_place, schema_of
from assigner.spark.sinks.writer import FencedStreamWriter, FencedWriter, check_options

NAME = "fenced_parquet"


class FencedParquetSource(DataSource):
    """The data source `fenced_parquet`. Options: path, group (to write); sink (rows), onStale (drop)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        directory = self._directory()
        return schema_of(directory, committed(directory))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ParquetReader(self._directory(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FencedStreamWriter[FilesStaged]:  # noqa: N802
        return FencedStreamWriter(self._target(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> FencedWriter[FilesStaged]:
        return FencedWriter(self._target(schema, overwrite))

    def _directory(self) -> Path:
        check_options(NAME, self.options, ("path",), ("group", "sink", "onStale"))
        return local_directory(self.options["path"])

    def _target(self, schema: StructType, overwrite: bool) -> ParquetTarget:
        check_options(NAME, self.options, ("path", "group"), ("sink", "onStale"))
        if overwrite:
            raise InvalidInput(f"{NAME} only appends; use outputMode or mode append")
        check_columns(schema.names)
        place = parquet_place(
            self.options["path"],
            group=self.options["group"],
            sink=self.options.get("sink", "rows"),
            on_stale=self.options.get("onStale", "drop"),
        )
        return ParquetTarget(place, schema)


@dataclass(frozen=True)
class _File(InputPartition):
    path: str


class _ParquetReader(DataSourceReader):
    """Reads the files that were committed when the query was planned."""

    def __init__(self, directory: Path, schema: StructType) -> None:
        self._directory = directory
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        names = committed(self._directory).files
        return [_File(str(refuse_link(self._directory / DATA / name))) for name in names]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _File):
            # No file is committed: Spark still plans one empty partition.
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with pq.ParquetFile(partition.path) as file:
            for batch in file.iter_batches(columns=schema.names):
                yield batch.cast(schema)
