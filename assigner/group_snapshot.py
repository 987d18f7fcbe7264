"""A group's state as the few numbers that metrics show."""

from __future__ import annotations

from collections import Counter

from assigner.core.group import GroupState
from assigner.metrics import GroupSnapshot
from assigner.records import Status


def snapshot(state: GroupState, is_leader: bool) -> GroupSnapshot:
    if not is_leader:
        return GroupSnapshot(group=state.keys.group)
    partitions = state.partitions()
    ready = [name for name, consumer in state.consumers.items() if consumer.record.status is Status.READY]
    owned = {name: len(state.owned.get(name, ())) for name in state.consumers}
    counts = [owned[name] for name in ready] or [0]
    return GroupSnapshot(
        group=state.keys.group,
        is_leader=True,
        generation=state.plan.generation,
        consumers=Counter(consumer.record.status for consumer in state.consumers.values()),
        partitions=partitions,
        unowned=state.unowned(),
        quarantined=len(state.plan.quarantined),
        owned_min=min(counts),
        owned_max=max(counts),
        imbalance=max(counts) - min(counts),
        handoffs=Counter(handoff.record.at for handoff in state.handoffs.values()),
        unreadable=len(state.unreadable),
        standbys=sum(len(state.copies.get(name, ())) for name in state.consumers),
        owned=owned,
    )
