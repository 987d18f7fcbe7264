"""A handler that notes what it hears, and a consumer around it with times that suit a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from assigner.client import AssignerConsumer, Handler, Ownership, Release, Timing, TopicPartition, Warm
from assigner.clock import LoopClock
from assigner.testing.virtual_time import VirtualTimeLoop
from assigner.testing.waiting import eventually
from tests.support.fakes.scripted_assigner import TOPIC, ScriptedAssigner

QUICK = Timing(call_timeout=10.0, keepalive=0.3, keepalive_timeout=5.0, first_pause=0.01, longest_pause=0.05)


class Recorder(Handler):
    """Notes each call; a test may make one wait or fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.during: dict[str, Callable[[], Awaitable[None]]] = {}
        """What to do inside a call, by its note or by its kind."""

    async def assigned(self, partition: Ownership) -> None:
        await self._note("assigned", str(partition))

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        await self._note("warm", str(partition))

    async def release(self, partition: Ownership, order: Release) -> None:
        await self._note("release", str(partition))

    async def revoked(self, partition: Ownership, reason: str) -> None:
        await self._note("revoked", str(partition))

    async def discard(self, partition: TopicPartition) -> None:
        await self._note("discard", str(partition))

    async def _note(self, kind: str, what: str) -> None:
        note = f"{kind} {what}"
        self.calls.append(note)
        during = self.during.get(note) or self.during.get(kind)
        if during is None:
            return
        try:
            await during()
        except asyncio.CancelledError:
            self.calls.append(f"cancelled {note}")
            raise


@asynccontextmanager
async def consuming(service: ScriptedAssigner, handler: Handler, **options: Any) -> AsyncIterator[AssignerConsumer]:
    """A consumer of the service; on a virtual-time loop its clock is virtual too."""
    options.setdefault("timing", QUICK)
    if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        options.setdefault("clock", LoopClock())
    addresses = options.pop("addresses", [service.address])
    with anyio.fail_after(60):
        async with AssignerConsumer(addresses, "billing", "worker-1", [TOPIC], handler, **options) as consumer:
            yield consumer


async def owns(consumer: AssignerConsumer, **epochs: int) -> None:
    wanted = {TopicPartition(TOPIC, int(name.removeprefix("p"))): epoch for name, epoch in epochs.items()}
    await eventually(lambda: consumer.partitions == wanted, within=30, every=0.003, what=f"owns {epochs}")
