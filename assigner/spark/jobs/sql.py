"""Runs SQL from files beside the code: views that build on each other, each after a line `-- name: NAME`."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.resources import files

from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel


@cache
def statements(file: str) -> dict[str, str]:
    """Read the file's statements by name, in order."""
    _, *parts = files(__package__).joinpath(file).read_text().split("\n-- name: ")
    return {name.strip(): statement for name, _, statement in (part.partition("\n") for part in parts)}


def views(spark: SparkSession, file: str, *, keep: Collection[str] = (), **values: object) -> dict[str, DataFrame]:
    """Create a temporary view for each statement. Views in `keep` are computed once and cached until unpersisted.

    `values` replace `{name}` in the text; they are constants and numbers of the program, never text of a user.
    """
    made: dict[str, DataFrame] = {}
    for name, text in statements(file).items():
        for key, value in values.items():
            text = text.replace("{" + key + "}", str(value))
        frame = spark.sql(text)
        if name in keep:
            frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        frame.createOrReplaceTempView(name)
        made[name] = frame
    return made
