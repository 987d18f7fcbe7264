"""Reads the input of jobs, Parquet or the ownership event log, with checked columns, and creates their output
directory.

A missing column without a default is an error that names it, and so is a malformed row, unless such rows are to be
skipped. Nothing is dropped silently.
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
from assigner.spark.jobs.errors import cause, input_error
from assigner.spark.jobs.traces import CRASH, JOIN, LEAVE, TOPIC

REQUIRED = object()
Columns = Mapping[str, tuple[str, object]]
"""Name -> SQL type, and the default of a missing column or `REQUIRED`."""

_PARTITION_COLUMNS: Columns = {
    "ts_us": ("bigint", REQUIRED),
    "group": ("string", REQUIRED),
    "topic": ("string", REQUIRED),
    "partition": ("int", REQUIRED),
}
OWNERSHIP_EVENTS: Columns = {
    **_PARTITION_COLUMNS,
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
LOAD_SAMPLES: Columns = {**_PARTITION_COLUMNS, "bytes": ("bigint", REQUIRED), "records": ("bigint", REQUIRED)}
LAG_SAMPLES: Columns = {**_PARTITION_COLUMNS, "lag": ("bigint", REQUIRED)}
TRACES: Columns = {
    "ts_us": ("bigint", REQUIRED),
    "group": ("string", REQUIRED),
    "what": ("string", REQUIRED),
    "name": ("string", REQUIRED),
    "value": ("double", 1.0),
}
ALLOWED_VALUES: Mapping[str, tuple[str, ...]] = {
    "event": tuple(one.value for one in Happened),
    "mode": tuple(one.value for one in HandoffMode),
    "what": (TOPIC, JOIN, LEAVE, CRASH),
}
"""Column -> its allowed values. Rows with other values would pass every audit unnoticed."""
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
    """Read a dataset. Raises `InvalidInput` if there is none at `path`, or one with other columns. `option`: the
    command-line option that errors name."""
    what = f"{option} {path}".strip()
    try:
        found = _json(spark, path, columns, skip_malformed) if _is_json(path, form) else spark.read.parquet(path)
        return conformed(found, columns, what, skip=skip_malformed)
    except AnalysisException as error:
        raise InvalidInput(f"{what} {_refused(error)}") from error
    except Py4JJavaError as error:
        unreachable = f"{what} can't be reached: {cause(error)}; check the path, and that Spark has the jars for it"
        raise input_error(error) or InvalidInput(f"{unreachable} (--conf spark.jars.packages=...)") from error


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
    """Select exactly these columns with these types. A row with a missing or invalid value fails the job when it is
    read; with `skip` it is left out."""
    missing = [name for name, (_, default) in columns.items() if default is REQUIRED and name not in frame.columns]
    if missing:
        raise InvalidInput(
            f"{what} has no column {', '.join(missing)}; it has {', '.join(frame.columns)} and must have "
            f"{', '.join(name for name, (_, default) in columns.items() if default is REQUIRED)}"
        )
    checked = {name: _checked(frame, name, *spec) for name, spec in columns.items() if name in frame.columns}
    if skip:
        frame = frame.where(reduce(and_, (is_valid for is_valid, _ in checked.values())))
        chosen = {name: value for name, (_, value) in checked.items()}
    else:
        chosen = {name: _value_or_error(what, frame, name, columns[name][0], *spec) for name, spec in checked.items()}
    absent = {name: lit(default).cast(kind) for name, (kind, default) in columns.items() if name not in checked}
    every = chosen | absent
    return frame.select(*(every[name].alias(name) for name in columns))


def _checked(frame: DataFrame, name: str, kind: str, default: object) -> tuple[Column, Column]:
    """(whether the column's value is valid, the value)"""
    given = frame[f"`{name}`"]
    same = frame.schema[name].dataType.simpleString() == kind
    # A `try_cast` costs time for each row, and is rarely needed.
    value = given if same else given.try_cast(kind)
    is_valid = value.isin(*ALLOWED_VALUES[name]) if name in ALLOWED_VALUES else value.isNotNull()
    if default is REQUIRED:
        return is_valid, value
    is_valid_or_null = lit(True) if same and name not in ALLOWED_VALUES else given.isNull() | is_valid
    return is_valid_or_null, coalesce(value, lit(default))


def _value_or_error(what: str, frame: DataFrame, name: str, kind: str, is_valid: Column, value: Column) -> Column:
    rule = f"one of {', '.join(ALLOWED_VALUES[name])}" if name in ALLOWED_VALUES else _KINDS[kind]
    given = coalesce(frame[f"`{name}`"].cast("string"), lit("nothing"))
    remedy = "repair it, or leave such rows out with --skip-malformed"
    message = concat(lit(f"{what} has a row with "), given, lit(f" as {name}, which must be {rule}; {remedy}"))
    return when(coalesce(is_valid, lit(False)), value).otherwise(raise_error(message))


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


def create_output(spark: SparkSession, output: str, *, overwrite: bool) -> None:
    """Create the output directory before anything is computed, on any file system that Spark knows. Raises
    `InvalidInput` if it is not empty, unless `overwrite`."""
    jvm, context = spark._jvm, spark._jsc
    assert jvm is not None
    target = jvm.org.apache.hadoop.fs.Path(output)
    try:
        files = target.getFileSystem(context.hadoopConfiguration())
        there = files.exists(target)
        if there and not files.getFileStatus(target).isDirectory():
            raise InvalidInput(f"--output {output} is a file; give a directory that does not exist yet")
        if there and not overwrite and len(files.listStatus(target)):
            raise InvalidInput(f"--output {output} has something in it; choose another one, or pass --overwrite")
        if not there and not files.mkdirs(target):
            raise InvalidInput(f"--output {output} can't be made; choose a directory that you may write to")
    except Py4JJavaError as error:
        raise InvalidInput(f"--output {output} can't be written: {cause(error)}; choose another one") from error
