"""Renders a DescribeGroup reply as tables: consumers, ownership, standbys, handoffs, conditions and history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assigner.cli.output import ranges, table
from assigner.logs.printable import one_line
from assigner.proto.kafka_assigner.v1 import ConsumerInfo, DescribeGroupResponse, GroupSummary

_STATUS_STYLE = {"Ready": "green", "Draining": "yellow"}
_HISTORY_LINES = 10

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


def view(reply: DescribeGroupResponse) -> RenderableType:
    return Group(*_sections(reply))


def _sections(reply: DescribeGroupResponse) -> Iterator[RenderableType]:
    summary = reply.summary or GroupSummary()
    yield table("", SUMMARY_COLUMNS, [summary_row(summary)])
    if reply.leader_address:
        yield Text(f"leader at {one_line(reply.leader_address)}; epochs above {reply.epoch_floor}", "dim")
    yield _titled("consumers", _consumers(reply), "no consumer is registered")
    if reply.routers:
        yield _titled("routers", _routers(reply), "")
    yield _titled("ownership", _ownership(reply), "nothing is owned")
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
        yield _titled(f"last {_HISTORY_LINES} moves", _history(reply), "")


def _titled(title: str, body: Table, when_empty: str) -> RenderableType:
    heading = Text(f"\n{title}", "bold")
    return Group(heading, body if body.row_count else Text(when_empty, "dim"))


def _consumers(reply: DescribeGroupResponse) -> Table:
    bound = any(one.principal for one in reply.consumers)
    columns = (
        "name",
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
        *(["identity"] if bound else []),
    )
    rows = [
        (
            one.name,
            _status(one),
            "" if one.silent_for is None else f"{one.silent_for:.0f} s ago",
            one.owned,
            one.standbys,
            one.warming,
            one.releasing,
            one.capacity,
            one.rack,
            one.generation,
            ",".join(one.topics) or "all",
            one.instance,
            one.session,
            *([one.principal] if bound else []),
        )
        for one in reply.consumers
    ]
    return table("", columns, rows)


def _status(one: ConsumerInfo) -> Text:
    if one.evicted:
        return Text(f"evicted: {one.evicted}", "red")
    return Text(one.status, _STATUS_STYLE.get(one.status, ""))


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
    return table("", ("topic", "owner", "count", "partitions"), rows)


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


def _history(reply: DescribeGroupResponse) -> Table:
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
        for one in reply.history[-_HISTORY_LINES:]
    ]
    return table("", ("at", "partition", "from", "to", "cause", "generation", "epoch", "not acked by"), rows)


def _named_routers(names: Sequence[str]) -> str:
    return ", ".join(map(one_line, names))


def _with_standby_mark(name: str, warm: bool) -> str:
    """The new owner's name, marked if it held a standby copy (`warm`)."""
    return f"{name} (standby)" if warm else name


def _utc_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds else ""
