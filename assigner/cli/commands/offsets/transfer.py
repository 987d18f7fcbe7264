"""`assigner offsets import` and `export`: move the committed offsets of a group in Kafka to the service, and back.

Both read everything first, show it, and then write in parts. A part that is written stays; the command may be run
again. Neither moves members: those of the one side stop first, and those of the other start afterwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import anyio.to_thread
import click
import msgspec
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from assigner.cli.commands.offsets.kafka import KafkaGroup, KafkaGroups, KafkaOffset, properties_in
from assigner.cli.commands.offsets.stored import lines_of, stored_pages
from assigner.cli.connection import AdminClient, ServiceTarget, call_service, connects_to_service
from assigner.cli.exit_codes import REFUSED, Failure
from assigner.cli.output import console, print_json, table
from assigner.errors import AssignerError
from assigner.logs.printable import obeyed_by_terminals
from assigner.proto.kafka_assigner.v1 import NewOffsets

PER_CALL = 5_000
PER_LIST = 1_000
BYTES_PER_CALL = 256 * 1024
"""Of topics' names and metadata."""
_SHOWN = 40
"""Rows of the table; JSON output has all."""

Command = Callable[..., None]


class Transfer(msgspec.Struct, frozen=True):
    """One offset that is moved, and what is at its destination before."""

    new: KafkaOffset
    before: int | None
    """None: nothing."""

    @property
    def outcome(self) -> str:
        if self.before is None:
            return "new"
        if self.before == self.new.offset:
            return "same"
        return "forward" if self.before < self.new.offset else "back"


def _options(command: Command) -> Command:
    for option in reversed(
        (
            click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated."),
            click.option(
                "--kafka-properties",
                "properties",
                metavar="FILE",
                help="librdkafka properties for TLS and SASL, a name=value in a line.",
            ),
            click.option("--without-metadata", is_flag=True, help="Leave out the metadata of the offsets."),
            click.option("--dry-run", is_flag=True, help="Show what would be set, and set nothing."),
        )
    ):
        command = option(command)
    return connects_to_service(command)


# --- in ----------------------------------------------------------------------------------------------------------


@click.command("import")
@click.option("--from-kafka", "bootstrap", required=True, metavar="BOOTSTRAP", help="Brokers to read from.")
@click.option("--group", "source", required=True, metavar="GROUP", help="The group in Kafka.")
@click.option("--into", metavar="GROUP", help="The group here; by default one of the same name.")
@click.option("--force", is_flag=True, help="Also while the group in Kafka has members, whose next commits are missed.")
@_options
def import_offsets(
    target: ServiceTarget,
    bootstrap: str,
    source: str,
    into: str | None,
    topics: tuple[str, ...],
    properties: str | None,
    without_metadata: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Set the offsets of a group to those that a group in Kafka has committed, with their leader epochs and metadata.

    The group is made if there is none, and so are its topics. Refused while the group in Kafka has members, and where
    a consumer here owns a partition.
    """
    group = into or source
    _check_names(group, source)
    kafka = KafkaGroups(bootstrap, properties_in(properties), target.timeout)

    async def request(admin: AdminClient) -> tuple[list[Transfer], int]:
        found_there = await _read(lambda: kafka.committed(source))
        offsets = _wanted(found_there, topics, without_metadata=without_metadata)
        found = await _read(lambda: kafka.group(source))
        _check_source(found, offsets, force=force)
        before = await _on_record(admin, group)
        moves = [Transfer(one, before.get((one.topic, one.partition))) for one in offsets]
        if dry_run:
            return moves, 0
        await _make_topics(admin, group, offsets, kafka)
        return moves, await _store(admin, group, offsets, quiet=target.as_json)

    moves, done = call_service(target, request)
    _report(target, moves, done, dry_run=dry_run, source=f"{source} in Kafka", destination=group)


def _check_source(found: KafkaGroup, offsets: Sequence[KafkaOffset], *, force: bool) -> None:
    if found.is_used and not force:
        who = f": {', '.join(found.members)}" if found.members else ""
        raise Failure(
            REFUSED,
            f"group {found.name!r} has members in Kafka ({found.state.lower()}{who}), which go on committing there; "
            "stop them first, or --force",
            kind="group_in_use",
        )
    if not offsets:
        missing = "has committed no offsets there" if found.state else "does not exist there"
        raise Failure(
            REFUSED,
            f"group {found.name!r} {missing}; `kafka-consumer-groups.sh --list` names the groups, and --topic has to "
            "name one of its topics",
            kind="nothing_to_import",
        )
    for one in offsets:
        if obeyed_by_terminals(one.metadata):
            raise Failure(
                REFUSED,
                f"the metadata of {one.topic}/{one.partition} holds characters that a terminal would act upon, which "
                "the service does not keep; --without-metadata leaves the metadata out",
                kind="metadata",
            )


async def _make_topics(admin: AdminClient, group: str, offsets: Sequence[KafkaOffset], kafka: KafkaGroups) -> None:
    """Make the topics known to the group, as a consumer would that names them; without a service that asks Kafka for
    their numbers of partitions, by the numbers that this command finds there."""
    wanted = {topic: max(one.partition for one in some) for topic, some in groupby(offsets, lambda one: one.topic)}
    known = await _partition_counts(admin, group)
    for topic, last in wanted.items():
        if topic not in known and await _found(admin, group, topic) is not None:
            continue
        if known.get(topic, 0) <= last:
            await admin.set_topic(group, topic, await _count(kafka, topic), create=True)


async def _found(admin: AdminClient, group: str, topic: str) -> Any:
    """Have the service look the topic up; None: it has nowhere to look."""
    return await _unless_unknown(admin.find_topic(group, topic, create=True))


async def _count(kafka: KafkaGroups, topic: str) -> int:
    count = (await _read(lambda: kafka.partition_counts([topic]))).get(topic)
    if count is None:
        raise Failure(
            REFUSED,
            f"Kafka has offsets of topic {topic!r}, and no such topic any more; leave it out by naming the others: "
            "--topic",
            kind="unknown_topic",
        )
    return int(count)


async def _store(admin: AdminClient, group: str, offsets: Sequence[KafkaOffset], *, quiet: bool) -> int:
    done = 0
    with _progress(len(offsets), "set", quiet=quiet) as advance:
        for part in parts(offsets):
            done += (await admin.set_offsets(group, list(_lists(part)))).partitions
            advance(len(part))
    return done


def parts(offsets: Sequence[KafkaOffset]) -> Iterator[list[KafkaOffset]]:
    """Parts that fit into one call each."""
    part: list[KafkaOffset] = []
    size = 0
    for one in offsets:
        more = len(one.metadata.encode()) + 16
        if part and (len(part) == PER_CALL or size + more > BYTES_PER_CALL):
            yield part
            part, size = [], 0
        part.append(one)
        size += more
    if part:
        yield part


def _lists(part: Sequence[KafkaOffset]) -> Iterator[NewOffsets]:
    for topic, of_topic in groupby(part, lambda one: one.topic):
        some = list(of_topic)
        for start in range(0, len(some), PER_LIST):
            listed = some[start : start + PER_LIST]
            yield NewOffsets(
                topic=topic,
                partitions=[one.partition for one in listed],
                offsets=[one.offset for one in listed],
                leader_epochs=[one.leader_epoch for one in listed],
                metadata=[one.metadata for one in listed],
            )


# --- out ---------------------------------------------------------------------------------------------------------


@click.command("export")
@click.option("--to-kafka", "bootstrap", required=True, metavar="BOOTSTRAP", help="Brokers to write to.")
@click.option("--group", "source", required=True, metavar="GROUP", help="The group here.")
@click.option("--into", metavar="GROUP", help="The group in Kafka; by default one of the same name.")
@click.option("--force", is_flag=True, help="Also while the group here has consumers, whose next commits are missed.")
@_options
def export_offsets(
    target: ServiceTarget,
    bootstrap: str,
    source: str,
    into: str | None,
    topics: tuple[str, ...],
    properties: str | None,
    without_metadata: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Commit the offsets of a group to a group in Kafka, with their leader epochs and metadata.

    Refused while the group here has consumers, and by Kafka itself while the group there has members.
    """
    destination = into or source
    _check_names(source, destination)
    kafka = KafkaGroups(bootstrap, properties_in(properties), target.timeout)

    async def request(admin: AdminClient) -> tuple[list[Transfer], int]:
        offsets = _wanted(await _stored_offsets(admin, source), topics, without_metadata=without_metadata)
        if not force:
            await _check_unused(admin, source)
        if not offsets:
            raise Failure(REFUSED, f"group {source!r} has no such offsets; nothing was set", kind="nothing_to_export")
        before = {(one.topic, one.partition): one.offset for one in await _read(lambda: kafka.committed(destination))}
        moves = [Transfer(one, before.get((one.topic, one.partition))) for one in offsets]
        if dry_run:
            return moves, 0
        return moves, await _commit(kafka, destination, offsets, quiet=target.as_json)

    moves, done = call_service(target, request, group=source)
    _report(target, moves, done, dry_run=dry_run, source=source, destination=f"{destination} in Kafka")


async def _stored_offsets(admin: AdminClient, group: str) -> list[KafkaOffset]:
    await admin.list_topics(group)
    return sorted(
        KafkaOffset(line["topic"], line["partition"], line["offset"], line["leader_epoch"], line["metadata"])
        for line in lines_of([page async for page in stored_pages(admin, group, ())])
    )


async def _check_unused(admin: AdminClient, group: str) -> None:
    consumers = (await admin.describe_group(group)).consumers
    if consumers:
        raise Failure(
            REFUSED,
            f"group {group!r} has consumers ({', '.join(one.name for one in consumers[:3])}), which go on committing "
            "here; stop them first, or --force",
            kind="group_in_use",
        )


async def _commit(kafka: KafkaGroups, group: str, offsets: Sequence[KafkaOffset], *, quiet: bool) -> int:
    done = 0
    with _progress(len(offsets), "committed", quiet=quiet) as advance:
        committing = iter(kafka.commit(group, offsets))
        while count := await _read(lambda: next(committing, 0)):
            done += count
            advance(count)
    return done


# --- both --------------------------------------------------------------------------------------------------------


async def _read(work: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def _check_names(*groups: str) -> None:
    if not all(groups):
        raise click.UsageError("a group's name is empty; is a variable not set?")


def _wanted(offsets: list[KafkaOffset], topics: tuple[str, ...], *, without_metadata: bool) -> list[KafkaOffset]:
    chosen = [one for one in offsets if not topics or one.topic in topics]
    return [msgspec.structs.replace(one, metadata="") for one in chosen] if without_metadata else chosen


async def _partition_counts(admin: AdminClient, group: str) -> dict[str, int]:
    known = await _unless_unknown(admin.list_topics(group))
    return {topic.name: topic.partitions for topic in known.topics} if known else {}


async def _on_record(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    """The offsets on record by topic and partition; none if there is no such group."""
    if await _unless_unknown(admin.list_topics(group)) is None:
        return {}
    pages = [page async for page in stored_pages(admin, group, ())]
    return {(line["topic"], line["partition"]): line["offset"] for line in lines_of(pages)}


async def _unless_unknown(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except AssignerError as error:
        if isinstance(error.__cause__, GRPCError) and error.__cause__.status is Status.NOT_FOUND:
            return None
        raise


@contextmanager
def _progress(total: int, what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    out = console(stderr=True)
    shown = Progress(
        TextColumn(f"offsets {what}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=out,
        transient=True,
        disable=quiet or not out.is_terminal,
    )
    with shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.advance(task, count)


def _report(
    target: ServiceTarget, moves: list[Transfer], done: int, *, dry_run: bool, source: str, destination: str
) -> None:
    if target.as_json:
        rows = [{**msgspec.structs.asdict(one.new), "before": one.before} for one in moves]
        print_json({"from": source, "to": destination, "dry_run": dry_run, "set": done, "offsets": rows})
        return
    columns = ("partition", "offset", "leader epoch", "before", "", "metadata")
    out = console()
    out.print(table("", columns, map(_row, moves[:_SHOWN])))
    if len(moves) > _SHOWN:
        out.print(f"and {len(moves) - _SHOWN} more; -o json lists all", markup=False, style="dim")
    word = f"{len(moves)} offsets would be set" if dry_run else f"{done} offsets set"
    out.print(f"{word}: {source} -> {destination}", markup=False)


def _row(one: Transfer) -> tuple[Any, ...]:
    new = one.new
    return (
        f"{new.topic}/{new.partition}",
        new.offset,
        "" if new.leader_epoch < 0 else new.leader_epoch,
        "" if one.before is None else one.before,
        one.outcome,
        new.metadata,
    )
