"""A gateway's wire before brokers, without groups unless handlers are given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from assigner.auth.authenticator import Authenticator
from assigner.gateway.requests import Handlers
from assigner.gateway.server import GatewayServer
from assigner.gateway.settings import GatewaySettings


@asynccontextmanager
async def gateway_before(
    upstream: str, handlers: Handlers | None = None, *, authenticator: Authenticator | None = None, **settings: Any
) -> AsyncIterator[GatewayServer]:
    """Serve before these bootstrap servers, and wait until a broker has its port."""
    chosen = GatewaySettings(**{"port": 0, "upstream": upstream, **settings})
    server = GatewayServer(chosen, authenticator=authenticator)
    async with server.serving(handlers or {}):
        await server.until_ready()
        yield server


def address(server: GatewayServer) -> str:
    """What clients take as bootstrap servers."""
    return f"127.0.0.1:{server.port}"
