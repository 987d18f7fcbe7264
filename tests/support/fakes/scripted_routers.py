"""A service of routers that says what the test tells it to say, on a real port, with the generated stubs.

It decides nothing: a test shows tables, breaks calls and connections, and reads what the router sent. Tables are
written by the encoder of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpclib.exceptions import GRPCError

from assigner.model.keys import TopicPartition
from assigner.model.routes import Route, RoutingOpening, TableChanges
from assigner.proto.kafka_assigner import v1
from assigner.server.services.route_encoding import encode
from tests.support.fakes.scripted_service import ScriptedService

TOPIC = "orders"


def at(owner: str, epoch: int, handoff_id: str = "", *, frozen: bool = False) -> Route:
    return Route(owner, f"{owner}:80", epoch, handoff_id, frozen)


class ScriptedRouterStream:
    """One RegisterRouter call."""

    def __init__(self, request: v1.RegisterRouterRequest) -> None:
        self.request = request
        self.gone = False
        self._outbox: asyncio.Queue[v1.RoutingUpdate | GRPCError | None] = asyncio.Queue()

    def send(self, changes: TableChanges) -> None:
        for message in encode(changes):
            if message is not None:
                self._outbox.put_nowait(v1.RoutingUpdate.parse(message))

    def fail(self, error: GRPCError) -> None:
        self._outbox.put_nowait(error)

    def end(self) -> None:
        """Close the stream with OK."""
        self._outbox.put_nowait(None)

    async def messages(self) -> AsyncIterator[v1.RoutingUpdate]:
        try:
            while (item := await self._outbox.get()) is not None:
                if isinstance(item, GRPCError):
                    raise item
                yield item
        finally:
            self.gone = True


class ScriptedRouters(ScriptedService, v1.RouterBase):
    def __init__(self, *, ttl: float = 30.0, partitions: int = 4, **routes: Route) -> None:
        """`routes`: by partition, such as `p0=at("a", 1)`."""
        super().__init__()
        self.ttl = ttl
        self.revision = 1
        self.topics = {TOPIC: partitions}
        self.routes = {TopicPartition(TOPIC, int(name.removeprefix("p"))): route for name, route in routes.items()}
        """What the table at the beginning of a stream says."""
        self.incarnation = ""
        self.opening: Callable[[ScriptedRouterStream], None] = self.greet
        self.streams: list[ScriptedRouterStream] = []
        self.renewals: list[v1.RenewRouterRequest] = []
        self.acks: list[tuple[int, str]] = []
        """Partition and handoff of each, in order."""
        self.ack_calls = 0
        self.deregistrations: list[v1.DeregisterRouterRequest] = []
        self.refuse: Callable[[v1.FreezeAck], str] = lambda _: ""

    @property
    def stream(self) -> ScriptedRouterStream:
        return self.streams[-1]

    def table(self, **changes: Any) -> TableChanges:
        usual: dict[str, Any] = {
            "opening": RoutingOpening(self.ttl, self.incarnation),
            "full": True,
            "revision": self.revision,
            "routes": tuple(self.routes.items()),
            "topics": tuple(self.topics.items()),
        }
        return TableChanges(**{**usual, **changes})

    def greet(self, stream: ScriptedRouterStream) -> None:
        stream.send(self.table())

    def show(self, **routes: Route | None) -> None:
        """`show(p0=at("b", 2))`: a difference, at the next revision, on the newest stream. None: no owner."""
        self.revision += 1
        rows = {TopicPartition(TOPIC, int(name.removeprefix("p"))): route for name, route in routes.items()}
        for tp, route in rows.items():
            if route is None:
                self.routes.pop(tp, None)
            else:
                self.routes[tp] = route
        self.stream.send(
            TableChanges(
                revision=self.revision,
                routes=tuple((tp, route) for tp, route in rows.items() if route is not None),
                unowned=tuple(tp for tp, route in rows.items() if route is None),
            )
        )

    # --- the service -------------------------------------------------------------------------------------------------

    async def register_router(self, message: v1.RegisterRouterRequest) -> AsyncIterator[v1.RoutingUpdate]:
        await self._script("register")
        stream = ScriptedRouterStream(message)
        self.streams.append(stream)
        self.opening(stream)
        async for update in stream.messages():
            yield update

    async def renew_router(self, message: v1.RenewRouterRequest) -> v1.RenewRouterResponse:
        await self._script("renew")
        self.renewals.append(message)
        return v1.RenewRouterResponse(ttl_ms=int(self.ttl * 1000))

    async def cutover_ack(self, message: v1.CutoverAckRequest) -> v1.CutoverAckResponse:
        self.ack_calls += 1
        await self._script("ack")
        self.acks += [(ack.partition, ack.handoff_id) for ack in message.acks]
        refused = [(ack, reason) for ack in message.acks if (reason := self.refuse(ack))]
        return v1.CutoverAckResponse(
            refusals=[
                v1.Refusal(partition=v1.TopicPartition(topic=ack.topic, partition=ack.partition), reason=reason)
                for ack, reason in refused
            ]
        )

    async def deregister_router(self, message: v1.DeregisterRouterRequest) -> v1.DeregisterRouterResponse:
        await self._script("deregister")
        self.deregistrations.append(message)
        return v1.DeregisterRouterResponse()
