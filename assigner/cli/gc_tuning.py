"""Keeps Python's garbage collector from holding the event loop up, and gives back what closed connections leave.

A full collection visits every object that could be part of a cycle: with thousands of open streams that takes tenths
of a second, in which no lease is renewed. Nearly everything here is freed by counting references; so what exists once
the service is up is set aside for good, and collections become rare. Connections are the exception: TLS and HTTP/2 keep
each in cycles, with their buffers. After many of them were closed, or a few long ago, everything is collected once, and
the freed memory returned to the system. For a process of our own only: an embedding program decides for itself.
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
"""Allocations before a collection of the youngest objects; how many of those before one of the next age, twice."""
AFTER_CLOSED = 300
"""Closed connections after which everything is collected."""
AT_LEAST_EVERY = 120.0
"""Seconds after which fewer closed connections are reason enough."""
FEW_OPEN = 500
"""Open connections up to which a full collection takes no more than some hundredths of a second."""
_LOOK_EVERY = 5.0
_TLS_BUFFER = 16 * 1024
"""Of one connection, as long as a TLS record. asyncio takes 256 KiB for each, at once."""


def settle_in() -> None:
    """Call once, when everything is imported and started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    if hasattr(sslproto.SSLProtocol, "max_size"):
        sslproto.SSLProtocol.max_size = _TLS_BUFFER


async def give_back(closed: Callable[[], int], here: Callable[[], int]) -> None:
    """Collect what closed connections left, for ever; `closed` counts them, `here` those that are open. While many are
    open nothing is done: a collection would look at all of them, and hold the loop up for longer than a lease bears."""
    loop = asyncio.get_running_loop()
    seen, last = closed(), loop.time()
    while True:
        await anyio.sleep(_LOOK_EVERY)
        new = closed() - seen
        if here() > FEW_OPEN:
            continue
        if new >= AFTER_CLOSED or (new and loop.time() - last >= AT_LEAST_EVERY):
            seen, last = closed(), loop.time()
            gc.collect()
            await run_sync(_trim)


def _trim() -> None:
    """Return freed memory to the system, where the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
