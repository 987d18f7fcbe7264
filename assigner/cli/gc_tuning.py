"""Keeps Python's garbage collector from stalling the event loop, and frees the memory of closed connections.

A full collection visits every object that could be part of a cycle: with thousands of open streams that takes tenths
of a second, in which no lease is renewed. Nearly everything here is freed by reference counts; so the objects that
exist once the service is up are frozen, and collections become rare. Connections are the exception: TLS and HTTP/2 keep
each in cycles, with their buffers. After many were closed, or a few long ago, one full collection frees them and the
memory is returned to the system. Only `assigner serve` does this; a program that embeds the service decides for itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.to_thread import run_sync

YOUNG, MIDDLE, OLD = 50_000, 20, 100
"""The thresholds of `gc.set_threshold`, one per generation."""
COLLECT_AFTER_CLOSED = 300
"""Closed connections that trigger a full collection."""
COLLECT_EVERY = 120.0
"""Seconds after which even one closed connection triggers a full collection."""
FEW_OPEN = 500
"""Open connections up to which a full collection takes a few hundredths of a second at most."""
_CHECK_EVERY = 5.0
_TLS_BUFFER = 16 * 1024
"""Bytes of asyncio's read buffer per TLS connection: one TLS record instead of the default 256 KiB."""


def freeze() -> None:
    """Exempt all present objects from collection. Call it once, when everything is imported and started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    if hasattr(sslproto.SSLProtocol, "max_size"):
        sslproto.SSLProtocol.max_size = _TLS_BUFFER


async def collect_closed(closed: Callable[[], int], still_open: Callable[[], int]) -> None:
    """Free the memory of closed connections, in an endless loop. `closed` and `still_open` count connections.

    While many connections are open nothing is collected, because a collection would visit all of them and stall the
    loop for longer than a lease lasts.
    """
    loop = asyncio.get_running_loop()
    seen, last = closed(), loop.time()
    while True:
        await anyio.sleep(_CHECK_EVERY)
        new = closed() - seen
        if still_open() > FEW_OPEN:
            continue
        if new >= COLLECT_AFTER_CLOSED or (new and loop.time() - last >= COLLECT_EVERY):
            seen, last = closed(), loop.time()
            gc.collect()
            await run_sync(_trim)


def _trim() -> None:
    """Return freed memory to the system, where the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
