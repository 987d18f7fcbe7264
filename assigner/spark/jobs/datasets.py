"""What jobs read and where they write: Parquet or the ownership event log, with columns checked by name.

A column that is missing and has no default is refused by name; so is a row that can't be read or lacks a value, unless
such rows are to be skipped. Nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import coalesce, concat, lit, raise_error, when

from assigner.core.ownership_events import Happened
from assigner.errors import InvalidInput
from assigner.model.records import HandoffMode
from assigner.spark.jobs.errors import about_input, cause
from assigner.spark.jobs.traces import CRASH, JOIN, LEAVE, TOPIC

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
WORDS: Mapping[str, tuple[str, ...]] = {
    "event": tuple(one.value for one in Happened),
    "mode": tuple(one.value for one in HandoffMode),
    "what": (TOPIC, JOIN, LEAVE, CRASH),
}
"""Columns in which anything else is a mistake: a log of other words would pass every audit."""
_KINDS = {"bigint": "a whole number", "int": "a whole number of 32 bits", "double": "a number", "string": "a text"}


def read(
    spark: SparkSession,
    path: str,
    columns: Columns,
    *,
    form: str = "auto",
    skip_malformed: bool = False,
    option: str = "",
) -> DataFrame:
    """Raises `InvalidInput` when there is nothing to read at `path`, or not what is wanted. `option` is where `path`
    comes from, for what is said then."""
    what = f"{option} {path}".strip()
    try:
        found = _json(spark, path, columns, skip_malformed) if _is_json(path, form) else spark.read.parquet(path)
        return conformed(found, columns, what, skip=skip_malformed)
    except AnalysisException as error:
        raise InvalidInput(f"{what} {_refused(error)}") from error
    except Py4JJavaError as error:
        unreachable = f"{what} can't be reached: {cause(error)}; check the path, and that Spark has the jars for it"
        raise about_input(error) or InvalidInput(f"{unreachable} (--conf spark.jars.packages=...)") from error


def _refused(error: AnalysisException) -> str:
    give = "give a directory of Parquet files, or of the .jsonl segments that `assigner serve --events` writes"
    condition = error.getCondition() or ""
    if condition == "PATH_NOT_FOUND":
        return f"does not exist; {give}"
    if condition == "UNABLE_TO_INFER_SCHEMA":
        return f"has no files to read; {give}, once the first is complete"
    if condition.startswith("DATATYPE_MISMATCH"):
        return f"has a column of another type: {cause(error)}; write it as what the how-to says"
    return f"can't be read: {cause(error)}; {give}"


def conformed(frame: DataFrame, columns: Columns, what: str, *, skip: bool = False) -> DataFrame:
    """Exactly these columns, with these types. A row in which a value is missing or makes no sense fails the job when
    it is met; with `skip` it is left out."""
    missing = [name for name, (_, default) in columns.items() if default is REQUIRED and name not in frame.columns]
    if missing:
        raise InvalidInput(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(frame.columns)} and must have "
            f"{', '.join(name for name, (_, default) in columns.items() if default is REQUIRED)}"
        )
    checked = {name: _checked(frame, name, *told) for name, told in columns.items() if name in frame.columns}
    if skip:
        frame = frame.where(reduce(and_, (makes_sense for makes_sense, _ in checked.values())))
        chosen = {name: value for name, (_, value) in checked.items()}
    else:
        chosen = {name: _told(what, frame, name, columns[name][0], *told) for name, told in checked.items()}
    absent = {name: lit(default).cast(kind) for name, (kind, default) in columns.items() if name not in checked}
    every = chosen | absent
    return frame.select(*(every[name].alias(name) for name in columns))


def _checked(frame: DataFrame, name: str, kind: str, default: object) -> tuple[Column, Column]:
    """Whether a value makes sense, and what it is."""
    given = frame[f"`{name}`"]
    same = frame.schema[name].dataType.simpleString() == kind
    # A cast that may fail is one more thing to compute for each row, and rarely needed.
    value = given if same else given.try_cast(kind)
    makes_sense = value.isin(*WORDS[name]) if name in WORDS else value.isNotNull()
    if default is REQUIRED:
        return makes_sense, value
    return (lit(True) if same and name not in WORDS else given.isNull() | makes_sense), coalesce(value, lit(default))


def _told(what: str, frame: DataFrame, name: str, kind: str, makes_sense: Column, value: Column) -> Column:
    rule = f"one of {', '.join(WORDS[name])}" if name in WORDS else _KINDS[kind]
    given = coalesce(frame[f"`{name}`"].cast("string"), lit("nothing"))
    remedy = "repair it, or leave such rows out with --skip-malformed"
    complaint = concat(lit(f"{what} has a row with "), given, lit(f" as {name}, which must be {rule}; {remedy}"))
    return when(coalesce(makes_sense, lit(False)), value).otherwise(raise_error(complaint))


def from_arrow(spark: SparkSession, table: pa.Table, columns: Columns) -> DataFrame:
    return conformed(spark.createDataFrame(table), columns, "the sample")


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


# --- output ----------------------------------------------------------------------------------------------------------


def claim_output(spark: SparkSession, output: str, *, overwrite: bool) -> None:
    """Create the output directory before anything is computed, on any file system that Spark knows. Raises
    `InvalidInput` if it is not empty, unless `overwrite`."""
    jvm, context = spark._jvm, spark._jsc
    assert jvm is not None
    place = jvm.org.apache.hadoop.fs.Path(output)
    try:
        files = place.getFileSystem(context.hadoopConfiguration())
        there = files.exists(place)
        if there and not files.getFileStatus(place).isDirectory():
            raise InvalidInput(f"--output {output} is a file; give a directory that does not exist yet")
        if there and not overwrite and len(files.listStatus(place)):
            raise InvalidInput(f"--output {output} has something in it; choose another one, or pass --overwrite")
        if not there and not files.mkdirs(place):
            raise InvalidInput(f"--output {output} can't be made; choose a directory that you may write to")
    except Py4JJavaError as error:
        raise InvalidInput(f"--output {output} can't be written: {cause(error)}; choose another one") from error
