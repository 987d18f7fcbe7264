"""The part of a scripted service that any fake needs: a real port, broken calls and connections, and named errors."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any, Self

import anyio
import anyio.lowlevel
from grpclib.const import Status
from grpclib.events import SendTrailingMetadata, listen
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from assigner.testing.waiting import eventually


class Refusal(GRPCError):
    """A status with the name of the service's error, as the real service sends it."""

    def __init__(self, status: Status, message: str, error: str = "") -> None:
        super().__init__(status, message)
        self.error = error


SUPERSEDED = Refusal(Status.ABORTED, "another session took over", "Superseded")
EVICTED = Refusal(Status.ABORTED, "the release took too long", "Evicted")
NOT_REGISTERED = Refusal(Status.NOT_FOUND, "no such session", "NotRegistered")
UNAVAILABLE = Refusal(Status.UNAVAILABLE, "the store does not answer", "StoreUnavailable")


class _TrackingServer(Server):
    """Knows its connections, so that a test can break them."""

    def __init__(self, handlers: Sequence[Any]) -> None:
        super().__init__(handlers)
        self.protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self.protocols.append(protocol)
        return protocol


class ScriptedService:
    """A base class beside that of the generated stubs."""

    def __init__(self) -> None:
        self.fail: dict[str, GRPCError] = {}
        """Errors by method name, until they are taken away."""
        self.fail_once: dict[str, GRPCError] = {}
        self.failed: list[str] = []
        self.hang: set[str] = set()
        """Methods that never answer."""
        self.hold: dict[str, anyio.Event] = {}
        """Methods that answer once the event is set."""
        self.asked: list[str] = []
        self.port = 0
        self._named = {known.message or "": known.error for known in (SUPERSEDED, EVICTED, NOT_REGISTERED)}
        self._server: _TrackingServer | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = _TrackingServer([self])
        listen(self._server, SendTrailingMetadata, self._name_the_error)
        await self._server.start("127.0.0.1", self.port, ssl=tls)
        listening: Any = self._server._server
        self.port = listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if killed: connections are cut, nothing is said."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None
            await anyio.lowlevel.checkpoint()

    def cut(self) -> None:
        for transport in self._transports():
            transport.abort()

    def freeze(self) -> None:
        """Connections stay open and nobody reads them."""
        for transport in self._transports():
            transport.pause_reading()

    def _transports(self) -> list[Any]:
        assert self._server is not None
        made = [protocol for protocol in self._server.protocols if hasattr(protocol, "connection")]
        return [one.connection._transport for one in made if not one.connection.is_closing()]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def receives(self, condition: Callable[[], bool]) -> None:
        await eventually(condition, within=30.0, every=0.003)

    async def _script(self, *names: str) -> None:
        for name in names:
            self.asked.append(name)
            if name in self.hold:
                await self.hold[name].wait()
            if name in self.hang:
                await anyio.sleep_forever()
            error = self.fail_once.pop(name, None) or self.fail.get(name)
            if error is not None:
                self._remember(error)
                self.failed.append(name)
                raise error

    def _remember(self, error: GRPCError) -> None:
        if isinstance(error, Refusal):
            self._named[error.message or ""] = error.error

    async def _name_the_error(self, event: SendTrailingMetadata) -> None:
        name = self._named.get(event.status_message or "")
        if name:
            event.metadata["assigner-error"] = name
