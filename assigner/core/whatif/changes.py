"""Changes of a sketch: a member more or less, another capacity or weight, another topic. Each returns a new sketch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from assigner.core.whatif.sketch import Sketch, SketchedMember, SketchedTopic
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition

_replace = msgspec.structs.replace


def join(sketch: Sketch, member: SketchedMember) -> Sketch:
    """Add a member that registers after all others."""
    if any(known.name == member.name for known in sketch.members):
        raise InvalidInput(f"member {member.name} is in the group already; choose another name")
    latest = max((known.registered_at for known in sketch.members), default=0)
    return _replace(sketch, members=(*sketch.members, _replace(member, registered_at=latest + 1)))


def leave(sketch: Sketch, name: str) -> Sketch:
    _member(sketch, name)
    return _replace(sketch, members=tuple(member for member in sketch.members if member.name != name))


def change_member(sketch: Sketch, name: str, **changes: Any) -> Sketch:
    changed = _replace(_member(sketch, name), **changes)
    return _replace(sketch, members=tuple(changed if m.name == name else m for m in sketch.members))


def resize(sketch: Sketch, topic: str, partitions: int) -> Sketch:
    """Change a topic's number of partitions, or add a topic. Weights and racks of remaining partitions are kept."""
    old = next((known for known in sketch.topics if known.name == topic), None)
    if old is None:
        return _replace(sketch, topics=(*sketch.topics, SketchedTopic(name=topic, partitions=partitions)))
    weights = old.weights and (*old.weights[:partitions], *[1.0] * (partitions - len(old.weights)))
    racks = old.replica_racks[: max(partitions, 0)]
    new = _replace(old, partitions=partitions, weights=weights, replica_racks=racks)
    return _replace(sketch, topics=tuple(new if t.name == topic else t for t in sketch.topics))


def weigh(sketch: Sketch, weights: Mapping[TopicPartition, float]) -> Sketch:
    for tp, weight in weights.items():
        topic = next((known for known in sketch.topics if known.name == tp.topic), None)
        if topic is None or not 0 <= tp.partition < topic.partitions:
            raise InvalidInput(f"there is no partition {tp}; weigh one that exists")
        row = list(topic.weights or [1.0] * topic.partitions)
        row[tp.partition] = weight
        changed = _replace(topic, weights=tuple(row))
        sketch = _replace(sketch, topics=tuple(changed if t.name == tp.topic else t for t in sketch.topics))
    return sketch


def _member(sketch: Sketch, name: str) -> SketchedMember:
    found = next((member for member in sketch.members if member.name == name), None)
    if found is None:
        known = ", ".join(sorted(member.name for member in sketch.members)) or "none"
        raise InvalidInput(f"no member {name}; members: {known}")
    return found
