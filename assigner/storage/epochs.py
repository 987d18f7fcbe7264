"""Keeps epochs from going back when records are deleted: raises a group's epoch floor to the epochs in them first."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from assigner.errors import UnreadableRecord
from assigner.model.keys import AssignmentKey, GroupKeys, HandoffKey, Keys, PlanKey
from assigner.model.records import Assignment, Handoff, Offset, Plan, Stored, decode
from assigner.storage.update import update
from assigner.store import Entry, Store


def epoch_of(keys: Keys, group: GroupKeys, entry: Entry) -> int:
    """The highest epoch in a record. Raises `UnreadableRecord` for a record whose epoch can't be read."""
    match group.parse(entry.key):
        case AssignmentKey():
            return decode(Assignment, entry.value)[0].epoch
        case HandoffKey():
            handoff = decode(Handoff, entry.value)[0]
            return max(handoff.epoch, handoff.old_epoch)
        case PlanKey():
            return decode(Plan, entry.value)[0].epoch_floor
    if keys.parse_offset(group.group, entry.key) is not None:
        try:
            return decode(Offset, entry.value)[0].epoch
        except UnreadableRecord:
            return 0
    return 0


async def raise_group_floor(store: Store, keys: Keys, group: GroupKeys, entries: Iterable[Entry]) -> None:
    """Raise the group's epoch floor to the epochs of records that are to be deleted."""
    highest = max((epoch_of(keys, group, entry) for entry in entries), default=0)

    def raised(current: Stored[Plan] | None) -> Plan | None:
        plan = current.record if current else Plan()
        return msgspec.structs.replace(plan, epoch_floor=highest) if plan.epoch_floor < highest else None

    await update(store, group.plan, Plan, raised, what=f"the plan of group {group.group!r}")
