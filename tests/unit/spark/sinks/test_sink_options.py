"""What fenced data sources and ledgers make of their options, and how they write and read, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import StructType

from assigner.errors import AssignerError, InvalidInput
from assigner.spark import sinks
from assigner.spark.sinks import (
    FencedParquetSource,
    FencedSqlSource,
    ParquetLedger,
    SqlLedger,
    ledger_of,
    sql_place,
)
from tests.support.spark.sink_rows import SCHEMA, rows

URL = "sqlite:////nowhere/sink.db"
ENOUGH = {"url": URL, "table": "payments", "group": "billing"}


def sql(**options: str) -> FencedSqlSource:
    return FencedSqlSource(CaseInsensitiveDict(options))


def parquet(**options: str) -> FencedParquetSource:
    return FencedParquetSource(CaseInsensitiveDict(options))


@pytest.mark.parametrize("missing", ["url", "table", "group"])
def test_a_missing_option_is_named(missing: str) -> None:
    given = {name: value for name, value in ENOUGH.items() if name != missing}
    with pytest.raises(InvalidInput, match=f"fenced_sql needs option {missing}; required are url, table, group"):
        sql(**given).streamWriter(SCHEMA, False)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tabel": "t"}, "fenced_sql has no option tabel; it knows url, table, group, sink, onStale"),
        ({"onStale": "shrug"}, "onStale is 'shrug'; it may be drop or fail"),
        ({"group": "\n"}, "can't be printed"),
        ({"table": "billing."}, "option table is 'billing.'"),
        ({"url": "oracle://h/d"}, "know sqlite and postgresql"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(options: dict[str, str], told: str) -> None:
    with pytest.raises(AssignerError, match=told):
        sql(**{**ENOUGH, **options}).writer(SCHEMA, False)


def test_what_spark_adds_to_the_options_is_no_mistake() -> None:
    sql(**ENOUGH, checkpointLocation="/c", queryName="q").streamWriter(SCHEMA, False)


def test_overwriting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="only appends"):
        sql(**ENOUGH).writer(SCHEMA, True)
    with pytest.raises(InvalidInput, match="only appends"):
        parquet(path=str(tmp_path), group="g").streamWriter(SCHEMA, True)


def test_rows_without_an_epoch_are_refused(tmp_path: Path) -> None:
    without = StructType([field for field in SCHEMA.fields if field.name != "epoch"])
    with pytest.raises(InvalidInput, match="includeEpoch=true"):
        sql(**ENOUGH).streamWriter(without, False)
    with pytest.raises(InvalidInput, match="includeEpoch=true"):
        parquet(path=str(tmp_path), group="g").streamWriter(without, False)


def test_a_data_source_writes_stages_and_reads_back(tmp_path: Path) -> None:
    source = parquet(path=str(tmp_path / "lake"), group="g")
    writer = source.streamWriter(SCHEMA, False)
    messages = [writer.write(iter([rows(1, range(5))])), writer.write(iter([])), None]
    writer.commit(messages, 7)
    assert source.schema() == SCHEMA
    reader = source.reader(source.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == list(range(5))
    assert list(reader.read(InputPartition(None))) == []


def test_an_aborted_batch_leaves_no_files(tmp_path: Path) -> None:
    writer = parquet(path=str(tmp_path / "lake"), group="g").writer(SCHEMA, False)
    writer.abort([writer.write(iter([rows(1, range(5))])), None])
    assert list((tmp_path / "lake" / "_data").iterdir()) == []


def test_a_ledger_is_found_by_options_or_is_none(tmp_path: Path) -> None:
    assert ledger_of({}, "g") is None
    assert isinstance(ledger_of({"fence.path": str(tmp_path)}, "g"), ParquetLedger)
    assert isinstance(ledger_of({"fence.url": URL, "fence.table": "t", "fence.sink": "s"}, "g"), SqlLedger)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"fence.url": URL}, "only a part of that"),
        ({"fence.sink": "s"}, "only a part of that"),
        ({"fence.url": URL, "fence.table": "t", "fence.path": "/lake"}, "both given"),
    ],
)
def test_half_a_ledger_is_an_error(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        ledger_of(options, "g")


def test_a_ledger_of_a_place_nobody_wrote_to_is_empty(tmp_path: Path) -> None:
    for options in (
        {"fence.path": str(tmp_path / "lake")},
        {"fence.url": f"sqlite:///{tmp_path / 'x.db'}", "fence.table": "t"},
    ):
        ledger = ledger_of(options, "g")
        assert ledger is not None
        assert ledger.fences() == {}


def test_all_public_names_can_be_had() -> None:
    assert [name for name in sinks.__all__ if not hasattr(sinks, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sinks.nothing  # noqa: B018


@pytest.mark.parametrize(
    "own", ["assigner_fences", "assigner_states", "assigner_states_staged", "billing.assigner_fences"]
)
def test_a_table_of_the_sinks_own_bookkeeping_is_refused(own: str) -> None:
    with pytest.raises(InvalidInput, match="keeps its fences and states there; name another table"):
        sql_place("sqlite:////tmp/x.db", own, group="billing")
