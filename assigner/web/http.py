"""Handles one HTTP connection: malformed requests get an answer without a stack trace in the log, and no answer names
our libraries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

SERVER = "kafka-assigner"
_KEEP_ALIVE = 30.0


class HttpProtocol(web.RequestHandler):
    """The asyncio protocol of one connection."""

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
