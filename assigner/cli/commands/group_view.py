"""Renders a DescribeGroup reply as tables: members, ownership, standbys, handoffs, conditions, history and lag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assigner.cli.commands import classic_view
from assigner.cli.commands.offsets.lag import Lags
from assigner.cli.output import ranges, table
from assigner.logs.printable import one_line
from assigner.proto.kafka_assigner.v1 import (
    ClassicDescription,
    ConsumerInfo,
    DescribeGroupResponse,
    GroupSummary,
    MoveInfo,
)

_STATUS_STYLE = {"Ready": "green", "Draining": "yellow"}
_HISTORY_LINES = 10
_OWNERSHIP_COLUMNS = ("topic", "owner", "count", "partitions")
CLASSIC = "classic"

SUMMARY_COLUMNS = (
    "group",
    "leader",
    "consumers",
    "topics",
    "partitions",
    "unowned",
    "handoffs",
    "generation",
)


def summaries(groups: Sequence[GroupSummary]) -> Table:
    """Groups in figures, with their kinds where they have different ones."""
    if all(one.kind != CLASSIC for one in groups):
        return table("", SUMMARY_COLUMNS, map(summary_row, groups))
    rows = [(*summary_row(one), f"classic, {one.state}" if one.kind == CLASSIC else one.kind) for one in groups]
    return table("", (*SUMMARY_COLUMNS, "kind"), rows)


def summary_row(summary: GroupSummary) -> tuple[Any, ...]:
    return (
        Text.assemble(summary.group, (" paused", "yellow")) if summary.paused else summary.group,
        summary.leader or Text("none", "red"),
        summary.consumers,
        summary.topics,
        summary.partitions,
        Text(str(summary.unowned), "red") if summary.unowned else summary.unowned,
        summary.handoffs,
        summary.generation,
    )


def view(reply: DescribeGroupResponse, lags: Lags | None = None) -> RenderableType:
    """`lags`: by partition, where the brokers were asked."""
    return Group(*_sections(reply, lags))


def _sections(reply: DescribeGroupResponse, lags: Lags | None) -> Iterator[RenderableType]:
    yield summaries([reply.summary or GroupSummary()])
    if reply.classic is not None:
        yield from _classic_sections(reply.classic, reply.leader_address)
    else:
        yield from _consumer_sections(reply)
    if lags is not None:
        yield _titled("lag", _lag(reply, lags), "nothing is committed")
    if reply.standbys:
        yield _titled("standbys", _standbys(reply), "")
    if reply.handoffs:
        yield _titled("handoffs in flight", _handoffs(reply), "")
    if reply.quarantined:
        yield _titled("quarantined (`assigner rebalance` tries again)", _quarantined(reply), "")
    if reply.conditions:
        yield _titled("conditions", _conditions(reply), "")
    if reply.unreadable:
        yield Text("\nunreadable records, left alone", "bold red")
        yield Text("\n".join(map(one_line, reply.unreadable)))
    if reply.history:
        yield _titled(f"last {_HISTORY_LINES} moves", history(reply.history[-_HISTORY_LINES:]), "")


def _consumer_sections(reply: DescribeGroupResponse) -> Iterator[RenderableType]:
    if reply.leader_address:
        yield Text(f"leader at {one_line(reply.leader_address)}; epochs above {reply.epoch_floor}", "dim")
    yield _titled("consumers", _consumers(reply), "no consumer is registered")
    if reply.routers:
        yield _titled("routers", _routers(reply), "")
    yield _titled("ownership", _ownership(reply), "nothing is owned")


def _classic_sections(group: ClassicDescription, leader_address: str) -> Iterator[RenderableType]:
    yield Text(one_line(classic_view.state_line(group, leader_address)), "dim")
    members = table("", classic_view.MEMBER_COLUMNS, classic_view.member_rows(group))
    yield _titled("members, as on record", members, "no member has joined")
    owned = table("", _OWNERSHIP_COLUMNS, classic_view.ownership_rows(group))
    yield _titled("ownership", owned, "nothing is assigned")


def _titled(title: str, body: Table, when_empty: str) -> RenderableType:
    heading = Text(f"\n{title}", "bold")
    return Group(heading, body if body.row_count else Text(when_empty, "dim"))


def _consumers(reply: DescribeGroupResponse) -> Table:
    bound = any(one.principal for one in reply.consumers)
    of_kinds = any(one.kind for one in reply.consumers)
    columns = (
        "name",
        *(["kind"] if of_kinds else []),
        "status",
        "last seen",
        "owned",
        "standbys",
        "warming",
        "releasing",
        "capacity",
        "rack",
        "generation",
        "topics",
        "instance",
        "session",
        *(["client id", "host"] if of_kinds else []),
        *(["identity"] if bound else []),
    )
    rows = [
        (
            one.name,
            *([one.kind or "grpc"] if of_kinds else []),
            _status(one),
            "" if one.silent_for is None else f"{one.silent_for:.0f} s ago",
            one.owned,
            one.standbys,
            one.warming,
            one.releasing,
            one.capacity,
            one.rack,
            one.generation,
            _topics(one),
            one.instance,
            one.session,
            *([one.client_id, one.host] if of_kinds else []),
            *([one.principal] if bound else []),
        )
        for one in reply.consumers
    ]
    return table("", columns, rows)


def _status(one: ConsumerInfo) -> Text:
    if one.evicted:
        return Text(f"evicted: {one.evicted}", "red")
    if one.away:
        return Text("away", "yellow")
    return Text(one.status, _STATUS_STYLE.get(one.status, ""))


def _topics(one: ConsumerInfo) -> str:
    named = ",".join(one.topics)
    if one.pattern:
        return f"{named or 'none'} by {one.pattern}"
    return named or ("none" if one.explicit_topics else "all")


def _routers(reply: DescribeGroupResponse) -> Table:
    bound = any(one.principal for one in reply.routers)
    rows = [
        (
            one.name,
            Text(str(one.unacked), "yellow") if one.unacked else one.unacked,
            "" if one.silent_for is None else f"{one.silent_for:.0f} s ago",
            one.session or Text("unreadable, or lost its name", "red"),
            *([one.principal] if bound else []),
        )
        for one in reply.routers
    ]
    return table("", ("name", "frozen, not acked", "last seen", "session", *(["identity"] if bound else [])), rows)


def _ownership(reply: DescribeGroupResponse) -> Table:
    counts = {topic.name: topic.partitions for topic in reply.topics}
    rows: list[tuple[Any, ...]] = []
    seen = set()
    for topic in reply.ownership:
        seen.add(topic.topic)
        held: dict[int, list[int]] = {}
        for partition, owner in zip(topic.partitions, topic.owners, strict=True):
            held.setdefault(owner, []).append(partition)
        for owner, partitions in sorted(held.items(), key=lambda item: reply.owners[item[0]]):
            rows.append((topic.topic, reply.owners[owner], len(partitions), ranges(partitions)))
        missing = set(range(counts.get(topic.topic, 0))).difference(topic.partitions)
        if missing:
            rows.append(_unowned_row(topic.topic, missing))
    rows += [_unowned_row(name, set(range(count))) for name, count in counts.items() if name not in seen and count]
    return table("", _OWNERSHIP_COLUMNS, rows)


def _lag(reply: DescribeGroupResponse, lags: Lags) -> Table:
    """The lag of each owner per topic: what of its partitions is in Kafka and not committed."""
    owner_of = dict(_owners(reply))
    rows: dict[tuple[str, str], list[int]] = {}
    for (topic, partition), lag in lags.items():
        rows.setdefault((topic, owner_of.get((topic, partition), "nobody")), []).append(lag)
    listed = [(topic, owner, len(some), sum(some), max(some)) for (topic, owner), some in sorted(rows.items())]
    return table("", ("topic", "owner", "partitions", "lag", "highest"), listed)


def _owners(reply: DescribeGroupResponse) -> Iterator[tuple[tuple[str, int], str]]:
    if reply.classic is not None:
        for topic, owners in classic_view.ownership(reply.classic).items():
            for name, partitions in owners.items():
                yield from (((topic, partition), name) for partition in partitions)
        return
    for listed in reply.ownership:
        for partition, owner in zip(listed.partitions, listed.owners, strict=True):
            yield (listed.topic, partition), reply.owners[owner]


def _standbys(reply: DescribeGroupResponse) -> Table:
    rows: list[tuple[Any, ...]] = []
    for topic in reply.standbys:
        held: dict[str, list[int]] = {}
        for partition, holder in zip(topic.partitions, topic.holders, strict=True):
            held.setdefault(reply.owners[holder], []).append(partition)
        rows += [(topic.topic, name, len(partitions), ranges(partitions)) for name, partitions in sorted(held.items())]
    return table("", ("topic", "holder", "count", "partitions"), rows)


def _unowned_row(topic: str, partitions: set[int]) -> tuple[Any, ...]:
    return (topic, Text("nobody", "red"), len(partitions), ranges(partitions))


def _handoffs(reply: DescribeGroupResponse) -> Table:
    rows = [
        (
            f"{one.topic}/{one.partition}",
            one.old_owner,
            _with_standby_mark(one.new_owner or "nobody", one.warm),
            one.step,
            _named_routers(one.unacked),
            one.cause,
            _utc_time(one.started_at),
        )
        for one in reply.handoffs
    ]
    return table("", ("partition", "from", "to", "step", "not acked by", "cause", "since"), rows)


def _conditions(reply: DescribeGroupResponse) -> Table:
    return table("", ("kind", "what"), [(one.kind, one.message) for one in reply.conditions])


def _quarantined(reply: DescribeGroupResponse) -> Table:
    rows = [(f"{one.topic}/{one.partition}", ", ".join(one.failed), one.reason) for one in reply.quarantined]
    return table("", ("partition", "failed at", "reason"), rows)


def history(moves: Sequence[MoveInfo]) -> Table:
    rows = [
        (
            _utc_time(one.at),
            f"{one.topic}/{one.partition}",
            one.old_owner or "nobody",
            _with_standby_mark(one.new_owner or "nobody", one.warm),
            one.cause,
            one.generation,
            one.epoch,
            _named_routers(one.unacked),
        )
        for one in moves
    ]
    return table("", ("at", "partition", "from", "to", "cause", "generation", "epoch", "not acked by"), rows)


def _named_routers(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names))


def _with_standby_mark(name: str, warm: bool) -> str:
    """The new owner's name, marked if it held a standby copy (`warm`)."""
    return f"{name} (standby)" if warm else name


def _utc_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds else ""
