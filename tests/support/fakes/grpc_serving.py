"""A gRPC server with fakes behind it, and what tests need to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.exceptions import GRPCError

from assigner.clock import Clock, SystemClock
from assigner.model.keys import Keys
from assigner.proto.kafka_assigner import v1
from assigner.server import GrpcServer, ServerSettings
from assigner.server.settings import AuthSettings
from tests.support.fakes.fake_routers import FakeRouters
from tests.support.fakes.fake_service import FakeAdministration, FakeConsumerStream, FakeMembers, FakeOffsets

ROOMY = Configuration(http2_connection_window_size=64 * 1024 * 1024, http2_stream_window_size=1024 * 1024)


class Serving:
    """A running server and its clients."""

    def __init__(
        self,
        server: GrpcServer,
        members: FakeMembers,
        administration: FakeAdministration,
        offsets: FakeOffsets,
        routers: FakeRouters,
    ) -> None:
        self.server = server
        self.routers = routers
        self.members = members
        self.administration = administration
        self.offsets = offsets
        self._channels: list[Channel] = []

    def channel(self, **options: Any) -> Channel:
        options.setdefault("config", ROOMY)
        channel = Channel("127.0.0.1", self.server.port, **options)
        self._channels.append(channel)
        return channel

    def consumer(self, **options: Any) -> v1.KafkaAssignerStub:
        return v1.KafkaAssignerStub(self.channel(**options))

    def router(self, **options: Any) -> v1.RouterStub:
        return v1.RouterStub(self.channel(**options))

    def admin(self) -> v1.AdminStub:
        return v1.AdminStub(self.channel())

    def refused(self, reason: str) -> int:
        return self.server.statistics().refused[reason]

    async def stream(self, name: str) -> FakeConsumerStream:
        await eventually(lambda: name in self.members.streams)
        return self.members.streams[name]

    def hang_up(self) -> None:
        for channel in self._channels:
            channel.close()


@asynccontextmanager
async def serving(
    ready: Callable[[], bool] = lambda: True,
    auth: AuthSettings = AuthSettings(required=False),  # noqa: B008  (frozen)
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Serving]:
    members, administration, offsets = FakeMembers(), FakeAdministration(), FakeOffsets()
    routers = FakeRouters()
    server = GrpcServer(
        ServerSettings(port=0, **settings),
        members,
        administration,
        offsets,
        routers,
        default_group="default",
        clock=clock or SystemClock(),
        ready=ready,
        check_group=Keys().check_group,
        auth=auth,
    )
    await server.start()
    running = Serving(server, members, administration, offsets, routers)
    try:
        yield running
    finally:
        running.hang_up()
        await server.close()


async def eventually(condition: Callable[[], bool], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - the conditions are of many kinds
            await asyncio.sleep(0.005)


async def status_of(call: Any) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value


async def still_serves(service: Serving) -> None:
    response = await service.consumer().renew(v1.RenewRequest(consumer_name="other"), timeout=15)
    assert response.ttl_ms == 30_000
