"""Stand-in for what serves routers behind the gRPC server: it registers anybody, and a test scripts and inspects it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from assigner import api
from assigner.model.routes import FreezeAck, TableChanges


class FakeRouterStream:
    """A stream whose updates the test puts in: a `TableChanges`, an exception to raise, or None to end it."""

    def __init__(self, registration: api.RouterRegistration) -> None:
        self.group = registration.group
        self.name = registration.name
        self.session = registration.session
        self.ttl = 30.0
        self.registration = registration
        self.left = asyncio.Event()
        self._queue: asyncio.Queue[TableChanges | Exception | None] = asyncio.Queue()

    def put(self, *items: TableChanges | Exception | None) -> None:
        for item in items:
            self._queue.put_nowait(item)

    async def updates(self) -> AsyncIterator[TableChanges]:
        while (item := await self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    async def leave(self) -> None:
        assert not self.left.is_set(), "left twice"
        self.left.set()


class FakeRouters:
    def __init__(self) -> None:
        self.streams: dict[str, FakeRouterStream] = {}
        self.opening: TableChanges | None = TableChanges(full=True)
        self.fails: Exception | None = None
        self.refusals: list[api.RejectedAck] = []
        self.renewed: list[tuple[str, str, str]] = []
        self.acked: list[tuple[str, str, str, tuple[FreezeAck, ...]]] = []
        self.deregistered: list[tuple[str, str, str]] = []

    async def register(self, registration: api.RouterRegistration) -> FakeRouterStream:
        self._fail()
        stream = self.streams[registration.name] = FakeRouterStream(registration)
        if self.opening is not None:
            stream.put(self.opening)
        return stream

    async def renew(self, group: str, name: str, session: str, *, principal: str = "") -> float:
        self._fail()
        self.renewed.append((group, name, session))
        return 30.0

    async def cutover_ack(
        self, group: str, name: str, session: str, acks: Sequence[FreezeAck], *, principal: str = ""
    ) -> list[api.RejectedAck]:
        self._fail()
        self.acked.append((group, name, session, tuple(acks)))
        return self.refusals

    async def deregister(self, group: str, name: str, session: str, *, principal: str = "") -> None:
        self._fail()
        self.deregistered.append((group, name, session))

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails
