"""Switch off rules about routed requests: at the owner's gate, at acks of freezes, and in a router's drain."""

from __future__ import annotations

from typing import Any

import msgspec

from assigner.client.gate import PartitionGate
from assigner.core.routers import acks, quorum
from assigner.core.routing.cutover import Cutovers, CutoverStep
from assigner.core.writes import Write
from assigner.model.keys import GroupKeys, TopicPartition
from assigner.model.records import Handoff, Router, RouterAck, Stored
from assigner.model.routes import FreezeAck
from tests.chaos.ablation.mutations import Patch


def gates_admit_any_epoch(patch: Patch) -> None:
    def changed(self: PartitionGate, epoch: int | None) -> int:
        with self._lock:
            self._inside += 1
        return epoch or 0

    patch.setattr(PartitionGate, "_begin", changed)
    patch.setattr(PartitionGate, "check", lambda self, epoch: epoch)


def late_acks_are_recorded_for_the_present_handoff(patch: Patch) -> None:
    original = acks.freeze_ack

    def changed(
        keys: GroupKeys,
        handoff: Stored[Handoff],
        router: Stored[Router],
        known: Stored[RouterAck] | None,
        ack: FreezeAck,
        now: int,
    ) -> Write | None:
        about_this_one = msgspec.structs.replace(ack, handoff_id=handoff.record.identity)
        return original(keys, handoff, router, known, about_this_one, now)

    patch.setattr("assigner.routers.acks.freeze_ack", changed)


def freezes_wait_for_nobody(patch: Patch) -> None:
    patch.setattr(quorum, "missing", lambda state, tp: [])


def acks_do_not_wait_for_the_drain(patch: Patch) -> None:
    original: Any = Cutovers._freeze

    def changed(self: Cutovers, tp: TopicPartition, handoff_id: str) -> list[CutoverStep]:
        steps: list[CutoverStep] = original(self, tp, handoff_id)
        freeze = self._freezes[tp]
        freeze.drained = True
        self._acknowledge(tp, freeze)
        return steps

    patch.setattr(Cutovers, "_freeze", changed)
