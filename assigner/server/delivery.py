"""Sends ready messages over a stream without holding the loop, and notices a reader that does not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import anyio
from grpclib.server import Stream

from assigner.errors import TooSlow
from assigner.server.calls import CallStream
from assigner.server.traffic import Reason

_PIECE = 64 * 1024
"""What is written at once; also what a reader must take within the slow consumer's timeout."""


async def deliver(stream: Stream[Any, Any], messages: Iterable[bytes | None]) -> None:
    """Send the messages; a `None` lets others run. Raises `TooSlow`."""
    turns = cast(CallStream, stream._stream).traffic.turns
    await turns.take()
    waiting = bytearray()
    for message in messages:
        if message is None:
            await turns.take()
            continue
        waiting += b"\0" + len(message).to_bytes(4, "big")
        waiting += message
        while len(waiting) >= _PIECE:
            await _write(stream, bytes(waiting[:_PIECE]))
            del waiting[:_PIECE]
            await turns.take()
    if waiting:
        await _write(stream, bytes(waiting))


async def _write(stream: Stream[Any, Any], piece: bytes) -> None:
    http2 = cast(CallStream, stream._stream)
    timeout = http2.traffic.settings.slow_consumer_timeout
    with anyio.move_on_after(timeout):
        await http2.send_data(piece)
        return
    http2.traffic.refuse(Reason.SLOW_CONSUMER)
    if not http2.connection.write_ready.is_set():
        # Not even a status can get through: the whole connection is stuck.
        http2._transport.abort()
    raise TooSlow(f"nothing was read for {timeout:g} s; read the stream faster and register again")
