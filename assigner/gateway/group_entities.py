"""Makes the entities of answers that groups of both kinds give: fetched offsets and descriptions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from assigner.gateway.codec import Schema, error_code, make, nested
from assigner.model.kafka_groups import ClassicGroupDescription, FetchedOffset, KafkaError

KNOWS_MISSING_GROUPS = 6
"""The version of DescribeGroups from which on there is a code for a group that is not there."""


def by_topic(kind: Schema, offsets: Iterable[FetchedOffset]) -> list[tuple[str, tuple[Any, ...]]]:
    found: dict[str, list[Any]] = {}
    for one in offsets:
        found.setdefault(one.topic, []).append(fetched_offset(kind, one))
    return [(name, tuple(partitions)) for name, partitions in found.items()]


def fetched_offset(kind: Schema, one: FetchedOffset) -> Any:
    return make(
        kind,
        partition_index=one.partition,
        committed_offset=one.offset,
        committed_leader_epoch=one.leader_epoch,
        metadata=one.metadata,
        error_code=error_code(one.error),
    )


def described_group(response: Schema, version: int, one: ClassicGroupDescription) -> Any:
    member = nested(response, "DescribedGroupMember")
    # Before, such a group is described as dead, and no more.
    hidden = one.error is KafkaError.GROUP_ID_NOT_FOUND and version < KNOWS_MISSING_GROUPS
    return make(
        nested(response, "DescribedGroup"),
        error_code=error_code(KafkaError.NONE if hidden else one.error),
        error_message=f"Group {one.group} not found." if one.error is KafkaError.GROUP_ID_NOT_FOUND else None,
        group_id=one.group,
        group_state=one.state.value,
        protocol_type=one.protocol_type,
        protocol_data=one.protocol,
        members=tuple(
            make(
                member,
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in one.members
        ),
    )
