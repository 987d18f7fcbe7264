"""A running group as a sketch: what it is now, with what is in flight counted where it goes."""

from __future__ import annotations

from typing import Any

from assigner.cli.options import plain
from assigner.core.sketch import Sketch, SketchedMember, SketchedTopic
from assigner.proto.kafka_assigner.v1 import ConsumerInfo, DescribeGroupResponse, GroupOptions

_READY = "Ready"


def sketch_of(answer: DescribeGroupResponse) -> Sketch:
    """Only consumers that can be given partitions are members; what others own counts as unowned."""
    options: dict[str, Any] = plain(answer.options or GroupOptions())
    owned = _owned(answer)
    members = tuple(_member(one, owned.get(one.name, {})) for one in answer.consumers if _counts(one))
    return Sketch(
        members=members,
        topics=tuple(SketchedTopic(name=one.name, partitions=one.partitions) for one in answer.topics),
        strategy=options.get("strategy", "sticky_balanced"),
        strategy_options=options.get("strategy_options", {}),
        standby_count=options.get("standby_count", 0),
        copartitioned=tuple(tuple(topics) for topics in options.get("copartitioned", ())),
    )


def _counts(one: ConsumerInfo) -> bool:
    return one.status == _READY and not one.evicted


def _member(one: ConsumerInfo, owned: dict[str, list[int]]) -> SketchedMember:
    return SketchedMember(
        name=one.name,
        capacity=one.capacity,
        rack=one.rack,
        topics=tuple(one.topics),
        owned={topic: tuple(numbers) for topic, numbers in owned.items()},
    )


def _owned(answer: DescribeGroupResponse) -> dict[str, dict[str, list[int]]]:
    going = {(one.topic, one.partition): one.new_owner for one in answer.handoffs if one.step != "complete"}
    owned: dict[str, dict[str, list[int]]] = {}
    for topic in answer.ownership:
        for partition, owner in zip(topic.partitions, topic.owners, strict=True):
            name = going.get((topic.topic, partition), answer.owners[owner])
            owned.setdefault(name, {}).setdefault(topic.topic, []).append(partition)
    return owned
