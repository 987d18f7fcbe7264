"""Decides the five steps of each partition that changes hands: stop, stash and drain when it freezes, then switch and
flush when it thaws. Changes of the table in, steps and acks out.

A freeze is acknowledged only when its drain has ended, with the id of the handoff that freezes the partition now, and
again whenever it may have been lost: when the freeze is shown again, and when the driver asks for it. Partitions know
nothing of each other, so a drain that does not end delays only its own.

Not promised: that each freeze is acknowledged. One that thaws before its drain has ended is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from assigner.core.routing.table import RowChange
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, Route


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Send no further request of the partition to its owner."""

    tp: TopicPartition


class Stash(msgspec.Struct, frozen=True, gc=False):
    """Keep requests of the partition that arrive from now on."""

    tp: TopicPartition


class Drain(msgspec.Struct, frozen=True, gc=False):
    """Wait until no request of the partition is in flight, then report `drained`."""

    tp: TopicPartition
    number: int
    """To report the end of this drain with."""


class Switch(msgspec.Struct, frozen=True, gc=False):
    """Send requests of the partition to this owner. A drain that still goes on is not needed any more."""

    tp: TopicPartition
    route: Route


class Flush(msgspec.Struct, frozen=True, gc=False):
    """Send what was stashed."""

    tp: TopicPartition


CutoverStep = Stop | Stash | Drain | Switch | Flush


class _Freeze:
    """A frozen partition."""

    __slots__ = ("drained", "handoff_id", "number", "overdue")

    def __init__(self, handoff_id: str, number: int) -> None:
        self.handoff_id = handoff_id
        self.number = number
        """Of the drain."""
        self.drained = False
        self.overdue = False
        """The drain took too long, so that this handoff is not acknowledged."""


class Cutovers:
    """The frozen partitions of one router."""

    def __init__(self) -> None:
        self.acknowledged_count = 0
        self.refused = 0
        self.overdue_count = 0
        self._freezes: dict[TopicPartition, _Freeze] = {}
        self._acks: dict[TopicPartition, FreezeAck] = {}
        self._drains = 0

    # --- events --------------------------------------------------------------------------------------------------

    def changed(self, change: RowChange) -> list[CutoverStep]:
        """A row of the table changed, or a freeze was shown again."""
        tp, before, after = change.tp, change.before, change.after
        if after is not None and after.frozen:
            return self._freeze(tp, after.handoff_id)
        self._freezes.pop(tp, None)
        self._acks.pop(tp, None)
        was_open = before is not None and not before.frozen
        if after is None:
            return [Stop(tp), Stash(tp)] if was_open else []
        if was_open and before is not None and _end(before) == _end(after):
            return []
        return [Switch(tp, after), Flush(tp)]

    def _freeze(self, tp: TopicPartition, handoff_id: str) -> list[CutoverStep]:
        freeze = self._freezes.get(tp)
        if freeze is None:
            freeze = self._freezes[tp] = _Freeze(handoff_id, self._next_drain())
            return [Stop(tp), Stash(tp), Drain(tp, freeze.number)]
        is_other, freeze.handoff_id = freeze.handoff_id != handoff_id, handoff_id
        if is_other and freeze.overdue:
            freeze.overdue, freeze.number = False, self._next_drain()
            return [Drain(tp, freeze.number)]
        # Nothing was sent since the drain ended, for whichever handoff it was.
        self._acknowledge(tp, freeze)
        return []

    def _next_drain(self) -> int:
        self._drains += 1
        return self._drains

    def drained(self, tp: TopicPartition, number: int) -> None:
        """A drain has ended: nothing of the partition is in flight."""
        freeze = self._freezes.get(tp)
        if freeze is not None and freeze.number == number and not freeze.overdue:
            freeze.drained = True
            self._acknowledge(tp, freeze)

    def overdue(self, tp: TopicPartition, number: int) -> bool:
        """A drain took too long, or failed: its handoff is not acknowledged, whatever comes. Returns whether it
        was still needed."""
        freeze = self._freezes.get(tp)
        if freeze is None or freeze.number != number or freeze.drained:
            return False
        freeze.overdue = True
        self.overdue_count += 1
        return True

    # --- acks ----------------------------------------------------------------------------------------------------

    def _acknowledge(self, tp: TopicPartition, freeze: _Freeze) -> None:
        if freeze.drained:
            self._acks[tp] = FreezeAck(tp, freeze.handoff_id)

    def reassert(self) -> None:
        """Acknowledge everything again that is frozen and drained: acks may have been lost, or deleted."""
        for tp, freeze in self._freezes.items():
            self._acknowledge(tp, freeze)

    def pending_acks(self, limit: int) -> list[FreezeAck]:
        """The oldest acks that the service has not answered yet."""
        return list(islice(self._acks.values(), limit))

    def acknowledged(self, sent: Iterable[FreezeAck], refused: frozenset[TopicPartition]) -> None:
        """The service answered these acks, and refused some of them."""
        for ack in sent:
            if self._acks.get(ack.tp) == ack:
                del self._acks[ack.tp]
            if ack.tp in refused:
                self.refused += 1
            else:
                self.acknowledged_count += 1

    # --- questions -----------------------------------------------------------------------------------------------

    @property
    def frozen(self) -> int:
        return len(self._freezes)

    @property
    def draining(self) -> int:
        return sum(not freeze.drained for freeze in self._freezes.values())

    @property
    def unanswered(self) -> int:
        """Acks that the service has not answered yet."""
        return len(self._acks)


def _end(route: Route) -> tuple[str, str, int]:
    return route.owner, route.address, route.epoch
