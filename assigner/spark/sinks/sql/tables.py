"""Defines the tables of a fenced SQL sink, and converts a Spark schema to columns.

Beside the table that users asked for there are three: fences and states, each shared by all groups and sinks in that
schema, and per table one for staged rows, whose name carries a hash of the columns so that old and new versions of a
query can run side by side.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from pyspark.sql import types as spark
from pyspark.sql.types import StructType
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Double,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    inspect,
    text,
)
from sqlalchemy.types import TypeEngine

from assigner.errors import InvalidInput
from assigner.model.names import MAX_NAME_BYTES
from assigner.spark.sinks.columns import ORIGIN, data_columns
from assigner.spark.sinks.sql.database import POSTGRESQL, is_postgresql

FENCES, STATES, STAGED_STATES = "assigner_fences", "assigner_states", "assigner_states_staged"
TOKEN = "staged_token"
_TOKEN_LENGTH = 64
# PostgreSQL cuts identifiers after 63 bytes.
_STEM = 40
_CREATION_LOCK = zlib.crc32(b"assigner.spark.sinks")

# Sorted by code points everywhere, as Python sorts: all members lock fences in the same order.
_NAME = String(MAX_NAME_BYTES).with_variant(String(MAX_NAME_BYTES, collation="C"), "postgresql")

_TYPES: dict[type[spark.DataType], Callable[[], TypeEngine[Any]]] = {
    spark.StringType: Text,
    spark.BinaryType: LargeBinary,
    spark.BooleanType: Boolean,
    spark.ByteType: SmallInteger,
    spark.ShortType: SmallInteger,
    spark.IntegerType: Integer,
    spark.LongType: BigInteger,
    spark.FloatType: Float,
    spark.DoubleType: Double,
    spark.DateType: Date,
    spark.TimestampType: lambda: DateTime(timezone=True),
    spark.TimestampNTZType: DateTime,
}


class LedgerTables:
    """Fences and states: the tables that all groups and sinks of one database schema share."""

    def __init__(self, dialect: str, namespace: str | None) -> None:
        self._metadata = MetaData(schema=namespace)
        self._dialect = dialect
        self.fences = Table(FENCES, self._metadata, *_key_columns(), *_fence_columns())
        self.states = Table(STATES, self._metadata, *_key_columns(), *_state_columns())
        origin = (Column("topic", _NAME, nullable=False), Column("partition", Integer, nullable=False))
        self.staged_states = self._staging(STAGED_STATES, *origin, *_state_columns())

    @property
    def all(self) -> list[Table]:
        return [self.fences, self.states, self.staged_states]

    def ensure(self, engine: Engine) -> None:
        """Make the tables that are missing. Any number of processes may do so at once."""
        with engine.connect() as connection:
            missing = _missing(connection, self.all)
        if not missing:
            return
        with engine.begin() as connection:
            if is_postgresql(connection):
                # Two CREATE TABLE IF NOT EXISTS at once can still collide in PostgreSQL's catalogue.
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
            self._metadata.create_all(connection, tables=_missing(connection, missing))

    def _staging(self, name: str, *columns: Column[Any]) -> Table:
        # Staged rows may be lost in a crash, which the commit notices: they need not be logged.
        prefixes = ["UNLOGGED"] if self._dialect == POSTGRESQL else []
        token = Column(TOKEN, String(_TOKEN_LENGTH), nullable=False)
        return Table(name, self._metadata, token, *columns, Index(f"{name}_token", TOKEN), prefixes=prefixes)


class SinkTables(LedgerTables):
    """All tables of one sink: those of `LedgerTables`, the users' table and the one where its rows are staged."""

    def __init__(self, dialect: str, table: str, schema: StructType) -> None:
        namespace, name = split_name(table)
        super().__init__(dialect, namespace)
        columns = _columns_of(schema)
        self.column_names = [column for column, _ in columns]
        digest = zlib.crc32(repr([(column, repr(kind)) for column, kind in columns]).encode())
        self.staged = self._staging(f"{staged_prefix(name)}{digest:08x}", *_as_columns(columns))
        self.target = Table(name, self._metadata, *_as_columns(columns))

    @property
    def all(self) -> list[Table]:
        return [*super().all, self.staged, self.target]

    def stored_columns(self, connection: Connection) -> list[str]:
        """The columns that the users' table stores. Only the columns of the rows' origin may be missing."""
        described = inspect(connection).get_columns(self.target.name, self.target.schema)
        present = {str(column["name"]) for column in described}
        lacking = [name for name in self.column_names if name not in present and name not in ORIGIN]
        if lacking:
            raise InvalidInput(
                f"table {self.target.fullname} has no column{'s' * (len(lacking) > 1)} {', '.join(lacking)}; add what "
                f"is missing to the table, or drop it from the query"
            )
        return [name for name in self.column_names if name in present]


def split_name(table: str) -> tuple[str | None, str]:
    """Split a table's name: `namespace.table` or `table`."""
    namespace, _, name = table.rpartition(".")
    if not name:
        raise InvalidInput(f"option table is {table!r}; name a table, such as payments or billing.payments")
    if name in (FENCES, STATES, STAGED_STATES):
        raise InvalidInput(f"table {table} can't be the sink: it keeps its fences and states there; name another table")
    return namespace or None, name


def staged_prefix(table: str) -> str:
    """Build the common prefix of the names of this table's staging tables."""
    return f"{table[:_STEM]}_staged_"


def _as_columns(columns: list[tuple[str, TypeEngine[Any]]]) -> list[Column[Any]]:
    return [Column(name, kind) for name, kind in columns]


def _missing(connection: Connection, tables: list[Table]) -> list[Table]:
    present = inspect(connection)
    return [table for table in tables if not present.has_table(table.name, schema=table.schema)]


def _key_columns() -> list[Column[Any]]:
    names = [Column(name, _NAME, primary_key=True) for name in ("group_name", "sink", "topic")]
    return [*names, Column("partition", Integer, primary_key=True, autoincrement=False)]


def _fence_columns() -> list[Column[Any]]:
    names = ("epoch", "next_offset", "refused_epoch", "refused_until", "refused_batches", "refused_rows")
    return [Column(name, BigInteger, nullable=False, default=0) for name in names]


def _state_columns() -> list[Column[Any]]:
    numbers = [Column(name, BigInteger, nullable=False) for name in ("epoch", "next_offset")]
    return [*numbers, Column("state", LargeBinary, nullable=False)]


def _columns_of(schema: StructType) -> list[tuple[str, TypeEngine[Any]]]:
    return [(name, _sql_type(schema[name])) for name in data_columns(schema.names)]


def _sql_type(field: spark.StructField) -> TypeEngine[Any]:
    if field.name == "topic":
        return _NAME
    if isinstance(field.dataType, spark.DecimalType):
        return Numeric(field.dataType.precision, field.dataType.scale)
    make = _TYPES.get(type(field.dataType))
    if make is None:
        raise InvalidInput(
            f"column {field.name} is of type {field.dataType.simpleString()}, which has no SQL column type; turn it "
            f"into a string, for instance by to_json({field.name}), or drop it"
        )
    return make()
