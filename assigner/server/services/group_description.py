"""Encodes a group's description in steps, between which other tasks run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Any, TypeVar, cast

from assigner.api import GroupDescription, GroupSummary, Member, RouterMember
from assigner.model.names import session_digest
from assigner.model.records import Handoff, Move, Quarantined, TopicConfig
from assigner.proto.classic_groups import message_of
from assigner.proto.runtime import message_class
from assigner.server.services.requests import options_message

_STEP = 500
T = TypeVar("T")


async def in_steps(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run after every 500."""
    rest = iter(items)
    while step := list(islice(rest, _STEP)):
        for item in step:
            yield item
        await asyncio.sleep(0)


async def described(group: GroupDescription) -> bytes:
    reply = message_class("DescribeGroupResponse")(
        leader_address=group.leader_address, epoch_floor=group.epoch_floor, unreadable=group.unreadable
    )
    reply.summary.MergeFrom(message_class("GroupSummary")(**summary_fields(group.summary)))
    reply.options.MergeFromString(bytes(options_message(group.options)))
    async for member in in_steps(group.members):
        reply.consumers.add(**_member(member))
    async for config in in_steps(group.topics):
        reply.topics.add(**topic_fields(config))
    numbers: dict[str, int] = {}
    await _ownership(reply, group, numbers)
    await _standbys(reply, group, numbers)
    reply.owners.extend(numbers)
    async for handoff in in_steps(group.handoffs):
        reply.handoffs.add(**_handoff(handoff))
    for router in group.routers:
        reply.routers.add(**_router(router))
    async for one in in_steps(group.quarantined):
        reply.quarantined.add(**_quarantined(one))
    for condition in group.conditions:
        reply.conditions.add(kind=condition.kind, message=condition.message)
    if group.classic is not None:
        reply.classic.MergeFrom(message_of("ClassicDescription", group.classic))
    async for move in in_steps(group.history):
        reply.history.add(**_move(move))
    return cast(bytes, reply.SerializeToString())


async def _ownership(reply: Any, group: GroupDescription, numbers: dict[str, int]) -> None:
    """Add the ownership of all topics. `numbers`: name -> its index, in order of first use."""
    entry: Any = None
    async for owned in in_steps(group.ownership):
        if entry is None or entry.topic != owned.tp.topic:
            entry = reply.ownership.add(topic=owned.tp.topic)
        entry.partitions.append(owned.tp.partition)
        entry.owners.append(numbers.setdefault(owned.owner, len(numbers)))
        entry.epochs.append(owned.epoch)


async def _standbys(reply: Any, group: GroupDescription, numbers: dict[str, int]) -> None:
    entry: Any = None
    async for record in in_steps(group.standbys):
        if entry is None or entry.topic != record.topic:
            entry = reply.standbys.add(topic=record.topic)
        entry.partitions.extend([record.partition] * len(record.holders))
        entry.holders.extend([numbers.setdefault(name, len(numbers)) for name in record.holders])


def summary_fields(summary: GroupSummary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in summary.__struct_fields__}


def topic_fields(config: TopicConfig) -> dict[str, Any]:
    racks = sorted({rack for racks in config.replica_racks for rack in racks})
    number = {rack: index for index, rack in enumerate(racks)}
    return {
        "name": config.topic,
        "partitions": config.partition_count,
        "topic_id": config.topic_id,
        "source": config.source,
        "racks": racks,
        "replica_racks": [
            item for of_one in config.replica_racks for item in (len(of_one), *(number[rack] for rack in of_one))
        ],
    }


def _member(member: Member) -> dict[str, Any]:
    consumer = member.consumer
    return {
        "name": consumer.consumer_name,
        "session": session_digest(consumer.session),
        "status": consumer.status.value,
        "capacity": consumer.capacity,
        "rack": consumer.rack,
        "topics": consumer.topics,
        "address": consumer.address,
        "instance": consumer.instance,
        "owned": member.owned,
        "warming": member.warming,
        "releasing": member.releasing,
        "evicted": consumer.evicted,
        "generation": consumer.generation,
        "registered_at": consumer.registered_at,
        "standbys": member.standbys,
        "principal": consumer.principal,
        "kind": consumer.kind,
        "client_id": consumer.client_id,
        "host": consumer.host,
        "pattern": consumer.pattern,
        "away": consumer.away,
        "explicit_topics": consumer.explicit_topics,
        "cold": consumer.cold,
        "release_timeout": consumer.release_timeout,
        **({} if member.silent_for is None else {"silent_for": member.silent_for}),
    }


def _handoff(handoff: Handoff) -> dict[str, Any]:
    return {
        "topic": handoff.topic,
        "partition": handoff.partition,
        "old_owner": handoff.old_owner,
        "new_owner": handoff.new_owner,
        "step": handoff.at.value,
        "handoff_id": handoff.handoff_id,
        "cause": handoff.cause.value,
        "started_at": handoff.started_at,
        "warm": handoff.warm,
        "unacked": handoff.unacked,
    }


def _router(router: RouterMember) -> dict[str, Any]:
    return {
        "name": router.name,
        "session": router.session,
        "unacked": router.unacked,
        "principal": router.principal,
        **({} if router.silent_for is None else {"silent_for": router.silent_for}),
    }


def _quarantined(one: Quarantined) -> dict[str, Any]:
    return {"topic": one.topic, "partition": one.partition, "failed": one.failed, "reason": one.reason}


def _move(move: Move) -> dict[str, Any]:
    return {
        "at": move.at,
        "topic": move.topic,
        "partition": move.partition,
        "old_owner": move.old,
        "new_owner": move.new,
        "cause": move.cause.value,
        "generation": move.generation,
        "epoch": move.epoch,
        "warm": move.warm,
        "unacked": move.unacked,
    }
