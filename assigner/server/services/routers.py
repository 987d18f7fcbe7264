"""Serves the calls of routers: checks requests, calls `Routers`, and sends tables over the routers' streams."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from grpclib.const import Handler
from grpclib.server import Stream

from assigner.api import Routers, RouterStream
from assigner.model.routes import RoutingOpening
from assigner.proto.kafka_assigner import v1
from assigner.server.services.assignment_encoding import encode_refusals
from assigner.server.services.requests import Requests
from assigner.server.services.route_encoding import encode
from assigner.server.services.streams import Incarnation, StreamCleanup, closing, no_incarnation
from assigner.server.transport.calls import deliver, receive, streaming, unary
from assigner.server.transport.http2 import PeerConnection
from assigner.server.transport.status import reason_for

PATH = "/kafka_assigner.v1.Router/"


class RouterCalls:
    def __init__(
        self,
        routers: Routers,
        requests: Requests,
        cleanup: StreamCleanup,
        incarnation: Incarnation = no_incarnation,
    ) -> None:
        self._routers = routers
        self._requests = requests
        self._cleanup = cleanup
        self._incarnation = incarnation

    def __mapping__(self) -> dict[str, Handler]:
        return {
            PATH + "RegisterRouter": streaming(self.register, v1.RegisterRouterRequest, v1.RoutingUpdate),
            PATH + "RenewRouter": unary(self.renew, v1.RenewRouterRequest, v1.RenewRouterResponse),
            PATH + "CutoverAck": unary(self.cutover_ack, v1.CutoverAckRequest, v1.CutoverAckResponse),
            PATH + "DeregisterRouter": unary(self.deregister, v1.DeregisterRouterRequest, v1.DeregisterRouterResponse),
        }

    # --- the stream ---

    async def register(self, stream: Stream[v1.RegisterRouterRequest, v1.RoutingUpdate]) -> None:
        request: v1.RegisterRouterRequest = await receive(stream)
        registration = self._requests.router_registration(request)
        connection = cast(PeerConnection, stream._stream.connection)
        # Before the group is read: the table is never older than the incarnation that is sent with it.
        incarnation = await self._incarnation()
        router = await self._routers.register(registration)
        try:
            # A router's connection is as worth keeping as a consumer's: all its traffic waits for it.
            with connection.with_consumer():
                await stream.send_initial_metadata()
                await self._send_updates(stream, router, incarnation)
        finally:
            await self._cleanup.leave(router)

    async def _send_updates(self, stream: Stream[Any, Any], router: RouterStream, incarnation: str) -> None:
        opened = False
        async with closing(router.updates()) as updates:
            async for changes in updates:
                if not opened:
                    opening = RoutingOpening(router.ttl, incarnation)
                    changes, opened = msgspec.structs.replace(changes, opening=opening), True
                await deliver(stream, encode(changes))

    # --- unary calls ---

    async def renew(self, request: v1.RenewRouterRequest) -> v1.RenewRouterResponse:
        ttl = await self._routers.renew(*self._requests.router(request), principal=self._requests.principal)
        return v1.RenewRouterResponse(ttl_ms=round(ttl * 1000))

    async def cutover_ack(self, request: v1.CutoverAckRequest) -> bytes:
        who, acks = self._requests.router(request), self._requests.freeze_acks(request)
        refused = await self._routers.cutover_ack(*who, acks, principal=self._requests.principal)
        reasons = [(one.tp, reason_for(one.error, PATH + "CutoverAck")) for one in refused]
        return encode_refusals(reasons, "CutoverAckResponse")

    async def deregister(self, request: v1.DeregisterRouterRequest) -> v1.DeregisterRouterResponse:
        await self._routers.deregister(*self._requests.router(request), principal=self._requests.principal)
        return v1.DeregisterRouterResponse()
