"""A fenced directory in which somebody else wrote: manifests that name other places, links, stray files.

Who can write to the directory can write rows. They must not be able to make a member, a reader or a vacuum touch
anything outside of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assigner.errors import UnreadableRecord
from assigner.model.keys import TopicPartition
from assigner.spark.sinks.parquet.maintenance import compact, vacuum
from assigner.spark.sinks.parquet.sink import ParquetLedger, ParquetTarget, committed, parquet_place
from tests.support.spark.sink_rows import SCHEMA, TOPIC, rows

GOOD = f"{7:012d}-{'ab' * 16}"
OUTSIDE = ["../../outside.parquet", "/tmp/outside.parquet", f"../{GOOD}.parquet", f"{GOOD}.parquet\n", "", ".", ".."]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    directory = tmp_path / "lake"
    sink = ParquetTarget(parquet_place(str(directory), group="billing"), SCHEMA)
    sink.prepare()
    staged = sink.stage([rows(1, range(3))])
    assert staged is not None
    sink.commit([staged], 1)
    return directory


def forge(lake: Path, **manifest: Any) -> None:
    """Append a manifest as whoever may write to the directory can."""
    number = committed(lake).number + 1
    content = msgspec.json.encode({"written_at": time.time(), **manifest})
    (lake / "_manifests" / f"{number:020d}.json").write_bytes(content)


def in_states(name: str) -> dict[str, Any]:
    at = {"group": "billing", "sink": "rows", "topic": TOPIC, "partition": 0}
    return {"states": [{"at": at, "epoch": 1, "next_offset": 3, "name": name}]}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize(
    "forged",
    [
        lambda name: {"added": [{"name": name, "rows": 1, "size": 1}]},
        lambda name: {"removed": [name]},
        lambda name: in_states(name.replace(".parquet", ".state")),
    ],
    ids=["added", "removed", "state"],
)
def test_a_manifest_that_names_another_place_is_not_read(
    lake: Path, name: str, forged: Callable[[str], dict[str, Any]]
) -> None:
    forge(lake, **forged(name))
    with pytest.raises(UnreadableRecord, match="is no manifest"):
        committed(lake)
    with pytest.raises(UnreadableRecord):
        compact(str(lake))
    with pytest.raises(UnreadableRecord):
        vacuum(str(lake), older_than=-10)


def test_a_vacuum_deletes_nothing_through_a_link(lake: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / "precious"
    precious.write_text("not an orphan")
    (lake / "_data").rename(tmp_path / "moved")
    (lake / "_data").symlink_to(elsewhere)
    with pytest.raises(UnreadableRecord, match="is a link"):
        vacuum(str(lake), older_than=-10)
    assert precious.exists()


@pytest.mark.parametrize("folder", ["_data", "_states", "_manifests", "_manifests/whole"])
def test_a_folder_that_is_a_link_is_refused_by_readers_and_writers(lake: Path, tmp_path: Path, folder: str) -> None:
    (lake / folder).rename(tmp_path / "moved")
    (lake / folder).symlink_to(tmp_path / "moved")
    with pytest.raises(UnreadableRecord, match="is a link"):
        committed(lake)
    with pytest.raises(UnreadableRecord, match="is a link"):
        ParquetTarget(parquet_place(str(lake), group="billing"), SCHEMA).prepare()


def test_a_data_file_that_is_a_link_is_not_read(lake: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"secret": [1]}), foreign)
    (lake / "_data" / f"{GOOD}.parquet").symlink_to(foreign)
    small = {"name": f"{GOOD}.parquet", "rows": 1, "size": 1}
    forge(lake, added=[small, {**small, "name": next(iter(committed(lake).files))}])
    with pytest.raises(UnreadableRecord, match="is a link"):
        compact(str(lake))


def test_a_state_file_that_is_a_link_is_not_read(lake: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"secret")
    (lake / "_states" / f"{GOOD}.state").symlink_to(foreign)
    forge(lake, **in_states(f"{GOOD}.state"))
    ledger = ParquetLedger(parquet_place(str(lake), group="billing"))
    with pytest.raises(UnreadableRecord, match="is a link"):
        ledger.states([TopicPartition(TOPIC, 0)])


@pytest.mark.parametrize("stray", ["x.json", "1 (copy).json", "+7.json", f"{9:019d}.json"])
def test_stray_files_beside_the_manifests_are_passed_over(lake: Path, stray: str) -> None:
    before = committed(lake)
    (lake / "_manifests" / stray).write_text("{}")
    (lake / "_manifests" / "whole" / stray).write_text("{}")
    assert committed(lake) == before
    vacuum(str(lake), older_than=-10)
    assert (lake / "_manifests" / stray).exists()


def test_json_nested_without_end_is_an_unreadable_manifest(lake: Path) -> None:
    number = committed(lake).number + 1
    (lake / "_manifests" / f"{number:020d}.json").write_bytes(b'{"unknown":' + b"[" * 100_000)
    with pytest.raises(UnreadableRecord, match="is no manifest"):
        committed(lake)


def test_a_sum_of_manifests_that_does_not_hold_what_its_name_says_is_unreadable(lake: Path) -> None:
    forged: dict[str, Any] = {"number": 3, "schema": None, "files": [], "fences": [], "states": [], "removed": {}}
    (lake / "_manifests" / "whole" / f"{64:020d}.json").write_bytes(msgspec.json.encode(forged))
    with pytest.raises(UnreadableRecord, match="is no manifest"):
        committed(lake)
