"""Tables and databases of fenced SQL sinks: their columns, their types, and which are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from sqlalchemy import text

from assigner.errors import InvalidInput
from assigner.spark.sinks.ledger import next_offsets
from assigner.spark.sinks.sql.database import SinkUnavailable, open_database
from assigner.spark.sinks.sql.sink import SqlLedger, SqlTarget, sql_place
from tests.support.servers.ports import free_port
from tests.support.spark.sink_rows import SCHEMA, rows
from tests.support.spark.sql_sinks import TP, offsets, put, query, target


def test_a_table_of_ones_own_may_do_without_the_origin_of_the_rows(url: str) -> None:
    with open_database(url).begin() as connection:
        connection.execute(text("CREATE TABLE payments (value TEXT, noted_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"))
    put(target(url), rows(1, range(2)))
    assert query(url, "SELECT value FROM payments ORDER BY value") == [("orders/0:0",), ("orders/0:1",)]


def test_a_table_that_lacks_a_column_is_an_error_that_names_it(url: str) -> None:
    with open_database(url).begin() as connection:
        connection.execute(text("CREATE TABLE payments (amount INTEGER)"))
    with pytest.raises(InvalidInput, match=r"payments has no column value; add"):
        put(target(url), rows(1, range(2)))


def test_versions_of_a_query_with_other_columns_stage_side_by_side(url: str) -> None:
    old = target(url)
    with open_database(url).begin() as connection:
        connection.execute(text("ALTER TABLE payments ADD COLUMN note TEXT"))
    new = target(url, spark.StructType([*SCHEMA.fields, spark.StructField("note", spark.StringType())]))
    batch = rows(2, range(5, 8))
    noted = batch.append_column("note", pa.array(["n"] * 3, pa.string()))
    assert put(old, rows(1, range(5))).written == 5
    assert put(new, noted).written == 3
    assert put(old, rows(2, range(8, 9))).written == 1


def test_values_of_every_type_are_read_as_they_were_written(url: str) -> None:
    fields = {
        "flag": (spark.BooleanType(), pa.array([True, None], pa.bool_()), True),
        "small": (spark.ShortType(), pa.array([-5, None], pa.int16()), -5),
        "number": (spark.LongType(), pa.array([2**62, None], pa.int64()), 2**62),
        "ratio": (spark.DoubleType(), pa.array([0.1, None], pa.float64()), 0.1),
        "price": (spark.DecimalType(10, 2), pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)), Decimal("1.50")),
        "name": (spark.StringType(), pa.array(['tab\t"quote" \\ \n ü', None]), 'tab\t"quote" \\ \n ü'),
        "blob": (spark.BinaryType(), pa.array([b"\x00\xff\\", None], pa.binary()), b"\x00\xff\\"),
        "day": (spark.DateType(), pa.array([date(2026, 11, 16), None]), date(2026, 11, 16)),
    }
    more = [spark.StructField(name, kind) for name, (kind, _, _) in fields.items()]
    schema = spark.StructType([*SCHEMA.fields, *more])
    batch = rows(1, range(2))
    for name, (_, values, _) in fields.items():
        batch = batch.append_column(name, values)
    sink = target(url, schema)
    put(sink, batch)
    with open_database(url).connect() as connection:
        table = sink._tables.target
        stored = connection.execute(table.select().order_by(table.c.offset)).mappings().all()
    for name, (_, _, expected) in fields.items():
        assert stored[0][name] == expected, name
        assert stored[1][name] is None


def test_instants_are_stored_in_utc_whatever_the_session_s_zone(url: str) -> None:
    moment = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
    schema = spark.StructType([*SCHEMA.fields, spark.StructField("at", spark.TimestampType())])
    batch = rows(1, [0]).append_column("at", pa.array([moment], pa.timestamp("us", "America/New_York")))
    sink = target(url, schema)
    put(sink, batch)
    with open_database(url).connect() as connection:
        stored = connection.execute(sink._tables.target.select()).mappings().one()["at"]
    assert stored.replace(tzinfo=stored.tzinfo or UTC) == moment


def test_a_type_without_a_column_type_is_refused_with_the_remedy(url: str) -> None:
    nested = spark.StructField("headers", spark.ArrayType(spark.StringType()))
    with pytest.raises(InvalidInput, match=r"headers is of type array<string>.*to_json\(headers\)"):
        target(url, spark.StructType([*SCHEMA.fields, nested]))


def test_a_schema_may_be_named_with_the_table(postgres: str) -> None:
    with open_database(postgres).begin() as connection:
        connection.execute(text("CREATE SCHEMA billing"))
    sink = SqlTarget(sql_place(postgres, "billing.payments", group="g"), SCHEMA)
    sink.prepare()
    put(sink, rows(1, range(3)))
    assert offsets(postgres, "billing.payments") == [0, 1, 2]
    assert next_offsets(SqlLedger(sink.place)) == {TP: 3}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("nonsense", "is no database URL"),
        ("mysql://u:secret@h/d", "names mysql; fenced SQL sinks know sqlite and postgresql"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_a_database_that_can_not_be_fenced_is_refused(wrong: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as refusal:
        sql_place(wrong, "payments", group="billing")
    assert "secret" not in str(refusal.value)


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    sink = SqlTarget(sql_place(f"postgresql://u:secret@127.0.0.1:{free_port()}/d", "payments", group="billing"), SCHEMA)
    with pytest.raises(SinkUnavailable, match=r"u:\*\*\*@127.0.0.1.*start the database or correct the URL") as failure:
        sink.prepare()
    assert "secret" not in str(failure.value)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(sql_place("postgresql://u:secret@h/d", "payments", group="billing"))
