"""Runs cleanup during a shutdown: shielded from the cancellation that caused it, and bounded by a timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc


async def shielded(work: Callable[[], Awaitable[None]], timeout: float) -> None:
    """Shield the block from the caller's cancellation; it is abandoned after `timeout` seconds, without an error."""
    with anyio.move_on_after(timeout, shield=True):
        await work()


@asynccontextmanager
async def background() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Open a task group whose tasks are cancelled when the context ends."""
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()
