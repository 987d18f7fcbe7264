"""`assigner offsets GROUP`: shows the committed offsets of a group, or sets offsets from a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.text import Text

from assigner.cli.commands.offsets.lag import KafkaAccess, Lags, asks_kafka, lags_of
from assigner.cli.connection import AdminClient, ServiceTarget, call_service, connects_to_service, takes_group
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
"""Offsets in one call. A file is sent in one call, so that a refusal changes nothing."""
MAX_PER_LIST = 1_000
DELETE = -1
_MAX_OFFSET = 2**63 - 1
_MAX_EPOCH = 2**31 - 1


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class _ShowsByDefault(click.Group):
    """A group of commands of which `show` need not be named: `assigner offsets GROUP`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowsByDefault)
def offsets() -> None:
    """Show, set, import or export the committed offsets of a group. Without a command: `show`."""


@offsets.command("show")
@takes_group
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be given repeatedly.")
@click.option(
    "--set",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help='Set offsets from a JSON object: {"topic": {"17": 4200, "18": null}}; null deletes one.',
)
@click.option("--force", is_flag=True, help="With --set: also if a consumer owns the partition; it may commit again.")
@asks_kafka
@connects_to_service
def show_offsets(
    target: ServiceTarget,
    group: str,
    topics: tuple[str, ...],
    file: Path | None,
    force: bool,
    kafka: KafkaAccess | None,
) -> None:
    """Show the committed offsets of GROUP: for each partition the next offset to read, and the epoch it was committed
    under; with --kafka also the lag. With --set, replace offsets of partitions that no consumer owns."""
    if file is None and force:
        raise click.UsageError("--force goes with --set")
    if file is not None and topics:
        raise click.UsageError("--topic does not go with --set; the file names the topics")
    if file is not None and kafka:
        raise click.UsageError("--kafka does not go with --set")
    if file is None:
        _show(target, group, topics, kafka)
    else:
        _set(target, group, read_offsets(file), force=force)


# --- showing -----------------------------------------------------------------------------------------------------


def _show(target: ServiceTarget, group: str, topics: tuple[str, ...], kafka: KafkaAccess | None) -> None:
    async def request(admin: AdminClient) -> tuple[list[FetchOffsetsResponse], Lags | None, bool]:
        # FetchOffsets replies with nothing for an unknown group; ListTopics reports a misspelt name.
        await admin.list_topics(group)
        pages = [page async for page in stored_pages(admin, group, topics)]
        lag = await lags_of(_committed(pages), kafka, target.timeout) if kafka else None
        listed = (await admin.list_groups()).groups
        return pages, lag, any(one.kind == "classic" for one in listed if one.group == group)

    pages, lag, classic = call_service(target, request, group=group)
    found = sorted(lines_of(pages), key=lambda line: (line["topic"], line["partition"]))
    if lag is not None:
        found = [{**line, "lag": lag.get((line["topic"], line["partition"]))} for line in found]
    unreadable = [f"{one.topic}/{one.partition}" for page in pages for one in page.unreadable]
    if target.as_json:
        print_json({"group": group, "offsets": found, "unreadable": unreadable})
        return
    out = console()
    columns = ("partition", "offset", *(["lag"] if lag is not None else []), "epoch", "committed", "metadata")
    # Members of a classic group commit without an epoch.
    out.print(table("", columns, [_row(line, "" if classic else Text("operator", "yellow")) for line in found]))
    if not found:
        out.print(Text("nothing is committed"))
    if unreadable:
        out.print(Text(f"unreadable records, left alone: {', '.join(unreadable)}", "bold red"))


async def stored_pages(admin: AdminClient, group: str, topics: tuple[str, ...]) -> AsyncIterator[FetchOffsetsResponse]:
    request = FetchOffsetsRequest(group=group, topics=[TopicPartitions(topic=topic) for topic in topics])
    while True:
        page = await admin.fetch_offsets(request)
        yield page
        if not page.HasField("last"):
            return
        request.after = TopicPartition(topic=page.last.topic, partition=page.last.partition)


def lines_of(pages: list[FetchOffsetsResponse]) -> Iterator[dict[str, Any]]:
    for listed in (topic for page in pages for topic in page.topics):
        for number, partition in enumerate(listed.partitions):
            if listed.offsets[number] < 0:
                # The topic was recreated, so the offset on record is void.
                continue
            yield {
                "topic": listed.topic,
                "partition": partition,
                "offset": listed.offsets[number],
                "epoch": listed.epochs[number],
                "leader_epoch": listed.leader_epochs[number] if listed.leader_epochs else -1,
                "metadata": listed.metadata[number] if listed.metadata else "",
                "committed_at": listed.committed_at[number],
            }


async def lags(admin: AdminClient, access: KafkaAccess, group: str, timeout: float) -> Lags:
    """(topic, partition) -> records that are in Kafka and not committed, for each partition with an offset."""
    return await lags_of(_committed([page async for page in stored_pages(admin, group, ())]), access, timeout)


def _committed(pages: list[FetchOffsetsResponse]) -> dict[tuple[str, int], int]:
    return {(line["topic"], line["partition"]): line["offset"] for line in lines_of(pages)}


def _row(line: dict[str, Any], without_epoch: Any) -> tuple[Any, ...]:
    when = datetime.fromtimestamp(line["committed_at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    epoch = line["epoch"] or without_epoch
    lag = ["" if line["lag"] is None else line["lag"]] if "lag" in line else []
    return f"{line['topic']}/{line['partition']}", line["offset"], *lag, epoch, when, line["metadata"]


# --- setting -----------------------------------------------------------------------------------------------------


def _set(target: ServiceTarget, group: str, wanted: list[NewOffsets], *, force: bool) -> None:
    reply = call_service(target, lambda admin: admin.set_offsets(group, wanted, force=force), group=group)
    if target.as_json:
        print_json({"group": group, "partitions": reply.partitions})
    else:
        console().print(f"offsets of {reply.partitions} partitions of {group} set", markup=False)


def read_offsets(file: Path) -> list[NewOffsets]:
    """Read offsets from a JSON file. Raises `click.UsageError` naming the topic and the remedy."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise click.UsageError(f"{file} has more than {MAX_FILE_BYTES} bytes; set its offsets in parts")
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise click.UsageError(f'{file} must hold a JSON object of topics, such as {{"orders": {{"0": 17}}}}')
    pairs = [
        (topic, number, offset)
        for topic, value in content.items()
        for number, offset in _parse_partitions(topic, value)
    ]
    if len(pairs) > MAX_SET:
        raise click.UsageError(f"{file} names {len(pairs)} partitions; set at most {MAX_SET} at a time")
    return [run for topic, of_topic in groupby(pairs, lambda pair: pair[0]) for run in _runs(topic, list(of_topic))]


def _parse_partitions(topic: str, value: Any) -> Iterator[tuple[int, _Wanted]]:
    if not isinstance(value, dict) or not value:
        raise click.UsageError(f"topic {topic!r} must have an object of partitions with offsets")
    for number, offset in value.items():
        if not (number.isascii() and number.isdecimal()) or len(number) > 9:
            raise click.UsageError(f"topic {topic!r}: {number!r} is not a partition's number")
        try:
            yield int(number), _parse_offset(offset)
        except msgspec.ValidationError:
            raise click.UsageError(
                f"topic {topic!r}: the offset of partition {number} is {offset!r}; give a number from 0, or null, or "
                'an object such as {"offset": 17, "leader_epoch": 3, "metadata": "text"}'
            ) from None


def _parse_offset(value: Any) -> _Wanted:
    if value is None:
        return _Wanted(offset=DELETE)
    found = msgspec.convert(value if isinstance(value, dict) else {"offset": value}, _Wanted)
    if not (0 <= found.offset <= _MAX_OFFSET and -1 <= found.leader_epoch <= _MAX_EPOCH):
        raise msgspec.ValidationError("out of range")
    return found


def _runs(topic: str, pairs: list[tuple[str, int, _Wanted]]) -> Iterator[NewOffsets]:
    for start in range(0, len(pairs), MAX_PER_LIST):
        part = pairs[start : start + MAX_PER_LIST]
        wanted = [one for _, _, one in part]
        epochs, texts = [one.leader_epoch for one in wanted], [one.metadata for one in wanted]
        yield NewOffsets(
            topic=topic,
            partitions=[number for _, number, _ in part],
            offsets=[one.offset for one in wanted],
            leader_epochs=epochs if any(epoch != -1 for epoch in epochs) else [],
            metadata=texts if any(texts) else [],
        )
