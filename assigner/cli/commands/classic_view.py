"""Renders what is on record of a classic Kafka group: its members, and what they have agreed upon.

Subscriptions and assignments are the members' own bytes. What is not a Kafka consumer's, such as Kafka Connect's, is
shown by its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from assigner.cli.output import ranges
from assigner.core.kafka_groups.classic.consumer_protocol import (
    CONSUMER,
    Unreadable,
    decode_assignment,
    decode_subscription,
)
from assigner.proto.kafka_assigner.v1 import ClassicDescription, ClassicMemberDescription

MEMBER_COLUMNS = ("member", "client id", "host", "instance id", "", "topics", "owned")


class ClassicMember(msgspec.Struct, frozen=True):
    """A member, with its bytes decoded."""

    described: ClassicMemberDescription
    topics: tuple[str, ...] | None
    """Subscribed; None: that can't be read."""
    assigned: tuple[tuple[str, tuple[int, ...]], ...] | None
    """(topic, partitions); None: that can't be read."""

    @property
    def name(self) -> str:
        return self.described.instance_id or self.described.member_id


def members_of(group: ClassicDescription) -> list[ClassicMember]:
    found = [_decoded(one, group.protocol_type) for one in group.members]
    return sorted(found, key=lambda one: (one.described.client_id, one.name))


def _decoded(member: ClassicMemberDescription, protocol_type: str) -> ClassicMember:
    if protocol_type != CONSUMER:
        return ClassicMember(member, None, None)
    try:
        topics: Any = decode_subscription(member.metadata).topics if member.metadata else ()
    except Unreadable:
        topics = None
    try:
        assigned: Any = decode_assignment(member.assignment).partitions if member.assignment else ()
    except Unreadable:
        assigned = None
    return ClassicMember(member, topics, assigned)


def state_line(group: ClassicDescription, leader_address: str) -> str:
    parts = [f"classic group, {group.state}", f"generation {max(0, group.generation)}"]
    if group.protocol:
        parts.append(f"{group.protocol_type or 'no'} protocol {group.protocol}")
    if leader_address:
        parts.append(f"coordinator at {leader_address}")
    return "; ".join(parts)


def member_rows(group: ClassicDescription) -> Iterator[tuple[Any, ...]]:
    for one in members_of(group):
        member = one.described
        yield (
            member.member_id,
            member.client_id,
            member.client_host.lstrip("/"),
            member.instance_id or "",
            "leader" if member.member_id == group.leader else "",
            f"{len(member.metadata)} bytes" if one.topics is None else ",".join(one.topics),
            f"{len(member.assignment)} bytes" if one.assigned is None else sum(len(some) for _, some in one.assigned),
        )


def ownership(group: ClassicDescription) -> dict[str, dict[str, set[int]]]:
    """Topic -> member -> the partitions assigned to it."""
    found: dict[str, dict[str, set[int]]] = {}
    for one in members_of(group):
        for topic, partitions in one.assigned or ():
            found.setdefault(topic, {}).setdefault(one.name, set()).update(partitions)
    return found


def ownership_rows(group: ClassicDescription) -> Iterator[tuple[Any, ...]]:
    for topic, owners in sorted(ownership(group).items()):
        for name, partitions in sorted(owners.items()):
            yield topic, name, len(partitions), ranges(partitions)


def plain(group: ClassicDescription) -> dict[str, Any]:
    """The group as plain data."""
    return {
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "generation": group.generation,
        "leader": group.leader,
        "members": [
            {
                "member_id": one.described.member_id,
                "instance_id": one.described.instance_id,
                "client_id": one.described.client_id,
                "host": one.described.client_host,
                "topics": None if one.topics is None else list(one.topics),
                "assigned": None if one.assigned is None else {topic: list(some) for topic, some in one.assigned},
            }
            for one in members_of(group)
        ],
    }
