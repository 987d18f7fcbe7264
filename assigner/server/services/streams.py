"""Ends the streams of consumers and routers: each is left exactly once, however its call ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Protocol, TypeVar

from assigner.logs import get_logger

Incarnation = Callable[[], Awaitable[str]]
"""Returns the identity of the store's data; empty: it has none."""
T = TypeVar("T")

_log = get_logger(__name__)


async def no_incarnation() -> str:
    """Return the empty incarnation, for a store without one."""
    return ""


class OpenStream(Protocol):
    async def leave(self) -> None: ...


class StreamCleanup:
    """Leaves streams in tasks of their own, because the task of a call may be cancelled more than once."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def leave(self, stream: OpenStream) -> None:
        task = asyncio.get_running_loop().create_task(_leave(stream), name="cleanup of a stream")
        self._tasks.add(task)
        task.add_done_callback(self._left)
        await asyncio.shield(task)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("grpc_stream_cleanup_failed", exc_info=error)

    async def finished(self) -> None:
        """Wait until every ended stream has been left."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Stop leaving streams: their sessions end with their leases."""
        for task in self._tasks:
            task.cancel()
        await self.finished()


async def _leave(stream: OpenStream) -> None:
    await stream.leave()


def closing(items: AsyncIterator[T]) -> AbstractAsyncContextManager[Any]:
    """Iterate in this block, and close the iterator at its end, if it can be closed; it need not have `aclose`."""
    return aclosing(_closable(items))


async def _closable(items: AsyncIterator[Any]) -> Any:
    try:
        async for item in items:
            yield item
    finally:
        close: Callable[[], Any] | None = getattr(items, "aclose", None)
        if close is not None:
            await close()
