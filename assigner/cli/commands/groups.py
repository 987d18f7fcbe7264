"""Commands that describe and change groups: groups, describe, history, topics, pause, resume, rebalance, options.

Each makes one or two calls of the Admin service.
"""

from __future__ import annotations

from typing import Any

import click

from assigner.cli.commands import classic_view, group_view, options
from assigner.cli.commands.offsets.lag import KafkaAccess, Lags, asks_kafka
from assigner.cli.commands.offsets.stored import lags
from assigner.cli.connection import AdminClient, ServiceTarget, call_service, connects_to_service, takes_group
from assigner.cli.output import console, description_fields, fields_of, print_json, table
from assigner.proto.kafka_assigner.v1 import (
    DescribeGroupResponse,
    GroupOptions,
    Topic,
)

_TOPIC_COLUMNS = ("topic", "partitions", "source", "topic id")


_CREATE_HINT = "--create makes a new group"


@click.group(invoke_without_command=True)
@connects_to_service
def groups(target: ServiceTarget) -> None:
    """List the groups, or delete one."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    reply = call_service(target, lambda admin: admin.list_groups())
    if target.as_json:
        print_json({"groups": [fields_of(group) for group in reply.groups]})
    elif not reply.groups:
        console().print("no groups yet: a group begins with its first topic or consumer", style="dim")
    else:
        console().print(group_view.summaries(reply.groups))


@groups.command("delete")
@takes_group
@click.option("--force", is_flag=True, help="Also if records name owners that are no longer registered.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connects_to_service
def delete_group(target: ServiceTarget, group: str, force: bool, yes: bool) -> None:
    """Delete every record of GROUP, offsets included. Refused while a consumer is registered."""
    _confirm(target, f"Delete group {group!r} with its topics, options and offsets?", yes=yes)

    records = call_service(target, lambda admin: admin.delete_group(group, force=force), group=group)
    if target.as_json:
        print_json({"group": group, "records": records})
    else:
        console().print(f"{group}: deleted, {records} records", markup=False)


def _confirm(target: ServiceTarget, question: str, *, yes: bool) -> None:
    if yes:
        return
    if target.as_json:
        raise click.UsageError("deleting can't be undone; confirm it with --yes")
    click.confirm(question, abort=True)


async def _describe(admin: AdminClient, group: str) -> DescribeGroupResponse:
    return await admin.describe_group(group)


@click.command()
@takes_group
@asks_kafka
@connects_to_service
def describe(target: ServiceTarget, group: str, kafka: KafkaAccess | None) -> None:
    """Show a group of any kind: members, owners of partitions, handoffs in flight, last moves, and with --kafka how
    far the committed offsets are behind."""

    async def request(admin: AdminClient) -> tuple[DescribeGroupResponse, Lags | None]:
        described = await _describe(admin, group)
        return described, await lags(admin, kafka, group, target.timeout) if kafka else None

    reply, lag = call_service(target, request, group=group)
    if target.as_json:
        print_json(_description(reply, lag))
    else:
        console().print(group_view.view(reply, lag))


def _description(reply: DescribeGroupResponse, lag: Lags | None) -> dict[str, Any]:
    plain = {**description_fields(reply), "options": options.plain(reply.options or GroupOptions())}
    if reply.classic is not None:
        plain["classic"] = classic_view.plain(reply.classic)
    if lag is not None:
        plain["lag"] = [{"topic": topic, "partition": number, "lag": one} for (topic, number), one in lag.items()]
    return plain


@click.command()
@takes_group
@click.option("--partition", metavar="TOPIC/N", help="Only moves of this partition.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="The last so many moves.")
@connects_to_service
def history(target: ServiceTarget, group: str, partition: str | None, limit: int) -> None:
    """Show the last moves of partitions in GROUP, with their causes. The service keeps 200 of them.

    A classic Kafka group has none: its members themselves decide who owns what."""
    reply = call_service(target, lambda admin: _describe(admin, group), group=group)
    moves = [one for one in reply.history if partition in (None, f"{one.topic}/{one.partition}")][-limit:]
    if target.as_json:
        print_json({"group": group, "history": [fields_of(one) for one in moves]})
    elif moves:
        console().print(group_view.history(moves))
    elif reply.classic is not None:
        console().print("a classic group's members move its partitions, so no moves are kept", style="dim")
    else:
        console().print("no moves are on record", style="dim")


# --- topics ------------------------------------------------------------------------------------------------------


@click.group()
def topics() -> None:
    """Set, list and delete the topics of a group."""


@topics.command("list")
@takes_group
@connects_to_service
def list_topics(target: ServiceTarget, group: str) -> None:
    """List the topics of GROUP."""
    reply = call_service(target, lambda admin: admin.list_topics(group), group=group)
    if target.as_json:
        print_json({"group": group, "topics": [fields_of(topic) for topic in reply.topics]})
    else:
        console().print(table("", _TOPIC_COLUMNS, [_topic_row(topic) for topic in reply.topics]))


@topics.command("set")
@takes_group
@click.argument("topic")
@click.argument("partitions", type=click.IntRange(1, 1_000_000))
@click.option("--force", is_flag=True, help="Allow fewer partitions than before.")
@click.option("--create", is_flag=True, help="Create GROUP if it does not exist.")
@connects_to_service
def set_topic(target: ServiceTarget, group: str, topic: str, partitions: int, force: bool, create: bool) -> None:
    """Set the number of PARTITIONS of TOPIC in GROUP."""
    reply = call_service(
        target,
        lambda admin: admin.set_topic(group, topic, partitions, force=force, create=create),
        group=group,
        hint=_CREATE_HINT,
    )
    stored = reply.topic or Topic()
    if target.as_json:
        print_json({"group": group, "topic": fields_of(stored)})
    else:
        console().print(table("", _TOPIC_COLUMNS, [_topic_row(stored)]))


@topics.command("delete")
@takes_group
@click.argument("topic")
@click.option("--force", is_flag=True, help="Also if records name owners that are no longer registered.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connects_to_service
def delete_topic(target: ServiceTarget, group: str, topic: str, force: bool, yes: bool) -> None:
    """Delete TOPIC of GROUP with its offsets. Refused while a consumer of the group is registered."""
    _confirm(target, f"Delete topic {topic!r} of group {group!r} with its offsets?", yes=yes)

    records = call_service(target, lambda admin: admin.delete_topic(group, topic, force=force), group=group)
    if target.as_json:
        print_json({"group": group, "topic": topic, "records": records})
    else:
        console().print(f"{group}/{topic}: deleted, {records} records", markup=False)


def _topic_row(topic: Topic) -> tuple[str, int, str, str]:
    return (topic.name, topic.partitions, topic.source, topic.topic_id)


# --- a group as a whole ------------------------------------------------------------------------------------------


@click.command()
@takes_group
@connects_to_service
def pause(target: ServiceTarget, group: str) -> None:
    """Start no new handoff in GROUP; handoffs in flight are completed."""
    call_service(target, lambda admin: admin.pause(group), group=group)
    _done(target, group, "paused", "`assigner resume` goes on")


@click.command()
@takes_group
@connects_to_service
def resume(target: ServiceTarget, group: str) -> None:
    """Resume planning and handoffs of GROUP after a pause."""
    call_service(target, lambda admin: admin.resume(group), group=group)
    _done(target, group, "resumed", "")


@click.command()
@takes_group
@connects_to_service
def rebalance(target: ServiceTarget, group: str) -> None:
    """Plan GROUP again now, and retry quarantined partitions."""
    call_service(target, lambda admin: admin.rebalance(group), group=group)
    _done(target, group, "requested", "`assigner describe` shows what moves")


def _done(target: ServiceTarget, group: str, result: str, hint: str) -> None:
    if target.as_json:
        print_json({"group": group, "result": result})
    else:
        console().print(f"{group}: {result}" + (f" ({hint})" if hint else ""), markup=False)


@click.command("options")
@takes_group
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--create", is_flag=True, help="Create GROUP if it does not exist.")
@connects_to_service
def group_options(target: ServiceTarget, group: str, changes: tuple[str, ...], create: bool) -> None:
    """Show the options of GROUP, or change those given as KEY=VALUE."""
    wanted = options.parse(changes)

    async def request(admin: AdminClient) -> GroupOptions | None:
        if not changes:
            return (await _describe(admin, group)).options
        return (await admin.set_group_options(group, wanted, create=create)).options

    hint = _CREATE_HINT if changes else ""
    reply = options.plain(call_service(target, request, group=group, hint=hint) or GroupOptions())
    if target.as_json:
        print_json({"group": group, "options": reply})
    else:
        console().print(table("", ("option", "value"), sorted(reply.items())))
