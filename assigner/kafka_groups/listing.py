"""Lists classic groups with their state: those that are led here as they are now, the others as they are on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assigner.core.kafka_groups.classic.machine import ClassicGroup
from assigner.errors import UnreadableRecord
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicState, ListedGroup
from assigner.model.keys import Keys
from assigner.model.names import org_and_group
from assigner.model.records import decode
from assigner.storage.multi_get import multi_get
from assigner.store import Found, GetResult, Store

_AT_ONCE = 32
"""Records read at a time: one may have hundreds of members."""


async def listed(
    store: Store, keys: Keys, groups: Sequence[str], live: Mapping[str, ClassicGroup]
) -> tuple[ListedGroup, ...]:
    """`live`: the machines of groups that are led here."""
    found = {group: _live(group, machine) for group, machine in live.items() if group in set(groups)}
    others = [group for group in groups if group not in found]
    for start in range(0, len(others), _AT_ONCE):
        part = others[start : start + _AT_ONCE]
        results = await multi_get(store, [keys.kafka_state(group) for group in part])
        found.update((group, _recorded(group, result)) for group, result in zip(part, results, strict=True))
    return tuple(found[group] for group in groups)


def _live(group: str, machine: ClassicGroup) -> ListedGroup:
    return ListedGroup(group=org_and_group(group)[1], protocol_type=machine.protocol_type or "", state=machine.state)


def _recorded(group: str, result: GetResult) -> ListedGroup:
    name = org_and_group(group)[1]
    if not isinstance(result, Found):
        return ListedGroup(group=name)
    try:
        record = decode(ClassicGroupRecord, result.entry.value)[0]
    except UnreadableRecord:
        return ListedGroup(group=name, state=ClassicState.DEAD)
    state = ClassicState.EMPTY if record.is_empty else ClassicState.STABLE
    return ListedGroup(group=name, protocol_type=record.protocol_type or "", state=state)
