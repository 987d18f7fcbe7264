"""Finds the gate for a request whose partition a router named.

`AssignerConsumer.gate` makes a gate for any partition that it is asked for, and keeps it. That suits a program that
asks for its own partitions; a request names whatever its sender likes. So a request for a partition of which the
service has said nothing yet makes no gate. It waits, like one at a gate that is about to open, until the service has
named the partition: a router may hear of a new owner before the owner does.

Not promised: that requests for unknown partitions find room to wait. Those who send many crowd each other out, and
nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from assigner.client.gate import MAX_WAITING, PartitionGate
from assigner.clock import Clock
from assigner.core.client.gate import GateClosed, Shut
from assigner.core.client.state import ClientState
from assigner.model.keys import TopicPartition


class RequestGates:
    """Of one consumer. On the consumer's event loop only."""

    def __init__(self, state: ClientState, clock: Clock, gate: Callable[[TopicPartition], PartitionGate]) -> None:
        self._state = state
        self._clock = clock
        self._gate = gate
        self._waiting = 0
        self._heard_of: dict[TopicPartition, _Hearing] = {}
        """Partitions that requests wait to hear of."""

    def entering(self, tp: TopicPartition, epoch: int, within: float) -> AbstractAsyncContextManager[int]:
        """Admit a request as `PartitionGate.entering` does."""
        if self._state.knows(tp):
            return self._gate(tp).entering(epoch, within=within)
        return self._entering_unknown(tp, epoch, within)

    @property
    def waiting(self) -> int:
        """How many requests wait to hear of their partition."""
        return self._waiting

    def changed(self) -> None:
        """Wake the requests whose partitions the service has named meanwhile, or all if the consumer has ended."""
        for tp, hearing in self._heard_of.items():
            if self._state.over or self._state.knows(tp):
                hearing.event.set()

    @asynccontextmanager
    async def _entering_unknown(self, tp: TopicPartition, epoch: int, within: float) -> AsyncIterator[int]:
        until = self._clock.now() + within
        await self._hear_of(tp, within)
        async with self._gate(tp).entering(epoch, within=max(0.0, until - self._clock.now())) as admitted:
            yield admitted

    async def _hear_of(self, tp: TopicPartition, within: float) -> None:
        self._refuse_if_over(tp)
        if self._waiting >= MAX_WAITING:
            raise GateClosed(tp, Shut.CROWDED)
        hearing = self._heard_of.setdefault(tp, _Hearing())
        self._waiting += 1
        hearing.waiting += 1
        try:
            with anyio.move_on_after(within):
                await hearing.event.wait()
        finally:
            self._waiting -= 1
            hearing.waiting -= 1
            if hearing.waiting == 0:
                del self._heard_of[tp]
        self._refuse_if_over(tp)
        if not self._state.knows(tp):
            raise GateClosed(tp, Shut.NOT_OWNED)

    def _refuse_if_over(self, tp: TopicPartition) -> None:
        if self._state.over:
            raise GateClosed(tp, Shut.CLOSED)


class _Hearing:
    """The requests that wait to hear of one partition."""

    __slots__ = ("event", "waiting")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.waiting = 0
