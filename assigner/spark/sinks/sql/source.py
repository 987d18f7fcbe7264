"""Implements `format("fenced_sql")`: the fenced SQL table as a data source to write to.

    register(spark)
    rows.writeStream.format("fenced_sql").option("url", url).option("table", "payments").option("group", "billing")

It does not read: read the table as any other, by JDBC or by the database's own tools.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from assigner.errors import InvalidInput
from assigner.spark.sinks.columns import check_columns
from assigner.spark.sinks.sql.sink import SqlTarget, sql_place
from assigner.spark.sinks.sql.staging import Staged
from assigner.spark.sinks.writer import FencedStreamWriter, FencedWriter, check_options

NAME = "fenced_sql"


class FencedSqlSource(DataSource):
    """The data source `fenced_sql`. Options: url, table, group; sink (the table's name), onStale (drop)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> FencedStreamWriter[Staged]:  # noqa: N802
        return FencedStreamWriter(self._target(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> FencedWriter[Staged]:
        return FencedWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> SqlTarget:
        check_options(NAME, self.options, ("url", "table", "group"), ("sink", "onStale"))
        if overwrite:
            raise InvalidInput(f"{NAME} only appends; use outputMode or mode append")
        check_columns(schema.names)
        place = sql_place(
            self.options["url"],
            self.options["table"],
            group=self.options["group"],
            sink=self.options.get("sink"),
            on_stale=self.options.get("onStale", "drop"),
        )
        return SqlTarget(place, schema)
