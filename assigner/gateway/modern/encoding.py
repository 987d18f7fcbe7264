"""Turns kio's entities of the calls that only Kafka 4's protocol has into values of the core, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from assigner.core.group import GroupState
from assigner.core.kafka_groups.modern.member import Answer
from assigner.core.kafka_groups.modern.requests import Heartbeat, Refusal
from assigner.gateway.codec import NO_TIME, Schema, error_code, make, milliseconds, nested, response_class
from assigner.gateway.requests import Entity
from assigner.gateway.topics import KafkaTopics
from assigner.model.kafka_groups import KafkaError
from assigner.model.keys import TopicPartition

HEARTBEAT, DESCRIBE = 68, 69
CONSUMER_MEMBER = 1
"""The type of a member in a description; 0 is a classic one."""
_NO_OPERATIONS = -(2**31)
"""Authorized operations that were not asked for, or are not known."""


def topic_ids(entity: Entity) -> list[UUID]:
    """The ids of the topics that a heartbeat names."""
    return [topic.topic_id for topic in entity.topic_partitions or () if topic.topic_id is not None]


def heartbeat(entity: Entity, topics: KafkaTopics, state: GroupState | None) -> Heartbeat:
    """The heartbeat of an entity. A topic id that nobody knows becomes a name that no topic has."""
    timeout = entity.rebalance_timeout.total_seconds()
    return Heartbeat(
        group=entity.group_id,
        member_id=entity.member_id,
        member_epoch=entity.member_epoch,
        instance_id=entity.instance_id,
        rack=entity.rack_id,
        rebalance_timeout=timeout if timeout >= 0 else None,
        names=None if entity.subscribed_topic_names is None else tuple(entity.subscribed_topic_names),
        pattern=getattr(entity, "subscribed_topic_regex", None),
        assignor=entity.server_assignor,
        owned=None if entity.topic_partitions is None else _owned(entity.topic_partitions, topics, state),
    )


def _owned(named: Iterable[Any], topics: KafkaTopics, state: GroupState | None) -> frozenset[TopicPartition]:
    found = set[TopicPartition]()
    for topic in named:
        name = topics.name_of(state, topic.topic_id) if topic.topic_id else None
        found.update(TopicPartition(name or f"~{topic.topic_id}", partition) for partition in topic.partitions)
    return frozenset(found)


def heartbeat_answer(
    version: int, request: Heartbeat, answer: Answer, interval: float, topics: KafkaTopics, state: GroupState | None
) -> Entity:
    response = response_class(HEARTBEAT, version)
    told = answer.assignment
    return make(
        response,
        throttle_time=NO_TIME,
        error_code=error_code(KafkaError.NONE),
        member_id=request.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=milliseconds(round(interval * 1000)),
        assignment=None if told is None else _assignment(response, told, topics, state),
    )


def refusal(version: int, refused: Refusal) -> Entity:
    return make(
        response_class(HEARTBEAT, version),
        throttle_time=NO_TIME,
        error_code=error_code(refused.code),
        error_message=refused.message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=NO_TIME,
        assignment=None,
    )


def _assignment(
    response: Schema, tps: Iterable[TopicPartition], topics: KafkaTopics, state: GroupState | None
) -> Entity:
    partitions = nested(response, "TopicPartitions")
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(tps):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    told = (
        make(partitions, topic_id=topic_id, topic_name=name, partitions=tuple(numbers))
        for name, numbers in by_topic.items()
        if (topic_id := topics.id_of(state, name)) is not None
    )
    return make(nested(response, "Assignment"), topic_partitions=tuple(told))


# --- descriptions ------------------------------------------------------------------------------------------------


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    rack: str
    epoch: int
    client_id: str
    host: str
    topics: tuple[str, ...]
    pattern: str
    assigned: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    error: KafkaError = KafkaError.NONE
    message: str | None = None
    state: str = ""
    generation: int = 0
    strategy: str = ""
    members: tuple[MemberView, ...] = ()


def description(version: int, groups: Sequence[tuple[GroupView, GroupState | None]], topics: KafkaTopics) -> Entity:
    response = response_class(DESCRIBE, version)
    return make(
        response,
        throttle_time=NO_TIME,
        groups=tuple(_group(response, view, topics, state) for view, state in groups),
    )


def _group(response: Schema, view: GroupView, topics: KafkaTopics, state: GroupState | None) -> Entity:
    member = nested(response, "Member")
    return make(
        nested(response, "DescribedGroup"),
        error_code=error_code(view.error),
        error_message=view.message,
        group_id=view.group,
        group_state=view.state,
        group_epoch=view.generation,
        assignment_epoch=view.generation,
        assignor_name=view.strategy,
        members=tuple(
            make(
                member,
                member_id=one.member_id,
                instance_id=one.instance_id,
                rack_id=one.rack or None,
                member_epoch=one.epoch,
                client_id=one.client_id,
                client_host=one.host,
                subscribed_topic_names=one.topics,
                subscribed_topic_regex=one.pattern or None,
                assignment=_assignment(response, one.assigned, topics, state),
                target_assignment=_assignment(response, one.target, topics, state),
                member_type=CONSUMER_MEMBER,
            )
            for one in view.members
        ),
        authorized_operations=_NO_OPERATIONS,
    )
