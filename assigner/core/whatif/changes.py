"""Changes of a `GroupSpec`: add or remove a member, change a capacity, a weight or a topic. Each returns a new spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from assigner.core.whatif.group_spec import GroupSpec, MemberSpec, TopicSpec
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition

_replace = msgspec.structs.replace


def join(spec: GroupSpec, member: MemberSpec) -> GroupSpec:
    """Add a member that registers after all others."""
    if any(known.name == member.name for known in spec.members):
        raise InvalidInput(f"member {member.name} is in the group already; choose another name")
    latest = max((known.registered_at for known in spec.members), default=0)
    return _replace(spec, members=(*spec.members, _replace(member, registered_at=latest + 1)))


def leave(spec: GroupSpec, name: str) -> GroupSpec:
    _member(spec, name)
    return _replace(spec, members=tuple(member for member in spec.members if member.name != name))


def change_member(spec: GroupSpec, name: str, **changes: Any) -> GroupSpec:
    changed = _replace(_member(spec, name), **changes)
    return _replace(spec, members=tuple(changed if m.name == name else m for m in spec.members))


def resize(spec: GroupSpec, topic: str, partitions: int) -> GroupSpec:
    """Change a topic's number of partitions, or add a topic. Weights and racks of remaining partitions are kept."""
    old = next((known for known in spec.topics if known.name == topic), None)
    if old is None:
        return _replace(spec, topics=(*spec.topics, TopicSpec(name=topic, partitions=partitions)))
    weights = old.weights and (*old.weights[:partitions], *[1.0] * (partitions - len(old.weights)))
    racks = old.replica_racks[: max(partitions, 0)]
    new = _replace(old, partitions=partitions, weights=weights, replica_racks=racks)
    return _replace(spec, topics=tuple(new if t.name == topic else t for t in spec.topics))


def weigh(spec: GroupSpec, weights: Mapping[TopicPartition, float]) -> GroupSpec:
    for tp, weight in weights.items():
        topic = next((known for known in spec.topics if known.name == tp.topic), None)
        if topic is None or not 0 <= tp.partition < topic.partitions:
            raise InvalidInput(f"there is no partition {tp}; weigh one that exists")
        row = list(topic.weights or [1.0] * topic.partitions)
        row[tp.partition] = weight
        changed = _replace(topic, weights=tuple(row))
        spec = _replace(spec, topics=tuple(changed if t.name == tp.topic else t for t in spec.topics))
    return spec


def _member(spec: GroupSpec, name: str) -> MemberSpec:
    found = next((member for member in spec.members if member.name == name), None)
    if found is None:
        known = ", ".join(sorted(member.name for member in spec.members)) or "none"
        raise InvalidInput(f"no member {name}; members: {known}")
    return found
