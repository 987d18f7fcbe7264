"""Sends ready messages over a stream without holding the loop, and notices a reader that does not read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from grpclib.server import Stream

from assigner.server.transport.calls import CallStream, reading

_PIECE = 64 * 1024
"""What is written at once; also what a reader must take within the slow consumer's timeout."""


async def deliver(stream: Stream[Any, Any], messages: Iterable[bytes | None]) -> None:
    """Send the messages; a `None` lets others run. Raises `TooSlow`."""
    http2 = cast(CallStream, stream._stream)
    turns, share = http2.traffic.turns, http2.share
    await turns.take(share)
    waiting = bytearray()
    for message in messages:
        if message is None:
            await turns.take(share)
            continue
        waiting += b"\0" + len(message).to_bytes(4, "big")
        waiting += message
        while len(waiting) >= _PIECE:
            await _write(stream, bytes(waiting[:_PIECE]))
            del waiting[:_PIECE]
            await turns.take(share)
    if waiting:
        await _write(stream, bytes(waiting))


async def _write(stream: Stream[Any, Any], piece: bytes) -> None:
    async with reading(stream):
        await stream._stream.send_data(piece)
