"""The feeds of Spark's tests give their batches in order, however quickly they are given."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import Mock

from pyspark.sql.types import LongType, StructField, StructType

from tests.support.spark.feeds import Feed


def test_files_given_in_a_row_have_modification_times_that_spark_can_distinguish(tmp_path: Path) -> None:
    """Spark reads files in the order of their modification time, in milliseconds, and nothing else."""
    feed = Feed(Mock(), tmp_path, StructType([StructField("n", LongType())]))
    for number in range(50):
        feed.give([{"n": number}])
    files = sorted((tmp_path / "feed").glob("*.parquet"))
    milliseconds = [file.stat().st_mtime_ns // 1_000_000 for file in files]
    assert len(files) == 50
    assert all(before < after for before, after in itertools.pairwise(milliseconds))
