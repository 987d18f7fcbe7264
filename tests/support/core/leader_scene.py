"""The parts that a leader's machines share, over a group written down record by record."""

from __future__ import annotations

from assigner.core.leader_context import LeaderContext
from assigner.core.liveness import SessionLiveness
from assigner.core.transitions import Transitions
from assigner.core.work_queue import WorkQueue
from assigner.core.writes import PendingWrites
from tests.support.core.plan_scene import Scene

TTL = 30.0


def context_of(scene: Scene) -> LeaderContext:
    """Of a leader whose term began at 0, and who has no plan to make."""
    liveness = SessionLiveness(scene.state, ttl=TTL, term_started=0.0)
    work = WorkQueue(scene.state, now=0.0)
    work.plan_due = None
    return LeaderContext(scene.state, liveness, Transitions(scene.state, liveness, str, 1), work, PendingWrites(), TTL)
