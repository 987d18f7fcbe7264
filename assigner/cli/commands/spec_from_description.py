"""Converts the service's description of a running group into a `GroupSpec`, for what-if plans.

A partition with a handoff in flight counts as owned by the handoff's new owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from assigner.cli.commands.options import plain
from assigner.core.whatif.group_spec import GroupSpec, MemberSpec, TopicSpec
from assigner.proto.kafka_assigner.v1 import (
    ConsumerInfo,
    DescribeGroupResponse,
    DescribeLoadsResponse,
    GroupOptions,
    Topic,
)

_READY = "Ready"
Held = dict[str, dict[str, list[int]]]
"""Consumer -> topic -> partitions."""


def spec_of(reply: DescribeGroupResponse) -> GroupSpec:
    """The spec of a described group. Consumers that may get no partitions are left out; what they own is unowned."""
    options: dict[str, Any] = plain(reply.options or GroupOptions())
    owned, standbys = _owned(reply), _standbys(reply)
    return GroupSpec(
        members=tuple(_member(one, owned, standbys) for one in reply.consumers if _counts(one)),
        topics=tuple(_topic(one) for one in reply.topics),
        strategy=options.get("strategy", "sticky_balanced"),
        strategy_options=options.get("strategy_options", {}),
        standby_count=options.get("standby_count", 0),
        copartitioned=tuple(tuple(topics) for topics in options.get("copartitioned", ())),
        rollout=options.get("rollout", ""),
        rollout_cap=options.get("rollout_cap", 0),
    )


def with_weights(spec: GroupSpec, loads: DescribeLoadsResponse) -> GroupSpec:
    """The spec with the weights of `loads`. The heaviest partitions are listed; the others get their mean."""
    known = {(one.topic, one.partition): one.weight for one in loads.heaviest}
    rest = loads.partitions - len(known)
    mean = (loads.total - sum(known.values())) / rest if rest else 0.0
    # A spec takes positive weights only, so a partition without any reported load gets a small one.
    floor = max(mean, loads.total / max(loads.partitions, 1) * 1e-3) or 1.0
    topics = tuple(
        msgspec.structs.replace(
            topic,
            weights=tuple(max(known.get((topic.name, n), floor), floor * 1e-3) for n in range(topic.partitions)),
        )
        for topic in spec.topics
    )
    return msgspec.structs.replace(spec, topics=topics)


def _counts(one: ConsumerInfo) -> bool:
    wants_something = bool(one.topics) or not one.explicit_topics
    return one.status == _READY and not one.evicted and wants_something


def _member(one: ConsumerInfo, owned: Held, standbys: Held) -> MemberSpec:
    return MemberSpec(
        name=one.name,
        capacity=one.capacity,
        rack=one.rack,
        topics=tuple(one.topics),
        deployment=one.generation,
        registered_at=one.registered_at,
        owned=_frozen(owned.get(one.name, {})),
        standbys=_frozen(standbys.get(one.name, {})),
    )


def _topic(one: Topic) -> TopicSpec:
    return TopicSpec(
        name=one.name, partitions=one.partitions, replica_racks=tuple(_racks(one.racks, iter(one.replica_racks)))
    )


def _racks(names: list[str], numbers: Iterator[int]) -> Iterator[tuple[str, ...]]:
    for count in numbers:
        yield tuple(names[next(numbers)] for _ in range(count))


def _frozen(held: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(numbers) for topic, numbers in held.items()}


def _owned(reply: DescribeGroupResponse) -> Held:
    going = {(one.topic, one.partition): one.new_owner for one in reply.handoffs if one.step != "complete"}
    return _by_name(
        (going.get((topic.topic, partition), reply.owners[owner]), topic.topic, partition)
        for topic in reply.ownership
        for partition, owner in zip(topic.partitions, topic.owners, strict=True)
    )


def _standbys(reply: DescribeGroupResponse) -> Held:
    return _by_name(
        (reply.owners[holder], topic.topic, partition)
        for topic in reply.standbys
        for partition, holder in zip(topic.partitions, topic.holders, strict=True)
    )


def _by_name(rows: Iterable[tuple[str, str, int]]) -> Held:
    held: Held = {}
    for name, topic, partition in rows:
        held.setdefault(name, {}).setdefault(topic, []).append(partition)
    return held
