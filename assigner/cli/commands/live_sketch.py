"""A running group as a sketch: what it is now, with what is in flight counted where it goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from assigner.cli.commands.options import plain
from assigner.core.whatif.sketch import Sketch, SketchedMember, SketchedTopic
from assigner.proto.kafka_assigner.v1 import (
    ConsumerInfo,
    DescribeGroupResponse,
    DescribeLoadsResponse,
    GroupOptions,
    Topic,
)

_READY = "Ready"
Held = dict[str, dict[str, list[int]]]
"""Partitions by topic, by consumer."""


def sketch_of(answer: DescribeGroupResponse) -> Sketch:
    """Only consumers that can be given partitions are members; what others own counts as unowned."""
    options: dict[str, Any] = plain(answer.options or GroupOptions())
    owned, standbys = _owned(answer), _standbys(answer)
    return Sketch(
        members=tuple(_member(one, owned, standbys) for one in answer.consumers if _counts(one)),
        topics=tuple(_topic(one) for one in answer.topics),
        strategy=options.get("strategy", "sticky_balanced"),
        strategy_options=options.get("strategy_options", {}),
        standby_count=options.get("standby_count", 0),
        copartitioned=tuple(tuple(topics) for topics in options.get("copartitioned", ())),
        rollout=options.get("rollout", ""),
        rollout_cap=options.get("rollout_cap", 0),
    )


def weighed(sketch: Sketch, loads: DescribeLoadsResponse) -> Sketch:
    """With the weights that are told. The lighter ones of a large group are not; they count as the rest's mean."""
    told = {(one.topic, one.partition): one.weight for one in loads.heaviest}
    rest = loads.partitions - len(told)
    mean = (loads.total - sum(told.values())) / rest if rest else 0.0
    # A weight is more than nothing, and one that nobody reported is no reason to refuse the rest.
    floor = max(mean, loads.total / max(loads.partitions, 1) * 1e-3) or 1.0
    topics = tuple(
        msgspec.structs.replace(
            topic,
            weights=tuple(max(told.get((topic.name, n), floor), floor * 1e-3) for n in range(topic.partitions)),
        )
        for topic in sketch.topics
    )
    return msgspec.structs.replace(sketch, topics=topics)


def _counts(one: ConsumerInfo) -> bool:
    return one.status == _READY and not one.evicted


def _member(one: ConsumerInfo, owned: Held, standbys: Held) -> SketchedMember:
    return SketchedMember(
        name=one.name,
        capacity=one.capacity,
        rack=one.rack,
        topics=tuple(one.topics),
        deployment=one.generation,
        registered_at=one.registered_at,
        owned=_frozen(owned.get(one.name, {})),
        standbys=_frozen(standbys.get(one.name, {})),
    )


def _topic(one: Topic) -> SketchedTopic:
    return SketchedTopic(
        name=one.name, partitions=one.partitions, replica_racks=tuple(_racks(one.racks, iter(one.replica_racks)))
    )


def _racks(names: list[str], numbers: Iterator[int]) -> Iterator[tuple[str, ...]]:
    for count in numbers:
        yield tuple(names[next(numbers)] for _ in range(count))


def _frozen(held: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(numbers) for topic, numbers in held.items()}


def _owned(answer: DescribeGroupResponse) -> Held:
    going = {(one.topic, one.partition): one.new_owner for one in answer.handoffs if one.step != "complete"}
    return _by_name(
        (going.get((topic.topic, partition), answer.owners[owner]), topic.topic, partition)
        for topic in answer.ownership
        for partition, owner in zip(topic.partitions, topic.owners, strict=True)
    )


def _standbys(answer: DescribeGroupResponse) -> Held:
    return _by_name(
        (answer.owners[holder], topic.topic, partition)
        for topic in answer.standbys
        for partition, holder in zip(topic.partitions, topic.holders, strict=True)
    )


def _by_name(rows: Iterable[tuple[str, str, int]]) -> Held:
    held: Held = {}
    for name, topic, partition in rows:
        held.setdefault(name, {}).setdefault(topic, []).append(partition)
    return held
