"""Owners that serve routed requests over HTTP or gRPC on loopback: real consumers of a real service in this process."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, Self

import aiohttp
import anyio
import anyio.to_thread
import msgspec
import pytest
from aiohttp import web
from google.protobuf.wrappers_pb2 import StringValue
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.events import RecvTrailingMetadata, listen
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from assigner.client import AssignerConsumer, TopicPartition
from assigner.embedded import EmbeddedAssigner
from assigner.model.records import HandoffMode
from assigner.routing import Retries, Router
from assigner.routing.aiohttp import RoutedSession, request_target, routed
from assigner.routing.grpclib import RoutedChannels, admit_routed
from assigner.routing.headers import REFUSED, RequestTarget
from assigner.routing.retries import RequestRouter
from tests.support.clients.recording_handler import QUICK, Recorder

GROUP, TOPIC = "billing", "orders"
PATIENCE = 60.0
METHOD, PROBE = "/test.Echo/Say", "/test.Echo/Probe"


class Answer(msgspec.Struct, frozen=True):
    """What came back, in words that both protocols share."""

    kind: str
    """`done`, `look again`, `come again`, `malformed` or `failed`."""
    text: str = ""
    reason: str = ""
    """Of a refusal."""


class Work:
    """What handlers do with requests, and what a test may make them do."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.targets: list[RequestTarget] = []
        self.may_end: anyio.Event | None = None
        """Requests that begin wait for it."""
        self.failure: Exception | None = None
        self.headers: dict[str, str] = {}
        """That an HTTP owner adds to its answers."""

    async def do(self, text: str, target: RequestTarget) -> str:
        self.begun.append(text)
        self.targets.append(target)
        try:
            if self.may_end is not None:
                await self.may_end.wait()
            if self.failure is not None:
                raise self.failure
        finally:
            self.ended.append(text)
        return f"{text} done"


class Owner(Protocol):
    """A consumer that serves requests on an address of its own."""

    consumer: AssignerConsumer
    handler: Recorder
    work: Work
    address: str

    @abstractmethod
    async def serve(self, at: socket.socket) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def send(self, headers: Mapping[str, str], text: str = "x") -> Answer:
        """Send a request as it is, without a router."""

    @abstractmethod
    async def probe(self) -> Answer:
        """Send a request that needs no target."""


class HttpOwner(Owner):
    def __init__(self, consumer: AssignerConsumer, handler: Recorder, address: str, **options: Any) -> None:
        self.consumer, self.handler, self.address = consumer, handler, address
        self.work = Work()
        self._options = options

    async def serve(self, at: socket.socket) -> None:
        app = web.Application(middlewares=[routed(self.consumer, exempt=["/probe"], **self._options)])
        app.router.add_get("/probe", self._probe)
        app.router.add_route("*", "/say", self._say)
        self._runner = web.AppRunner(app, shutdown_timeout=5.0)
        await self._runner.setup()
        await web.SockSite(self._runner, at).start()
        # One for all requests, so that they share a connection, and with it a task of the server.
        self._session = aiohttp.ClientSession()

    async def stop(self) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def _say(self, request: web.Request) -> web.Response:
        text = await self.work.do(await request.text(), request_target())
        return web.Response(text=text, headers=self.work.headers)

    async def _probe(self, request: web.Request) -> web.Response:
        assert_no_target()
        return web.Response(text="alive")

    async def send(self, headers: Mapping[str, str], text: str = "x") -> Answer:
        return await self._request("POST", "/say", data=text, headers=headers)

    async def probe(self) -> Answer:
        return await self._request("GET", "/probe")

    async def _request(self, method: str, path: str, **options: Any) -> Answer:
        async with self._session.request(method, f"http://{self.address}{path}", **options) as response:
            kinds = {200: "done", 421: "look again", 503: "come again", 400: "malformed"}
            kind = kinds.get(response.status, "failed")
            assert ("Retry-After" in response.headers) == (kind == "come again")
            return Answer(kind, await response.text(), response.headers.get(REFUSED, ""))


class GrpcOwner(Owner):
    def __init__(self, consumer: AssignerConsumer, handler: Recorder, address: str, **options: Any) -> None:
        self.consumer, self.handler, self.address = consumer, handler, address
        self.work = Work()
        self._options = options

    async def serve(self, at: socket.socket) -> None:
        self._server = Server([self])
        admit_routed(self._server, self.consumer, exempt=[PROBE], **self._options)
        await self._server.start(sock=at)

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    def __mapping__(self) -> dict[str, Handler]:
        unary = Cardinality.UNARY_UNARY
        return {
            METHOD: Handler(self._say, unary, StringValue, StringValue),
            PROBE: Handler(self._probe, unary, StringValue, StringValue),
        }

    async def _say(self, stream: Stream[Any, Any]) -> None:
        message = await stream.recv_message()
        assert message is not None
        await stream.send_message(StringValue(value=await self.work.do(message.value, request_target())))

    async def _probe(self, stream: Stream[Any, Any]) -> None:
        await stream.recv_message()
        assert_no_target()
        await stream.send_message(StringValue(value="alive"))

    async def send(self, headers: Mapping[str, str], text: str = "x") -> Answer:
        return await self._call(METHOD, text, headers)

    async def probe(self) -> Answer:
        return await self._call(PROBE, "", {})

    async def _call(self, method: str, text: str, metadata: Mapping[str, str]) -> Answer:
        host, _, port = self.address.partition(":")
        reasons: list[str] = []

        async def on_trailers(event: RecvTrailingMetadata) -> None:
            reasons.append(str(event.metadata.get(REFUSED, "")))

        async with Channel(host, int(port)) as channel:
            listen(channel, RecvTrailingMetadata, on_trailers)
            call = UnaryUnaryMethod(channel, method, StringValue, StringValue)
            try:
                reply = await call(StringValue(value=text), metadata=dict(metadata))
            except GRPCError as error:
                kinds = {
                    Status.FAILED_PRECONDITION: "look again",
                    Status.UNAVAILABLE: "come again",
                    Status.INVALID_ARGUMENT: "malformed",
                }
                return Answer(kinds.get(error.status, "failed"), error.message or "", reasons[-1] if reasons else "")
            return Answer("done", reply.value, reasons[-1])


class Sender:
    """Sends requests by way of a router, over the owners' protocol."""

    def __init__(self, protocol: str, router: RequestRouter, retries: Retries) -> None:
        self._http = RoutedSession(router, retries=retries) if protocol == "http" else None
        self._grpc = RoutedChannels(router, retries=retries)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._http is not None:
                await stack.enter_async_context(self._http)
            await stack.enter_async_context(self._grpc)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def say(self, key: str, text: str = "x", *, idempotent: bool = False) -> str:
        if self._http is not None:
            method = "PUT"
            async with self._http.request(method, TOPIC, key, "/say", data=text, idempotent=idempotent) as response:
                assert response.status == 200, await response.text()
                return await response.text()

        async def call(channel: Channel) -> StringValue:
            reply: StringValue = await UnaryUnaryMethod(channel, METHOD, StringValue, StringValue)(
                StringValue(value=text)
            )
            return reply

        return str((await self._grpc.call(TOPIC, key, call, idempotent=idempotent)).value)


def assert_no_target() -> None:
    with pytest.raises(LookupError, match="has no target"):
        request_target()


OWNERS: dict[str, type[HttpOwner | GrpcOwner]] = {"http": HttpOwner, "grpc": GrpcOwner}


def listening_socket() -> socket.socket:
    at = socket.create_server(("127.0.0.1", 0))
    at.setblocking(False)
    return at


class RoutedGroup:
    """A group whose consumers serve requests over one protocol, and the service it is a group of."""

    def __init__(self, assigner: EmbeddedAssigner, protocol: str) -> None:
        self.assigner = assigner
        self.protocol = protocol

    @asynccontextmanager
    async def owner(self, name: str, handler: Recorder | None = None, **options: Any) -> AsyncIterator[Owner]:
        """A consumer and its server; the consumer leaves first. `options`: of the admission."""
        handler = handler or Recorder()
        at = listening_socket()
        address = "{}:{}".format(*at.getsockname())
        consumer = AssignerConsumer(
            self.assigner.address, GROUP, name, [TOPIC], handler, advertised_address=address, timing=QUICK
        )
        owner = OWNERS[self.protocol](consumer, handler, address, **options)
        await owner.serve(at)
        try:
            async with consumer:
                yield owner
        finally:
            await owner.stop()

    @asynccontextmanager
    async def sender(
        self, name: str = "router-1", retries: Retries | None = None
    ) -> AsyncIterator[tuple[Router, Sender]]:
        async with (
            Router(self.assigner.address, GROUP, name, timing=QUICK) as router,
            Sender(self.protocol, router, retries or Retries()) as sender,
        ):
            yield router, sender


async def owns(owner: Owner, *partitions: int) -> None:
    """Wait until the owner's gates of exactly these partitions are open."""
    wanted = {TopicPartition(TOPIC, number) for number in partitions}
    with anyio.fail_after(PATIENCE):
        await owner.consumer.wait_for(lambda one: one.partitions.keys() == wanted)


@asynccontextmanager
async def routed_group(
    protocol: str, *, partitions: int = 1, mode: HandoffMode = HandoffMode.EXCLUSIVE, **options: Any
) -> AsyncIterator[RoutedGroup]:
    """`options`: of the group."""
    assigner = EmbeddedAssigner(topics={GROUP: {TOPIC: partitions}})
    await anyio.to_thread.run_sync(assigner.__enter__)
    try:
        changes = {"debounce": 0.05, "handoff_mode": mode, **options}
        await anyio.to_thread.run_sync(
            assigner.call, lambda service: service.instance.operations.set_options(GROUP, changes)
        )
        yield RoutedGroup(assigner, protocol)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)
