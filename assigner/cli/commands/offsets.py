"""`assigner offsets`: how far a group's consumers have got, and offsets put in place by an operator."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from assigner.cli.connection import AdminClient, ServiceTarget, ask, reaches_service, takes_group
from assigner.cli.output import console, print_json, table
from assigner.proto.kafka_assigner.v1 import (
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    NewOffsets,
    TopicPartition,
    TopicPartitions,
)

MAX_FILE_BYTES = 4 * 2**20
MAX_SET = 10_000
"""What one call takes, so that a refusal leaves nothing half done."""
IN_A_LIST = 1_000
FORGET = -1
_LARGEST = 2**63 - 1


@click.command()
@takes_group
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be given repeatedly.")
@click.option(
    "--set",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help='Put offsets from a JSON object in place: {"topic": {"17": 4200, "18": null}}; null: forget it.',
)
@click.option("--force", is_flag=True, help="With --set: also where somebody owns the partition, who may commit again.")
@reaches_service
def offsets(target: ServiceTarget, group: str, topics: tuple[str, ...], file: Path | None, force: bool) -> None:
    """Show the committed offsets of GROUP: the next one to read of each partition, and the epoch it was committed
    under. Or put others in place, while nobody owns the partitions."""
    if file is None and force:
        raise click.UsageError("--force goes with --set")
    if file is not None and topics:
        raise click.UsageError("--topic does not go with --set; the file names the topics")
    if file is None:
        _show(target, group, topics)
    else:
        _set(target, group, new_offsets(file), force=force)


# --- showing -----------------------------------------------------------------------------------------------------


def _show(target: ServiceTarget, group: str, topics: tuple[str, ...]) -> None:
    async def question(admin: AdminClient) -> list[FetchOffsetsResponse]:
        # Fetching finds nothing in a group that there is not; a person who misspelt its name wants to know.
        await admin.list_topics(group)
        return [page async for page in _pages(admin, group, topics)]

    pages = ask(target, question, group=group)
    found = sorted(_lines(pages), key=lambda line: (line["topic"], line["partition"]))
    unreadable = [f"{one.topic}/{one.partition}" for page in pages for one in page.unreadable]
    if target.as_json:
        print_json({"group": group, "offsets": found, "unreadable": unreadable})
        return
    out = console()
    out.print(table("", ("partition", "offset", "epoch", "committed", "metadata"), map(_row, found)))
    if not found:
        out.print(Text("nothing is committed"))
    if unreadable:
        out.print(Text(f"unreadable records, left alone: {', '.join(unreadable)}", "bold red"))


async def _pages(admin: AdminClient, group: str, topics: tuple[str, ...]) -> AsyncIterator[FetchOffsetsResponse]:
    request = FetchOffsetsRequest(group=group, topics=[TopicPartitions(topic=topic) for topic in topics])
    while True:
        page = await admin.fetch_offsets(request)
        yield page
        if not page.HasField("last"):
            return
        request.after = TopicPartition(topic=page.last.topic, partition=page.last.partition)


def _lines(pages: list[FetchOffsetsResponse]) -> Iterator[dict[str, Any]]:
    for told in (topic for page in pages for topic in page.topics):
        for number, partition in enumerate(told.partitions):
            if told.offsets[number] < 0:
                # Of a topic that was made anew: on record, and void.
                continue
            yield {
                "topic": told.topic,
                "partition": partition,
                "offset": told.offsets[number],
                "epoch": told.epochs[number],
                "leader_epoch": told.leader_epochs[number] if told.leader_epochs else -1,
                "metadata": told.metadata[number] if told.metadata else "",
                "committed_at": told.committed_at[number],
            }


def _row(line: dict[str, Any]) -> tuple[Any, ...]:
    when = datetime.fromtimestamp(line["committed_at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    epoch = line["epoch"] or Text("operator", "yellow")
    return f"{line['topic']}/{line['partition']}", line["offset"], epoch, when, line["metadata"]


# --- setting -----------------------------------------------------------------------------------------------------


def _set(target: ServiceTarget, group: str, wanted: list[NewOffsets], *, force: bool) -> None:
    answer = ask(target, lambda admin: admin.set_offsets(group, wanted, force=force), group=group)
    if target.as_json:
        print_json({"group": group, "partitions": answer.partitions})
    else:
        console().print(f"offsets of {answer.partitions} partitions of {group} set", markup=False)


def new_offsets(file: Path) -> list[NewOffsets]:
    """What a file says. Raises `click.UsageError` naming the topic and the remedy."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise click.UsageError(f"{file} has more than {MAX_FILE_BYTES} bytes; set its offsets in parts")
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise click.UsageError(f'{file} must hold a JSON object of topics, such as {{"orders": {{"0": 17}}}}')
    pairs = [(topic, number, offset) for topic, said in content.items() for number, offset in _numbered(topic, said)]
    if len(pairs) > MAX_SET:
        raise click.UsageError(f"{file} names {len(pairs)} partitions; set at most {MAX_SET} at a time")
    return [run for topic, of_topic in groupby(pairs, lambda pair: pair[0]) for run in _runs(topic, list(of_topic))]


def _numbered(topic: str, said: Any) -> Iterator[tuple[int, int]]:
    if not isinstance(said, dict) or not said:
        raise click.UsageError(f"topic {topic!r} must have an object of partitions with offsets")
    for number, offset in said.items():
        if not (number.isascii() and number.isdecimal()) or len(number) > 9:
            raise click.UsageError(f"topic {topic!r}: {number!r} is not a partition's number")
        whole = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= _LARGEST
        if offset is not None and not whole:
            raise click.UsageError(
                f"topic {topic!r}: the offset of partition {number} is {offset!r}; give a number from 0, or null"
            )
        yield int(number), FORGET if offset is None else offset


def _runs(topic: str, pairs: list[tuple[str, int, int]]) -> Iterator[NewOffsets]:
    for start in range(0, len(pairs), IN_A_LIST):
        part = pairs[start : start + IN_A_LIST]
        partitions, values = [number for _, number, _ in part], [offset for _, _, offset in part]
        yield NewOffsets(topic=topic, partitions=partitions, offsets=values)
