"""`assigner loads`: shows the loads of a group's partitions and consumers, or publishes weights from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from assigner.cli.connection import AdminClient, ServiceTarget, call_service, connects_to_service, takes_group
from assigner.cli.output import console, fields_of, print_json, table
from assigner.logs.printable import one_line
from assigner.proto.kafka_assigner.v1 import (
    DescribeLoadsResponse,
    TopicWeights,
)

MAX_FILE_BYTES = 64 * 2**20
MAX_PER_LIST = 1_000
MAX_PER_CALL = 32_000
"""Weights in one call: as many as one record of the store holds, so that each record is written once or twice."""


@click.command()
@takes_group
@click.option(
    "--set",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help='Publish weights from a JSON object: {"topic": [1.0, 2.5, ...]} or {"topic": {"17": 40}}.',
)
@click.option(
    "--valid-for",
    type=click.FloatRange(1, 7 * 86_400),
    default=86_400,
    show_default=True,
    metavar="SECONDS",
    help="How long published weights are valid.",
)
@click.option("--keep-others", is_flag=True, help="Keep the weights of the topics' other partitions.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Lines to show.")
@connects_to_service
def loads(
    target: ServiceTarget, group: str, file: Path | None, valid_for: float, keep_others: bool, limit: int
) -> None:
    """Show the heaviest partitions and the busiest consumers of GROUP, or publish weights for its topics."""
    if file is None:
        _show(target, group, limit)
    else:
        _publish(target, group, read_weights(file), valid_for, keep_others=keep_others)


# --- showing -----------------------------------------------------------------------------------------------------


def _show(target: ServiceTarget, group: str, limit: int) -> None:
    reply = call_service(target, lambda admin: admin.describe_loads(group, limit=limit), group=group)
    if target.as_json:
        print_json({"group": group, **fields_of(reply)})
        return
    out = console()
    out.print(_summary(reply))
    out.print(table("heaviest partitions", ("partition", "weight", "share", "owner"), _partitions(reply)))
    out.print(table("consumers", ("consumer", "share", "partitions", "busy"), _nodes(reply)))
    if reply.unreadable:
        out.print(Text("unreadable records, left alone", "bold red"))
        out.print(Text("\n".join(map(one_line, reply.unreadable))))


def _summary(reply: DescribeLoadsResponse) -> Text:
    when = datetime.fromtimestamp(reply.at, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if reply.at else "never"
    known = f"loads of {reply.known} of {reply.partitions} partitions are known, last written {when}; "
    plans = f"plans go by counts: {reply.fallback}" if reply.fallback else "plans go by load"
    return Text(known + plans + "\n", "yellow" if reply.used and reply.fallback else "")


def _partitions(reply: DescribeLoadsResponse) -> Iterator[tuple[Any, ...]]:
    for one in reply.heaviest:
        yield f"{one.topic}/{one.partition}", one.weight, f"{one.share:.1%}", one.owner or Text("nobody", "red")


def _nodes(reply: DescribeLoadsResponse) -> Iterator[tuple[Any, ...]]:
    for one in reply.busiest:
        yield one.consumer, f"{one.share:.1%}", one.partitions, "" if one.busy is None else f"{one.busy:g}"


# --- publishing --------------------------------------------------------------------------------------------------


def _publish(
    target: ServiceTarget, group: str, runs: list[TopicWeights], valid_for: float, *, keep_others: bool
) -> None:
    count = publish(target, group, runs, valid_for, keep_others=keep_others)
    if target.as_json:
        print_json({"group": group, "partitions": count, "valid_for": valid_for})
    else:
        console().print(f"{group}: weights of {count} partitions are published", markup=False)


def publish(target: ServiceTarget, group: str, runs: list[TopicWeights], valid_for: float, *, keep_others: bool) -> int:
    """Publish weights, in as many calls as needed. Returns how many partitions got a weight."""

    async def send(admin: AdminClient) -> int:
        count = 0
        for part, continues in batches(runs):
            # A later call for the same topic must keep the weights that the earlier one set.
            keep = keep_others or continues
            count += (await admin.set_loads(group, part, valid_for, keep_others=keep)).partitions
        return count

    return call_service(target, send, group=group)


def batches(runs: list[TopicWeights]) -> Iterator[tuple[list[TopicWeights], bool]]:
    """Split weights into batches, one per call; with each, whether it continues the topic of the batch before.

    Runs of one topic are adjacent. A topic that takes several batches shares none of them with another topic.
    """
    together: list[TopicWeights] = []
    for _, of_topic in groupby(runs, lambda run: run.topic):
        first, *rest = _parts(list(of_topic))
        if rest or not _fits([*together, *first]):
            if together:
                yield together, False
            together = []
        together += first
        if rest:
            yield together, False
            yield from ((part, True) for part in rest)
            together = []
    if together:
        yield together, False


def _parts(runs: list[TopicWeights]) -> list[list[TopicWeights]]:
    parts: list[list[TopicWeights]] = [[]]
    for run in runs:
        if parts[-1] and not _fits([*parts[-1], run]):
            parts.append([])
        parts[-1].append(run)
    return parts


def _fits(runs: list[TopicWeights]) -> bool:
    return len(runs) <= MAX_PER_LIST and sum(len(run.weights) for run in runs) <= MAX_PER_CALL


def read_weights(file: Path) -> list[TopicWeights]:
    """Read weights from a JSON file. Raises `click.UsageError` naming the topic and the remedy."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise click.UsageError(f"{file} has more than {MAX_FILE_BYTES} bytes; publish it in parts, with --keep-others")
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise click.UsageError(f'{file} must hold a JSON object of topics, such as {{"orders": [1, 2.5]}}')
    return [run for topic, value in content.items() for run in _runs(topic, _parse_partitions(topic, value))]


def _parse_partitions(topic: str, value: Any) -> list[tuple[int, float]]:
    pairs = (
        list(enumerate(value)) if isinstance(value, list) else list(value.items()) if isinstance(value, dict) else None
    )
    if not pairs:
        raise click.UsageError(f"topic {topic!r} must have a list of weights, or an object of partitions with weights")
    found: list[tuple[int, float]] = []
    for partition, weight in pairs:
        number = str(partition)
        if not (number.isascii() and number.isdecimal()) or len(number) > 9:
            raise click.UsageError(f"topic {topic!r}: {partition!r} is not a partition's number")
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight <= 1e15:
            raise click.UsageError(
                f"topic {topic!r}: the weight of partition {number} is {weight!r}; give a number from 0"
            )
        found.append((int(number), float(weight)))
    return sorted(found)


def _runs(topic: str, numbered: list[tuple[int, float]]) -> Iterator[TopicWeights]:
    run = TopicWeights(topic=topic, first=numbered[0][0])
    for number, weight in numbered:
        if number != run.first + len(run.weights) or len(run.weights) >= MAX_PER_LIST:
            yield run
            run = TopicWeights(topic=topic, first=number)
        run.weights.append(weight)
    yield run
