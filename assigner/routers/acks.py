"""Writes the acks of freezes to the store, as records under the router's lease.

`assigner.core.routers.acks` decides what an ack does, `assigner.streams.acks` writes it. An ack is written under the
registration that the caller has in the store; one that changed meanwhile, because the router registered at another
instance, is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from assigner.api import RejectedAck
from assigner.core.group import GroupState
from assigner.core.routers.acks import check_ack, freeze_ack
from assigner.core.writes import Write
from assigner.errors import AssignerError
from assigner.model.records import Handoff, Router, Stored
from assigner.model.routes import FreezeAck
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.mirror import GroupMirror
from assigner.store import Store
from assigner.streams.acks import AckDecisions, AckWriter

LookUp = Callable[[], Awaitable[Stored[Router]]]
"""Reads the caller's registration from the store, and raises if it may not ack any more."""


class FreezeAcks:
    def __init__(self, store: Store, writer: BatchWriter) -> None:
        self._writer = AckWriter(store, writer)

    async def write(
        self, mirror: GroupMirror, router: Stored[Router], look_up: LookUp, acks: Sequence[FreezeAck], now: int
    ) -> list[RejectedAck]:
        """Write the acks and return the rejected ones. `now`: wall time, for people."""
        rejected: list[RejectedAck] = []
        proper: list[FreezeAck] = []
        # One ack per partition: the last one, should a batch name a partition twice.
        for ack in {ack.tp: ack for ack in acks}.values():
            try:
                check_ack(ack)
                proper.append(ack)
            except AssignerError as error:
                rejected.append(RejectedAck(ack.tp, error))
        decisions = _FreezeDecisions(mirror.state, router, look_up, now)
        return [*rejected, *await self._writer.write_all(mirror, proper, decisions)]


class _FreezeDecisions(AckDecisions[FreezeAck]):
    def __init__(self, state: GroupState, router: Stored[Router], look_up: LookUp, now: int) -> None:
        self._state = state
        self._router = router
        self._look_up = look_up
        self._now = now

    def decide(self, ack: FreezeAck, handoff: Stored[Handoff]) -> Write | None:
        known = self._state.acks.get(ack.tp, {}).get(self._router.record.router_name)
        return freeze_ack(self._state.keys, handoff, self._router, known, ack, self._now)

    async def refresh(self) -> None:
        self._router = await self._look_up()
