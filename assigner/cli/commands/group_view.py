"""A group's description for people: who there is, who owns what, what is moving, and what needs a look."""

from __future__ import annotations

from collections.abc import Iterator
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


def view(answer: DescribeGroupResponse) -> RenderableType:
    return Group(*_sections(answer))


def _sections(answer: DescribeGroupResponse) -> Iterator[RenderableType]:
    summary = answer.summary or GroupSummary()
    yield table("", SUMMARY_COLUMNS, [summary_row(summary)])
    if answer.leader_address:
        yield Text(f"leader at {one_line(answer.leader_address)}; epochs above {answer.epoch_floor}", "dim")
    yield _titled("consumers", _consumers(answer), "no consumer is registered")
    yield _titled("ownership", _ownership(answer), "nothing is owned")
    if answer.standbys:
        yield _titled("standbys", _standbys(answer), "")
    if answer.handoffs:
        yield _titled("handoffs in flight", _handoffs(answer), "")
    if answer.quarantined:
        yield _titled("quarantined (`assigner rebalance` tries again)", _quarantined(answer), "")
    if answer.conditions:
        yield _titled("conditions", _conditions(answer), "")
    if answer.unreadable:
        yield Text("\nunreadable records, left alone", "bold red")
        yield Text("\n".join(map(one_line, answer.unreadable)))
    if answer.history:
        yield _titled(f"last {_HISTORY_LINES} moves", _history(answer), "")


def _titled(title: str, body: Table, when_empty: str) -> RenderableType:
    heading = Text(f"\n{title}", "bold")
    return Group(heading, body if body.row_count else Text(when_empty, "dim"))


def _consumers(answer: DescribeGroupResponse) -> Table:
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
        )
        for one in answer.consumers
    ]
    return table("", columns, rows)


def _status(one: ConsumerInfo) -> Text:
    if one.evicted:
        return Text(f"evicted: {one.evicted}", "red")
    return Text(one.status, _STATUS_STYLE.get(one.status, ""))


def _ownership(answer: DescribeGroupResponse) -> Table:
    counts = {topic.name: topic.partitions for topic in answer.topics}
    rows: list[tuple[Any, ...]] = []
    seen = set()
    for topic in answer.ownership:
        seen.add(topic.topic)
        held: dict[int, list[int]] = {}
        for partition, owner in zip(topic.partitions, topic.owners, strict=True):
            held.setdefault(owner, []).append(partition)
        for owner, partitions in sorted(held.items(), key=lambda item: answer.owners[item[0]]):
            rows.append((topic.topic, answer.owners[owner], len(partitions), ranges(partitions)))
        missing = set(range(counts.get(topic.topic, 0))).difference(topic.partitions)
        if missing:
            rows.append(_nobody(topic.topic, missing))
    rows += [_nobody(name, set(range(count))) for name, count in counts.items() if name not in seen and count]
    return table("", ("topic", "owner", "count", "partitions"), rows)


def _standbys(answer: DescribeGroupResponse) -> Table:
    rows: list[tuple[Any, ...]] = []
    for topic in answer.standbys:
        held: dict[str, list[int]] = {}
        for partition, holder in zip(topic.partitions, topic.holders, strict=True):
            held.setdefault(answer.owners[holder], []).append(partition)
        rows += [(topic.topic, name, len(partitions), ranges(partitions)) for name, partitions in sorted(held.items())]
    return table("", ("topic", "holder", "count", "partitions"), rows)


def _nobody(topic: str, partitions: set[int]) -> tuple[Any, ...]:
    return (topic, Text("nobody", "red"), len(partitions), ranges(partitions))


def _handoffs(answer: DescribeGroupResponse) -> Table:
    rows = [
        (
            f"{one.topic}/{one.partition}",
            one.old_owner,
            _marked(one.new_owner or "nobody", one.warm),
            one.step,
            one.cause,
            _when(one.started_at),
        )
        for one in answer.handoffs
    ]
    return table("", ("partition", "from", "to", "step", "cause", "since"), rows)


def _conditions(answer: DescribeGroupResponse) -> Table:
    return table("", ("kind", "what"), [(one.kind, one.message) for one in answer.conditions])


def _quarantined(answer: DescribeGroupResponse) -> Table:
    rows = [(f"{one.topic}/{one.partition}", ", ".join(one.failed), one.reason) for one in answer.quarantined]
    return table("", ("partition", "failed at", "reason"), rows)


def _history(answer: DescribeGroupResponse) -> Table:
    rows = [
        (
            _when(one.at),
            f"{one.topic}/{one.partition}",
            one.old_owner or "nobody",
            _marked(one.new_owner or "nobody", one.warm),
            one.cause,
            one.generation,
            one.epoch,
        )
        for one in answer.history[-_HISTORY_LINES:]
    ]
    return table("", ("at", "partition", "from", "to", "cause", "generation", "epoch"), rows)


def _marked(name: str, warm: bool) -> str:
    """`warm`: it held a standby copy."""
    return f"{name} (standby)" if warm else name


def _when(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds else ""
