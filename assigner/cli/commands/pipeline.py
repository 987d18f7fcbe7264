"""`assigner pipeline NAME`: runs a bulk job on Spark: audit, loads, lag or simulate."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from assigner.cli.commands.loads import publish, read_weights
from assigner.cli.commands.pipeline_runs import Job, Run, Seconds, running, runs_on_spark
from assigner.cli.connection import ServiceTarget, split_address
from assigner.cli.exit_codes import REFUSED, Failure
from assigner.cli.output import table
from assigner.errors import InvalidInput

_EXAMPLES = 10
"""Rows that a printed table has at most; the output directory has all of them."""
_PICTURES = (".svg", ".png", ".pdf")


class Pipelines(click.Group):
    """The group of pipeline commands; its error for an unknown name lists the known ones."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"there is no pipeline {args[0]!r}; choose one of {', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(cls=Pipelines)
def pipeline() -> None:
    """Bulk jobs on Spark: audit the ownership log, weigh partitions, attribute lag, compare strategies.

    Each runs on this machine, on a cluster (--master), or under spark-submit. Needs the extra [spark] and Java 17.
    """


# --- audit -------------------------------------------------------------------------------------------------------


@pipeline.command(short_help="Find overlaps of owners, gaps, and epochs that went back.")
@click.option(
    "--overlap-limit",
    type=Seconds(0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Count overlaps of a handoff that last longer than this as a finding of their own.",
)
@click.option("--check", is_flag=True, help="Exit with 1 if a guarantee was violated.")
@runs_on_spark
def audit(job: Job, overlap_limit: float, check: bool) -> None:
    """Find overlaps of owners, gaps, and epochs that went back, in an ownership event log."""
    with running(job) as run:
        from assigner.spark.jobs import audit as auditing
        from assigner.spark.jobs.datasets import OWNERSHIP_EVENTS
        from assigner.spark.jobs.sample_ownership import sample_log

        generated = sample_log(overlap_limit=overlap_limit, partitions=128) if job.sample else None
        events = run.sampled("events", generated.table(), OWNERSHIP_EVENTS) if generated else run.read(OWNERSHIP_EVENTS)
        found = auditing.audit(run.spark, events, overlap_limit=overlap_limit)
        with run.step("following every partition"):
            found.findings.count()
        for part, frame in found.parts().items():
            run.write(part, frame)
        counts = found.counts()
        found.close()
        broken = sum(counts[one] for one in auditing.VIOLATIONS)
        expected = generated.counts() if generated else None
        run.print_result(_audit_summary(counts, expected, broken), _audit_table(counts, expected), _verdict(broken))
    if check and broken:
        raise Failure(REFUSED, f"{broken} broken promises", kind="violations", as_json=job.as_json)


def _audit_summary(counts: dict[tuple[str, str], int], expected: Any, broken: int) -> dict[str, Any]:
    def plain(of: Any) -> dict[str, int]:
        return {f"{part}.{kind}": of[part, kind] for part, kind in counts}

    return {"found": plain(counts), "violations": broken, **({"injected": plain(expected)} if expected else {})}


def _audit_table(counts: dict[tuple[str, str], int], expected: Any) -> Any:
    from assigner.spark.jobs.audit import MEANING, VIOLATIONS

    columns = ["finding", "kind", "count", *(["invented"] if expected else []), "promise", "meaning"]
    rows = [
        [
            *(part, kind, count),
            *([expected[part, kind]] if expected else []),
            Text("broken", "bold red") if (part, kind) in VIOLATIONS and count else "",
            MEANING[part, kind],
        ]
        for (part, kind), count in counts.items()
    ]
    return table("", columns, rows)


def _verdict(broken: int) -> Text:
    if broken:
        return Text(f"{broken} findings break a promise\n", "bold red")
    return Text("no promise was broken\n", "bold green")


# --- loads -------------------------------------------------------------------------------------------------------


@pipeline.command(short_help="Weigh partitions by their load; publish the weights.")
@click.option("--of", type=click.Choice(["bytes", "records"]), default="bytes", show_default=True, help="What counts.")
@click.option(
    "--by",
    type=click.Choice(["ewma", "p95"]),
    default="ewma",
    show_default=True,
    help="Weight: the moving average of the rate, or its 95th percentile.",
)
@click.option(
    "--smoothing",
    type=Seconds(1),
    default=3_600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time constant of the moving average.",
)
@click.option("--publish", "address", metavar="HOST:PORT", help="Publish the weights of --group to this instance.")
@click.option("--group", metavar="GROUP", help="Whose weights to publish.")
@click.option(
    "--valid-for",
    type=Seconds(1, 7 * 86_400),
    default=86_400.0,
    show_default=True,
    metavar="SECONDS",
    help="How long published weights are valid.",
)
@click.option("--tls", is_flag=True, envvar="ASSIGNER_TLS", help="Publish over TLS.")
@click.option("--tls-ca", envvar="ASSIGNER_TLS_CA", metavar="FILE", help="Publish over TLS; trust these authorities.")
@click.option("--tls-cert", envvar="ASSIGNER_TLS_CERT", metavar="FILE", help="Certificate to show.")
@click.option("--tls-key", envvar="ASSIGNER_TLS_KEY", metavar="FILE", help="Key of that certificate.")
@click.option("--token-file", envvar="ASSIGNER_TOKEN_FILE", metavar="FILE", help="Token to show.")
@runs_on_spark
def loads(
    job: Job, of: str, by: str, smoothing: float, address: str | None, group: str | None, valid_for: float, **tls: Any
) -> None:
    """Compute a weight per partition from samples of its load, and publish the weights for plans by load."""
    target = _target(job, address, group, tls)
    with running(job) as run:
        from assigner.spark.jobs import loads as weighing
        from assigner.spark.jobs import sample_data
        from assigner.spark.jobs.datasets import LOAD_SAMPLES

        taken = run.sampled("loads", sample_data.load_samples(), LOAD_SAMPLES) if job.sample else run.read(LOAD_SAMPLES)
        weighed = run.write("weights", weighing.weigh(run.spark, taken, of=of, by=by, smoothing=smoothing))
        heaviest = weighed.orderBy(weighed["weight"].desc()).limit(_EXAMPLES).collect()
        summary: dict[str, Any] = {"partitions": weighed.count()}
        if target is not None and group is not None:
            content = weighing.weights_of(weighed, group)
            summary["published"] = _publish(target, group, content, valid_for, f"{run.output}/weights")
        columns = ("group", "topic", "partition", "ewma", "p95", "weight", "samples")
        run.print_result(
            summary, table("heaviest partitions", columns, _rows(heaviest, columns)), *_published(summary, group)
        )


def _target(job: Job, address: str | None, group: str | None, tls: dict[str, Any]) -> ServiceTarget | None:
    """Where to publish; None: nowhere. Raises for options that can't work before anything is computed."""
    if (address is None) != (group is None):
        raise click.UsageError("--publish and --group belong together: where to, and whose weights")
    if address is None:
        return None
    try:
        split_address(address)
    except click.BadParameter as error:
        raise click.BadParameter(error.message, param_hint="--publish") from error
    target = ServiceTarget(address=address, output="json" if job.as_json else "table", **tls)
    target.ssl_context()
    return target


def _publish(
    target: ServiceTarget, group: str, content: dict[str, dict[str, float]], valid_for: float, kept: str
) -> int:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "weights.json"
        file.write_text(json.dumps(content))
        try:
            return publish(target, group, read_weights(file), valid_for, keep_others=False)
        except Failure as failure:
            reason = failure.message.removesuffix("pass --address").rstrip("; ")
            message = f"{reason} The weights are in {kept} and were not published: check --publish and --group"
            raise Failure(failure.exit_code, message, kind=failure.kind, as_json=failure.as_json) from failure


def _published(summary: dict[str, Any], group: str | None) -> list[Text]:
    if "published" not in summary:
        return []
    return [Text(f"{group}: weights of {summary['published']} partitions are published")]


# --- lag ---------------------------------------------------------------------------------------------------------


@pipeline.command(short_help="Attribute lag to owners and to moves.")
@click.option("--events", metavar="PATH", help="The ownership event log that goes with --input.")
@click.option(
    "--window",
    type=Seconds(1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long after a move lag is attributed to it.",
)
@runs_on_spark
def lag(job: Job, events: str | None, window: float) -> None:
    """Attribute samples of lag to the owner at their time, and to moves."""
    if job.input and not events:
        raise click.UsageError("give --events: the ownership event log, beside the samples of lag in --input")
    if job.sample and events:
        raise click.UsageError("--sample invents the ownership event log, too: leave out --events, or give --input")
    with running(job) as run:
        from assigner.spark.jobs.lag import attribute

        found = attribute(run.spark, *_lag_input(run, events), window=window)
        with run.step("finding the owner of each sample"):
            found.attributed.count()
        owners, moves = run.write("owners", found.owners), run.write("moves", found.moves)
        found.close()
        worst = owners.orderBy(owners["share"].desc()).limit(_EXAMPLES).collect()
        costliest = moves.orderBy(moves["added_lag"].desc_nulls_last()).limit(_EXAMPLES).collect()
        of_owner = ("group", "owner", "partitions", "mean_lag", "p95_lag", "max_lag", "growth", "share")
        of_move = ("group", "topic", "partition", "old_owner", "new_owner", "cause", "lag_before", "peak_lag")
        run.print_result(
            {"owners": owners.count(), "moves": moves.count()},
            table("owners with the most lag", of_owner, _rows(worst, of_owner)),
            table("moves that cost the most", (*of_move, "recovered_s"), _rows(costliest, (*of_move, "recovered_s"))),
        )


def _lag_input(run: Run, events: str | None) -> tuple[Any, Any]:
    from assigner.spark.jobs import sample_data
    from assigner.spark.jobs.datasets import LAG_SAMPLES, OWNERSHIP_EVENTS
    from assigner.spark.jobs.sample_ownership import sample_log

    if not run.job.sample:
        return run.read(LAG_SAMPLES), run.read(OWNERSHIP_EVENTS, events, "--events")
    log = sample_log(faults=0.0)
    samples = run.sampled("lag", sample_data.lag_samples(log), LAG_SAMPLES)
    return samples, run.sampled("events", log.table(), OWNERSHIP_EVENTS)


# --- simulate ----------------------------------------------------------------------------------------------------


def _drawable(_context: click.Context, _option: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and file.suffix not in _PICTURES:
        raise click.BadParameter(f"{str(file)!r} does not end in {', '.join(_PICTURES)}")
    return file


@pipeline.command(short_help="Compare strategies: which one should I choose?")
@click.option("--strategy", multiple=True, metavar="NAME", help="A strategy to try; by default all that are installed.")
@click.option(
    "--groups", type=click.IntRange(1, 100_000), default=24, show_default=True, help="Groups of the --sample."
)
@click.option(
    "--warm", type=Seconds(0), default=20.0, show_default=True, metavar="SECONDS", help="Time to warm a partition."
)
@click.option(
    "--handover",
    type=Seconds(0),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Pause of a partition in a move.",
)
@click.option(
    "--ttl", type=Seconds(0), default=30.0, show_default=True, metavar="SECONDS", help="Time to detect a crash."
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_drawable,
    help="A .svg, .png or .pdf file; by default strategies.svg in the output.",
)
@runs_on_spark
def simulate(
    job: Job, strategy: tuple[str, ...], groups: int, warm: float, handover: float, ttl: float, picture: Path | None
) -> None:
    """Replay membership traces with each strategy and compare the results: which one should I choose?"""
    with running(job) as run:
        from assigner.spark.jobs import simulate as simulating
        from assigner.spark.jobs.chart import answer, draw
        from assigner.spark.jobs.datasets import TRACES
        from assigner.spark.jobs.traces import days

        traces = run.sampled("traces", days(groups), TRACES) if job.sample else run.read(TRACES)
        model = simulating.Model(warm=warm, handover=handover, ttl=ttl)
        outcomes = run.write("outcomes", simulating.simulate(run.spark, traces, strategy, model))
        compared = [row.asDict() for row in simulating.compare(run.spark, outcomes).collect()]
        file = picture or _default_picture(run.output)
        try:
            draw(compared, file)
        except OSError as error:
            raise InvalidInput(f"{file} can't be written: {error.strerror}; say where with --picture FILE") from error
        columns = ("strategy", "moves_per_change", "imbalance", "imbalance_max", "pause_min_per_day", "plan_ms")
        shown = table("strategies, the best choice first", columns, _rows(compared, columns))
        run.print_result(
            {"strategies": compared, "picture": str(file)}, shown, Text(answer(compared)), Text(f"picture: {file}")
        )


def _default_picture(output: str) -> Path:
    """Where the picture is written by default: beside the output, or here if the output is not on a local disk."""
    local = output.removeprefix("file://")
    return Path.cwd() / "strategies.svg" if "://" in local else Path(local) / "strategies.svg"


def _rows(rows: Iterable[Any], columns: Iterable[str]) -> list[list[Any]]:
    return [[_cell(row[column]) for column in columns] for row in rows]


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if not isinstance(value, float):
        return value
    return float(f"{value:.3g}") if abs(value) < 1_000 else round(value)
