"""The errors that users of Spark get when the environment of a query is wrong, as far as no JVM is needed."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from assigner.errors import InvalidInput
from assigner.spark.errors import without_traceback
from assigner.spark.sinks import fenced_sql
from assigner.spark.sinks.outcome import StagedRowsLost
from assigner.spark.sinks.parquet.sink import ParquetTarget, parquet_place
from assigner.spark.sinks.sql.database import SinkUnavailable
from tests.support.spark.sink_rows import SCHEMA, rows


def target(path: Path) -> ParquetTarget:
    return ParquetTarget(parquet_place(str(path), group="billing"), SCHEMA)


# --- where Parquet is written ------------------------------------------------------------------------------------


def test_a_path_that_can_not_be_a_directory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidInput, match=rf"path {file}/lake can't be written .*mount one directory"):
        target(file / "lake").prepare()


def test_an_executor_that_does_not_see_the_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"lake can't be written .*mount one directory"):
        target(tmp_path / "lake").stage([rows(1, range(3))])


def test_files_that_executors_wrote_somewhere_else_are_missed_by_name(tmp_path: Path) -> None:
    there, here = target(tmp_path / "there"), target(tmp_path / "here")
    there.prepare()
    here.prepare()
    staged = there.stage([rows(1, range(3))])
    assert staged is not None
    with pytest.raises(StagedRowsLost, match="the executors write to another directory of that name"):
        here.commit([staged], 1)


# --- how much is said around it ----------------------------------------------------------------------------------


def told(error: BaseException) -> str:
    """As Spark tells it."""
    return "".join(traceback.TracebackException.from_exception(error, compact=True).format())


def test_what_led_to_a_refusal_is_left_out() -> None:
    def deep(times: int) -> None:
        if times:
            return deep(times - 1)
        try:
            raise OSError("of no interest")
        except OSError as error:
            raise InvalidInput("option member is missing; give one") from error

    with pytest.raises(InvalidInput) as refused:
        without_traceback(deep)(5)
    text = told(refused.value)
    assert "of no interest" not in text
    assert "in deep" not in text
    assert text.endswith("InvalidInput: option member is missing; give one\n")


def test_an_unexpected_error_is_shown_in_full() -> None:
    @without_traceback
    def wrong() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure:
        wrong()
    assert "in wrong" in told(failure.value)


def test_a_database_that_does_not_answer_is_reported_without_the_cause() -> None:
    sink = fenced_sql("postgresql+psycopg://127.0.0.1:1/books", "payments", group="billing")
    with pytest.raises(SinkUnavailable, match=r"no connection to .*option url.*start the database") as failure:
        without_traceback(sink.ledger.fences)()
    assert "sqlalchemy" not in told(failure.value).lower()
