"""Reads what is on record of classic Kafka groups, for listings and descriptions at any instance.

The record is a group's last durable generation. What its leader has decided since, a rebalance that has begun for
example, is in no record: whoever has to know it asks the leader.
"""

from __future__ import annotations

from assigner.core.kafka_groups.classic.records import unpack
from assigner.errors import UnreadableRecord
from assigner.model.kafka_groups import (
    ClassicGroupDescription,
    ClassicGroupRecord,
    ClassicMemberDescription,
    ClassicMemberRecord,
    ClassicMembersRecord,
    ClassicState,
)
from assigner.model.keys import Keys
from assigner.model.records import decode
from assigner.storage.multi_get import multi_get
from assigner.store import Found, Store

_TRIES = 3


async def read_classic(store: Store, keys: Keys, group: str) -> ClassicGroupRecord | None:
    """Read the group with all its members; None: nothing is on record. Raises `UnreadableRecord`."""
    missing: UnreadableRecord | None = None
    for _ in range(_TRIES):
        found = await store.get(keys.kafka_state(group))
        if not isinstance(found, Found):
            return None
        state = decode(ClassicGroupRecord, found.entry.value)[0]
        try:
            return unpack(state, await _blocks(store, keys, group, state))[0]
        except UnreadableRecord as error:
            # Blocks are deleted when a later record has replaced the one that names them.
            missing = error
    assert missing is not None
    raise missing


async def _blocks(store: Store, keys: Keys, group: str, state: ClassicGroupRecord) -> dict[int, ClassicMembersRecord]:
    if not state.blocks:
        return {}
    found = await multi_get(store, [keys.kafka_members(group, number) for number in state.blocks])
    return {
        number: decode(ClassicMembersRecord, one.entry.value)[0]
        for number, one in zip(state.blocks, found, strict=True)
        if isinstance(one, Found)
    }


def described(group: str, record: ClassicGroupRecord | None) -> ClassicGroupDescription:
    if record is None:
        return ClassicGroupDescription(group=group, state=ClassicState.EMPTY)
    return ClassicGroupDescription(
        group=group,
        state=ClassicState.EMPTY if record.is_empty else ClassicState.STABLE,
        protocol_type=record.protocol_type or "",
        protocol=record.protocol or "",
        generation=record.generation,
        leader=record.leader or "",
        members=tuple(_member(one, record.protocol) for one in record.members),
    )


def _member(member: ClassicMemberRecord, protocol: str | None) -> ClassicMemberDescription:
    return ClassicMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        metadata=dict(member.protocols).get(protocol or "", b""),
        assignment=member.assignment,
    )
