"""The options that all pipelines share (input, output, Spark), and the errors that they exit with.

Spark is imported when a pipeline runs, so that the other commands work without it.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from assigner.cli.exit_codes import REFUSED, USAGE, Failure
from assigner.cli.output import console, print_json, table
from assigner.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from assigner.spark.jobs.progress import JobProgress


class Seconds(click.FloatRange):
    """A command-line option in seconds; NaN and infinity are refused."""

    def __init__(self, least: float, most: float = 1e9) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return found


class Job(msgspec.Struct, frozen=True):
    """The options that a pipeline was started with."""

    name: str
    input: str | None = None
    sample: bool = False
    output: str | None = None
    overwrite: bool = False
    master: str = ""
    conf: tuple[str, ...] = ()
    form: str = "auto"
    skip_malformed: bool = False
    as_json: bool = False

    def check(self) -> None:
        if self.sample == (self.input is not None):
            raise click.UsageError("give --input with your data, or --sample to try it with invented data")
        if self.input and not self.output:
            raise click.UsageError("give --output: a directory for the result, which must not exist yet")
        for text in self.conf:
            if not text.partition("=")[1]:
                raise click.UsageError(f"--conf {text!r} is not KEY=VALUE")

    def settings(self) -> dict[str, str]:
        return {key: value for key, _, value in (text.partition("=") for text in self.conf)}


class Run:
    """A running pipeline: its Spark session, its input and its output."""

    def __init__(self, job: Job, spark: SparkSession, progress: JobProgress) -> None:
        self.job = job
        self.spark = spark
        self.output = (job.output or tempfile.mkdtemp(prefix=f"assigner-{job.name}-")).rstrip("/")
        self._progress = progress
        if job.output is not None:
            from assigner.spark.jobs.datasets import create_output

            create_output(spark, self.output, overwrite=job.overwrite)

    def step(self, description: str) -> AbstractContextManager[None]:
        return self._progress.step(description)

    def read(self, columns: Any, path: str | None = None, option: str = "--input") -> DataFrame:
        """Read the user's data. Raises `InvalidInput` if there is none, since an empty input would pass every check."""
        from assigner.spark.jobs.datasets import read

        job, path = self.job, path or self.job.input or ""
        found = read(self.spark, path, columns, form=job.form, skip_malformed=job.skip_malformed, option=option)
        if found.isEmpty():
            raise InvalidInput(f"{option} {path} has no rows; give data with some, or try --sample")
        return found

    def sampled(self, name: str, data: Any, columns: Any) -> DataFrame:
        """Write generated data as the user's would be, and read it back."""
        from assigner.spark.jobs.datasets import from_arrow, read

        path = f"{self.output}/sample/{name}"
        with self.step(f"inventing {data.num_rows:,} rows of {name}"):
            self._write(from_arrow(self.spark, data, columns), path)
        return read(self.spark, path, columns, form="parquet")

    def write(self, name: str, frame: DataFrame) -> DataFrame:
        """Write a table of the result, and return it as read back."""
        path = f"{self.output}/{name}"
        with self.step(f"writing {name}"):
            self._write(frame, path)
        return self.spark.read.parquet(path)

    def _write(self, frame: DataFrame, path: str) -> None:
        frame.write.mode("overwrite").parquet(path)

    def print_result(self, summary: dict[str, Any], *tables: Any) -> None:
        if self.job.as_json:
            print_json({"pipeline": self.job.name, "output": self.output, **summary})
            return
        out = console()
        for shown in tables:
            out.print(shown)
        out.print(f"output: {self.output}", markup=False, soft_wrap=True)


@contextmanager
def running(job: Job) -> Iterator[Run]:
    """Start Spark for the pipeline. Errors inside the block become a `Failure` that names the remedy."""
    job.check()
    try:
        from assigner.spark.jobs.progress import JobProgress
        from assigner.spark.jobs.session import session
    except ImportError as error:
        raise Failure(USAGE, str(error), kind="missing_requirement", as_json=job.as_json) from error
    with _failures_of_spark(job), session(job.name, job.master, job.settings(), small=job.sample) as spark:
        yield Run(job, spark, JobProgress(spark, console(stderr=True)))


@contextmanager
def _failures_of_spark(job: Job) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from assigner.spark.jobs.errors import cause, input_error, silence_query_loggers
    from assigner.spark.requirements import MissingRequirement

    silence_query_loggers()
    try:
        yield
    except MissingRequirement as error:
        raise Failure(USAGE, str(error), kind="missing_requirement", as_json=job.as_json) from error
    except InvalidInput as error:
        raise Failure(USAGE, str(error), kind="invalid_input", as_json=job.as_json) from error
    except (PySparkException, Py4JJavaError) as error:
        rejected = input_error(error)
        if rejected is not None:
            raise Failure(USAGE, str(rejected), kind="invalid_input", as_json=job.as_json) from error
        message = f"Spark could not do it: {cause(error)}; its log says more with --conf spark.log.level=INFO"
        raise Failure(REFUSED, message, kind="spark", as_json=job.as_json) from error


_OPTIONS = (
    click.option("--input", "input", metavar="PATH", help="Data to work on: a directory of Parquet files."),
    click.option("--sample", is_flag=True, help="Generate data to work on; takes about a minute."),
    click.option(
        "--output", metavar="PATH", help="Directory for the result; with --sample a temporary one by default."
    ),
    click.option("--overwrite", is_flag=True, help="Replace the contents of --output."),
    click.option(
        "--master",
        default="",
        metavar="URL",
        help="Spark cluster, such as spark://host:7077; by default this machine. Leave it out under spark-submit.",
    ),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable."),
    click.option(
        "--format",
        "form",
        type=click.Choice(["auto", "parquet", "json"]),
        default="auto",
        show_default=True,
        help="Format of the data; auto: JSON if the files are named .jsonl or .json.",
    ),
    click.option("--skip-malformed", is_flag=True, help="Skip JSON lines that can't be parsed."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
)


def runs_on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all pipelines to a command, which receives them as one argument, `job`."""

    @functools.wraps(command)
    def with_job(**values: Any) -> None:
        fields = {name: values.pop(name) for name in Job.__struct_fields__ if name != "name"}
        command(job=Job(click.get_current_context().info_name or "", **fields), **values)

    decorated: Callable[..., None] = with_job
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


__all__ = ["Job", "Run", "running", "runs_on_spark", "table"]
