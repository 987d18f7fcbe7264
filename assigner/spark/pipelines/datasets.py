"""What the pipelines read: Parquet, or the JSON lines of the ownership event log, with columns checked by name.

A column that is missing and has no meaning by default is refused by name; so is a line that can't be read, unless such
lines are to be skipped. Nothing is left out in silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, lit

from assigner.errors import InvalidInput

REQUIRED = object()
Columns = Mapping[str, tuple[str, object]]
"""Name -> SQL type and what a missing column means, `REQUIRED` or a value."""

_PLACE: Columns = {
    "ts_us": ("bigint", REQUIRED),
    "group": ("string", REQUIRED),
    "topic": ("string", REQUIRED),
    "partition": ("int", REQUIRED),
}
OWNERSHIP_EVENTS: Columns = {
    **_PLACE,
    "member": ("string", REQUIRED),
    "session": ("string", ""),
    "epoch": ("bigint", REQUIRED),
    "event": ("string", REQUIRED),
    "cause": ("string", ""),
    "instance": ("string", ""),
    "mode": ("string", "overlap"),
    "term": ("bigint", 0),
    "part": ("int", 0),
    "seq": ("bigint", 0),
}
LOAD_SAMPLES: Columns = {**_PLACE, "bytes": ("bigint", REQUIRED), "records": ("bigint", REQUIRED)}
LAG_SAMPLES: Columns = {**_PLACE, "lag": ("bigint", REQUIRED)}
TRACES: Columns = {
    "ts_us": ("bigint", REQUIRED),
    "group": ("string", REQUIRED),
    "what": ("string", REQUIRED),
    "name": ("string", REQUIRED),
    "value": ("double", 1.0),
}
FORMATS = ("auto", "parquet", "json")


def read(
    spark: SparkSession, path: str, columns: Columns, *, form: str = "auto", skip_malformed: bool = False
) -> DataFrame:
    """Raises `InvalidInput` when there is nothing to read at `path`, or not what is wanted."""
    try:
        found = _json(spark, path, columns, skip_malformed) if _is_json(path, form) else spark.read.parquet(path)
        return conformed(found, columns, path)
    except AnalysisException as error:
        raise InvalidInput(
            f"{path} can't be read: {_first_line(error)}; give a directory of Parquet files, or of the .jsonl segments "
            "that `assigner serve --events` writes"
        ) from error


def conformed(frame: DataFrame, columns: Columns, what: str) -> DataFrame:
    """Exactly these columns, with these types."""
    missing = [name for name, (_, default) in columns.items() if default is REQUIRED and name not in frame.columns]
    if missing:
        raise InvalidInput(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(frame.columns)} and must have "
            f"{', '.join(name for name, (_, default) in columns.items() if default is REQUIRED)}"
        )
    chosen = [
        (coalesce(col(f"`{name}`").cast(kind), lit(default)) if default is not REQUIRED else frame[name].cast(kind))
        if name in frame.columns
        else lit(default).cast(kind)
        for name, (kind, default) in columns.items()
    ]
    return frame.select(*(column.alias(name) for name, column in zip(columns, chosen, strict=True)))


def from_arrow(spark: SparkSession, table: pa.Table, columns: Columns) -> DataFrame:
    return conformed(spark.createDataFrame(table), columns, "the sample")


def unreadable(error: Exception) -> InvalidInput | None:
    """What a failed job says about its input, if it is about its input."""
    said = re.search(r"\[FAILED_READ_FILE[^\]]*\] ([^\n]*)", str(error))
    if said is None:
        return None
    if "MALFORMED_RECORD" in str(error):
        return InvalidInput(f"{said[1].strip()} A line is no event; remove it, or pass --skip-malformed")
    return InvalidInput(f"{said[1].strip()} Repair or remove the file")


def _json(spark: SparkSession, path: str, columns: Columns, skip_malformed: bool) -> DataFrame:
    schema = ", ".join(f"`{name}` {kind}" for name, (kind, _) in columns.items())
    return spark.read.schema(schema).option("mode", "DROPMALFORMED" if skip_malformed else "FAILFAST").json(path)


def _is_json(path: str, form: str) -> bool:
    if form != "auto":
        return form == "json"
    plain = path.removeprefix("file://").rstrip("/")
    endings = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
    here = Path(plain)
    return plain.endswith(endings) or (here.is_dir() and any(found.name.endswith(endings) for found in here.iterdir()))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
