"""A conversation over one bidirectional stream: requests out, answers in, until either side or the member fails.

Leases and watches each have one such stream for everybody. What to say again on the next stream is their business.
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


async def converse(
    connection: Connection,
    begin: Callable[[], StreamCall],
    *,
    next_request: Callable[[], Awaitable[Any]],
    receive: Callable[[Any], None],
    stop: anyio.Event,
) -> Any | None:
    """Talk until the stream ends; return grpc's error, or None after a clean end, a `stop` or a failed connection."""
    if connection.failed.is_set():
        return None
    with connection.in_use():
        try:
            call = begin()
        except rpc.UsageError:
            return rpc.never_sent()
        try:
            async with anyio.create_task_group() as talk:
                talk.start_soon(_write, call, next_request)
                talk.start_soon(_cancel_on, connection.failed, talk.cancel_scope)
                talk.start_soon(_cancel_on, stop, talk.cancel_scope)
                error = await _read(call, receive)
                talk.cancel_scope.cancel()
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
        # It may be grpc's own, if the writer was cancelled first or the channel was closed: anyio must see one of its
        # own, or the cancellation would go past the conversation and end the task that holds it.
        if await is_cancelled():
            raise
        return rpc.cancelled()
    return None


async def _write(call: StreamCall, next_request: Callable[[], Awaitable[Any]]) -> None:
    try:
        while True:
            await call.write(await next_request())
    except (rpc.RpcError, rpc.UsageError, asyncio.InvalidStateError):
        # The stream is over; the reader is told why.
        return


async def _cancel_on(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
