"""Runs one bidirectional stream: sends requests and receives answers until either side ends it or the connection fails.

Leases and watches have one shared stream each, and decide themselves what to send again on the next stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from assigner.aio.supervision import is_cancelled
from assigner.backends.etcd import rpc
from assigner.backends.etcd.connection import Connection
from assigner.backends.etcd.rpc import StreamCall


async def run_stream(
    connection: Connection,
    begin: Callable[[], StreamCall],
    *,
    next_request: Callable[[], Awaitable[Any]],
    receive: Callable[[Any], None],
    stop: anyio.Event,
) -> Any | None:
    """Run the stream to its end; return grpc's error, or None after a clean end, a `stop` or a failed connection."""
    if connection.failed.is_set():
        return None
    with connection.in_use():
        try:
            call = begin()
        except rpc.UsageError:
            return rpc.never_sent()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_write, call, next_request)
                tasks.start_soon(_cancel_on, connection.failed, tasks.cancel_scope)
                tasks.start_soon(_cancel_on, stop, tasks.cancel_scope)
                error = await _read(call, receive)
                tasks.cancel_scope.cancel()
                return error
        finally:
            call.cancel()
    return None


async def _read(call: StreamCall, receive: Callable[[Any], None]) -> Any | None:
    try:
        while (answer := await call.read()) is not rpc.EOF:
            receive(answer)
    except rpc.RpcError as error:
        return error
    except asyncio.CancelledError:
        # It may be grpc's own CancelledError, if the writer was cancelled first or the channel was closed. anyio would
        # not recognise that one, and it would end the task that runs the stream.
        if await is_cancelled():
            raise
        return rpc.cancelled()
    return None


async def _write(call: StreamCall, next_request: Callable[[], Awaitable[Any]]) -> None:
    try:
        while True:
            await call.write(await next_request())
    except (rpc.RpcError, rpc.UsageError, asyncio.InvalidStateError):
        # The stream has ended; the reader gets the error.
        return


async def _cancel_on(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
