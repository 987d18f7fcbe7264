"""A rollout in a sketch: what the service would ask of its members while two deployments are there.

Consumers that are leaving are no members of a sketch. The service counts them when it reckons how large the new
deployment will be, so the caps of newcomers may be a little smaller there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assigner.core.rollout import Rollout, applied, plan_rollout
from assigner.core.sketch import Interned, Sketch
from assigner.errors import InvalidInput
from assigner.records import Consumer, GroupOptions
from assigner.strategy import NONE


def rolled_out(sketch: Sketch, interned: Interned) -> tuple[Interned, Rollout | None]:
    """The problem with the rollout's wishes in it, if one is on. A member's own cap comes instead of the rollout's."""
    if sketch.rollout_cap < 0:
        raise InvalidInput(f"rollout_cap is {sketch.rollout_cap}; it must be 0 (a fair share) or more")
    options = GroupOptions(rollout=sketch.rollout, rollout_cap=sketch.rollout_cap)
    partitions = {topic.name: topic.partitions for topic in sketch.topics}
    unit = max(map(len, sketch.copartitioned), default=1)
    members = _consumers(sketch)
    rollout = plan_rollout(members, members, options, partitions, unit=unit)
    if rollout is None:
        return interned, None
    own = interned.problem.members.cap != NONE
    rollout = replace(rollout, cap=np.where(own, NONE, rollout.cap).astype(np.int32))
    return replace(interned, problem=applied(interned.problem, rollout)), rollout


def _consumers(sketch: Sketch) -> list[Consumer]:
    """In the order of the problem's rows."""
    return [
        Consumer(
            consumer_name=member.name,
            generation=member.deployment,
            registered_at=member.registered_at,
            capacity=member.capacity,
            topics=member.topics,
        )
        for member in sorted(sketch.members, key=lambda member: member.name)
    ]
