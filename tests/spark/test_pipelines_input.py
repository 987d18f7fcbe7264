"""Data that a pipeline can't work with is refused in one sentence, which names the option and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from assigner.cli import main
from assigner.spark.jobs.datasets import OWNERSHIP_EVENTS, TRACES, from_arrow, read
from assigner.spark.jobs.sample_ownership import sample_log
from tests.support.spark.small_queries import interpreted

LOG = sample_log(groups=1, partitions=1, scenarios=3).table()
LINE = {"ts_us": 1, "group": "g", "topic": "t", "partition": 0, "member": "m", "epoch": 1, "event": "assigned"}


@pytest.fixture(scope="module", autouse=True)
def quickly(spark: SparkSession) -> Iterator[None]:
    with interpreted(spark):
        yield


def refused(*arguments: str) -> str:
    """The one line that a command leaves with."""
    result = CliRunner().invoke(main, ["pipeline", *arguments, "--json"])
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("{")]
    told = json.loads(line)["error"]
    assert told["kind"] == "invalid_input"
    assert "\n" not in told["message"]
    return str(told["message"])


def replaced(name: str, values: pa.Array) -> pa.Table:
    return LOG.set_column(LOG.schema.get_field_index(name), name, values)


def parquet(table: pa.Table) -> Callable[[Path], object]:
    return lambda directory: pq.write_table(table, directory / "log.parquet")


def parquet_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def write(directory: Path) -> None:
        parquet(LOG)(directory)
        file = directory / "log.parquet"
        file.write_bytes(change(file.read_bytes()))

    return write


def lines(*texts: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "i-0000000001.jsonl").write_text("".join(f"{text}\n" for text in texts))


SKIP = "repair it, or leave such rows out with --skip-malformed"
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (Path.rmdir, "--input {path} does not exist; give a directory of Parquet files, or"),
    "no file": (lambda _: None, "--input {path} has no files to read; give a directory of Parquet files, or"),
    "no row": (parquet(LOG.slice(0, 0)), "--input {path} has no rows; give data with some, or try --sample"),
    "no line": (lines(), "--input {path} has no rows; give data with some, or try --sample"),
    "no column": (parquet(LOG.drop_columns(["epoch"])), "--input {path} has no column epoch; it has ts_us, group"),
    "no number": (
        parquet(replaced("epoch", pa.array(["many"] * len(LOG)))),
        f"--input {{path}} has a row with many as epoch, which must be a whole number; {SKIP}",
    ),
    "a number too large": (
        parquet(replaced("partition", pa.array([2**40] * len(LOG)))),
        f"--input {{path}} has a row with 1099511627776 as partition, which must be a whole number of 32 bits; {SKIP}",
    ),
    "no value": (
        parquet(replaced("epoch", pa.nulls(len(LOG), pa.int64()))),
        f"--input {{path}} has a row with nothing as epoch, which must be a whole number; {SKIP}",
    ),
    "no such event": (
        parquet(replaced("event", pa.array(["gone"] * len(LOG)))),
        "--input {path} has a row with gone as event, which must be one of assigned, released, lost, away, back, held",
    ),
    "no such mode": (
        parquet(replaced("mode", pa.array(["Exclusive"] * len(LOG)))),
        "--input {path} has a row with Exclusive as mode, which must be one of overlap, exclusive",
    ),
    "another type": (
        parquet(replaced("epoch", pa.array([{"a": 1}] * len(LOG)))),
        "--input {path} has a column of another type: ",
    ),
    "another form": (
        parquet_bytes(lambda _: b"PAR1 is all there is PAR1"),
        "log.parquet is no Parquet file, or damaged",
    ),
    "half a file": (
        parquet_bytes(lambda found: found[: len(found) // 2]),
        "log.parquet is no Parquet file, or damaged",
    ),
    "flipped bits": (
        parquet_bytes(lambda found: found[:10] + b"\xff" * 300 + found[310:]),
        "log.parquet is damaged; repair or remove it",
    ),
    "half a line": (
        lines('{"ts_us": 1, "gro'),
        "i-0000000001.jsonl has a line that can't be read; repair it, or leave such lines out with --skip-malformed",
    ),
    "another line": (lines('{"no": "event"}'), "which must be a"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_data_that_can_not_be_used_is_refused_with_the_remedy(spark: SparkSession, tmp_path: Path, what: str) -> None:
    write, says = BROKEN[what]
    path = tmp_path / "log"
    path.mkdir()
    write(path)
    told = refused("audit", "--input", str(path), "--output", str(tmp_path / "out"))
    assert says.format(path=path) in told


def test_rows_that_make_no_sense_are_left_out_when_told_so(spark: SparkSession, tmp_path: Path) -> None:
    half, other, late = '{"ts_us": 1, "gro', '{"no": "event"}', json.dumps({**LINE, "event": "late"})
    lines(json.dumps(LINE), half, other, late)(tmp_path)
    found = read(spark, str(tmp_path), OWNERSHIP_EVENTS, skip_malformed=True).collect()
    assert [(row.member, row.epoch, row.mode) for row in found] == [("m", 1, "overlap")]


def test_a_place_that_spark_can_not_reach_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    told = refused("audit", "--input", "nowhere://at/all", "--output", str(tmp_path / "out"))
    assert told.startswith('--input nowhere://at/all can\'t be reached: No FileSystem for scheme "nowhere"; check the')


def test_the_log_that_goes_with_lag_is_named_by_its_option(spark: SparkSession, tmp_path: Path) -> None:
    lag = pa.table({"ts_us": [1], "group": ["g"], "topic": ["t"], "partition": [0], "lag": [1]})
    pq.write_table(lag, tmp_path / "lag.parquet")
    given = ("--input", str(tmp_path / "lag.parquet"), "--output", str(tmp_path / "out"))
    assert refused("lag", *given, "--events", str(tmp_path / "no")).startswith(f"--events {tmp_path / 'no'} does not")


@pytest.mark.parametrize(
    ("make", "overwrite", "says"),
    [
        (lambda path: path.write_text("x"), True, "is a file; give a directory that does not exist yet"),
        (lambda path: (path / "old").mkdir(parents=True), False, "has something in it; choose another one, or pass"),
    ],
)
def test_a_result_of_somebody_is_not_written_over(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], object], overwrite: bool, says: str
) -> None:
    """Known before the data is looked at, of which there is none here."""
    output = tmp_path / "out"
    make(output)
    told = refused("audit", "--input", "x", "--output", str(output), *(["--overwrite"] if overwrite else []))
    assert told.startswith(f"--output {output} {says}")


def test_a_result_can_not_be_below_a_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    output = tmp_path / "file" / "out"
    told = refused("audit", "--input", "x", "--output", str(output))
    assert told.startswith(f"--output {output} can't be ")


@pytest.mark.parametrize(
    ("value", "says"),
    [(0.0, "topic t has 0 partitions; give it 1 to"), (float("nan"), "topic t has the value nan; use a number")],
)
def test_what_a_simulation_can_not_use_comes_back_from_its_executor_as_a_sentence(
    spark: SparkSession, tmp_path: Path, value: float, says: str
) -> None:
    trace = pa.table({"ts_us": [0], "group": ["g"], "what": ["topic"], "name": ["t"], "value": [value]})
    from_arrow(spark, trace, TRACES).write.parquet(str(tmp_path / "traces"))
    given = ("--input", str(tmp_path / "traces"), "--output", str(tmp_path / "out"), "--strategy", "range")
    assert says in refused("simulate", *given)


def test_a_picture_that_can_not_be_drawn_where_it_should_be_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    picture = tmp_path / "file" / "below.svg"
    given = ("--groups", "1", "--strategy", "range", "--picture", str(picture))
    assert refused("simulate", "--sample", *given).startswith(f"{picture} can't be written: ")
