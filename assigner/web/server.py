"""Serves probes and metrics over HTTP, on the event loop of the service.

It serves a table of routes, to which others can be added. Nothing here changes state, and nothing is authenticated: it
listens on loopback unless the settings say otherwise.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from assigner.clock import Clock
from assigner.errors import InvalidInput
from assigner.logs import get_logger
from assigner.model.defaults import HTTP_PORT
from assigner.observability.metrics import CONTENT_TYPE, Metrics
from assigner.web.liveness import ProcessLiveness

_log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
SERVER = "kafka-assigner"
_KEEP_ALIVE = 30.0
MAX_BODY = 64 * 1024
MAX_CONNECTIONS = 256
"""Far more than probes and scrapes need, far less than a process's limit of open files."""
_BACKLOG = 128
_ACCEPTED_AT_ONCE = 4
"""asyncio accepts as many connections in one callback as its backlog, and logs each failure; so its backlog is smaller
than the socket's."""
_CLOSE_SECONDS = 2.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Readiness = Callable[[], Sequence[str]]
"""Returns why the instance should get no traffic now; empty: it is ready."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address of the HTTP server, and how long a stall makes `/livez` fail."""

    host: str = LOOPBACK
    port: int = HTTP_PORT
    stall: float = 10.0
    """Seconds without a tick of the loop after which /livez fails."""


class Route(msgspec.Struct, frozen=True):
    path: str
    handler: Handler
    method: str = "GET"


class WebServer:
    def __init__(
        self,
        settings: HttpSettings,
        readiness: Readiness,
        liveness: ProcessLiveness,
        metrics: Metrics,
        clock: Clock,
        routes: Sequence[Route] = (),
        warnings: Readiness = tuple,
    ) -> None:
        """`routes` are served beside the probes. `warnings`: lines that `/readyz` adds to its answer without
        failing."""
        self._settings = settings
        self._readiness = readiness
        self._warnings = warnings
        self._liveness = liveness
        self._metrics = metrics
        self._started = clock.now()
        self._clock = clock
        self._extra = tuple(routes)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self.port = 0

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._scrape),
            Route("/", self._index),
            *self._extra,
        )

    async def start(self) -> None:
        """Listen, and start the ticker. Raises `InvalidInput` when it can't bind the address."""
        app = web.Application(client_max_size=MAX_BODY)
        for route in self.routes():
            # Probes and load balancers send HEAD as well as GET.
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                app.router.add_route(method, route.path, route.handler)
        app.on_response_prepare.append(replace_server_header)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._admit, self._settings.host, self._settings.port, backlog=_ACCEPTED_AT_ONCE
            )
        except OSError as error:
            await self._runner.cleanup()
            where = f"{self._settings.host}:{self._settings.port}"
            raise InvalidInput(f"can't serve HTTP on {where}: {error.strerror}; choose another --http-port") from error
        for listening in self._listener.sockets:
            with socket.fromfd(listening.fileno(), listening.family, listening.type) as twin:
                twin.listen(_BACKLOG)
        self.port = self._listener.sockets[0].getsockname()[1]
        _log.debug("http_listening", host=self._settings.host, port=self.port)
        self._ticker = asyncio.create_task(self._liveness.run(self._metrics.loop_lag), name="liveness-ticker")

    async def close(self) -> None:
        """Finish the requests in flight, for `_CLOSE_SECONDS` at most, then close the port."""
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _admit(self) -> asyncio.Protocol:
        """Accept a connection; at the limit, close the oldest one. Answers take milliseconds, so an old connection is
        idle, and a probe is never rejected in its favour."""
        assert self._runner is not None
        assert self._runner.server is not None
        here = [one for one in self._runner.server.connections if one.transport is not None]
        for oldest in here[: max(0, len(here) + 1 - MAX_CONNECTIONS)]:
            oldest.force_close()
            self._metrics.refused("http_connections")
        return HttpProtocol(self._runner.server, lambda: self._metrics.refused("http_malformed"))

    # Handlers. ---------------------------------------------------------------------------------------------------

    async def _livez(self, _request: web.Request) -> web.Response:
        problems = self._liveness.problems()
        if self._ticker is None or self._ticker.done():
            problems.append("event loop ticker is not running")
        return _probe(problems)

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _probe(self._readiness(), self._warnings())

    async def _scrape(self, _request: web.Request) -> web.Response:
        text = await self._metrics.render()
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE, **_NO_STORE})

    async def _index(self, _request: web.Request) -> web.Response:
        paths = "\n".join(route.path for route in self.routes() if route.path != "/")
        up = self._clock.now() - self._started
        return web.Response(text=f"kafka-assigner, up for {up:.0f} s\n{paths}\n", headers=_NO_STORE)


_NO_STORE = {"Cache-Control": "no-store"}


def _probe(problems: Sequence[str], warnings: Sequence[str] = ()) -> web.Response:
    lines = [*(problems or ["ok"]), *(f"warning: {warning}" for warning in warnings)]
    return web.Response(status=503 if problems else 200, text="\n".join(lines) + "\n", headers=_NO_STORE)


# One connection. ------------------------------------------------------------------------------------------------------


class HttpProtocol(web.RequestHandler):
    """The asyncio protocol of one connection: malformed requests get an answer without a stack trace in the log, and no
    answer names our libraries."""

    __slots__ = ("_on_malformed",)

    def __init__(self, server: web.Server, on_malformed: Callable[[], None]) -> None:
        loop, no_log = asyncio.get_running_loop(), cast(Any, None)
        super().__init__(server, loop=loop, access_log=no_log, keepalive_timeout=_KEEP_ALIVE)
        self._on_malformed = on_malformed

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        answer: web.StreamResponse
        if isinstance(exc, HttpProcessingError):
            self._on_malformed()
            if request.writer.output_size > 0:
                raise ConnectionError("an answer was begun already; another can't follow")
            answer = web.Response(status=status, text=message or "not understood")
            answer.force_close()
        else:
            answer = super().handle_error(request, status, exc, message)
        answer.headers["Server"] = SERVER
        return answer


async def replace_server_header(_request: web.BaseRequest, answer: web.StreamResponse) -> None:
    """Replace the `Server` header, in which aiohttp names its own and Python's version."""
    answer.headers["Server"] = SERVER
