"""Hostile peers: each connects to a loopback port, does its harm for some seconds and reads what it is answered.

Whoever is cut off connects again at once, as an attacker would. Every attack is bounded in time and in what it keeps
open.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec

from assigner.proto.kafka_assigner import v1
from tests.attacks import frames
from tests.attacks.frames import call, frame, literal, request_headers, settings

Flood = Callable[[], Iterator[bytes]]
"""What one connection sends after its greeting, piece by piece, without end unless it means to be silent then."""
_STREAMS = range(1, 2**31, 2)


class Load(msgspec.Struct):
    """What an attack came to."""

    sent: int = 0
    connected: int = 0
    """Connections over time."""
    refused: int = 0
    """Times that it was cut off, or let in by nobody."""


async def flood(port: int, pieces: Flood, connections: int, seconds: float) -> Load:
    """Send the pieces over so many connections at a time."""
    load = Load()
    await _for(seconds, [_flooder(port, pieces, load) for _ in range(connections)])
    return load


async def _flooder(port: int, pieces: Flood, load: Load) -> None:
    while True:
        with suppress(OSError):
            await _one_flood(port, pieces, load)
        load.refused += 1
        await asyncio.sleep(0.01)


async def _one_flood(port: int, pieces: Flood, load: Load) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    load.connected += 1
    reading = asyncio.ensure_future(_discard(reader))
    try:
        writer.write(frames.GREETING + settings())
        for piece in pieces():
            writer.write(piece)
            load.sent += len(piece)
            await writer.drain()
            # Writing to a socket with room in it never waits by itself.
            await asyncio.sleep(0)
            if reading.done():
                return
        await reading
    finally:
        reading.cancel()
        writer.transport.abort()


async def _discard(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(65_536):
            pass


async def _for(seconds: float, workers: list[Coroutine[Any, Any, None]]) -> None:
    """Let the workers work for so long. They begin a hundred at a time: thousands that all connect at once are so busy
    with it that they say nothing."""
    until, tasks = asyncio.get_running_loop().time() + seconds, list[asyncio.Task[None]]()
    while workers:
        tasks += [asyncio.create_task(worker) for worker in workers[:100]]
        del workers[:100]
        await asyncio.sleep(0.05)
    await asyncio.sleep(until - asyncio.get_running_loop().time())
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


# --- what is sent ------------------------------------------------------------------------------------------------


def repeated(one: bytes) -> Flood:
    piece = one * max(1, 65_536 // len(one))

    def pieces() -> Iterator[bytes]:
        while True:
            yield piece

    return pieces


unknown_frames = repeated(frame(frames.UNKNOWN))
settings_acks = repeated(frame(frames.SETTINGS, flags=frames.ACK))
window_updates = repeated(frame(frames.WINDOW_UPDATE, (1).to_bytes(4, "big")))
pings = repeated(frame(frames.PING, b"12345678"))
settings_frames = repeated(settings([(frames.INITIAL_WINDOW_SIZE, 65_535)]))


def empty_data() -> Iterator[bytes]:
    yield call(1, request_headers(frames.RENEW), None)
    yield from repeated(frame(frames.DATA, stream=1))()


def header_bomb(times: int) -> Flood:
    """Short HEADERS frames that each stand for `times` headers of 4 KB, remembered from the first one."""
    first = request_headers(frames.RENEW) + literal("x", "x" * 4_000, remember=True)
    # :method POST, :scheme http, :path / of the static table, then the newest entry of the connection's table.
    following = b"\x83\x86\x84" + b"\xbe" * times

    def pieces() -> Iterator[bytes]:
        streams = iter(_STREAMS)
        yield frame(frames.HEADERS, first, flags=frames.END_HEADERS, stream=next(streams))
        for stream in streams:
            batch = [stream, *(next(streams) for _ in range(499))]
            yield b"".join(frame(frames.HEADERS, following, flags=frames.END_HEADERS, stream=one) for one in batch)

    return pieces


def open_calls(path: str, body: Callable[[int], bytes], per_connection: int, *more: tuple[str, str]) -> Flood:
    """Calls in their thousands: as many at once as a connection may have, and again without waiting for answers.
    `more`: headers."""

    def pieces() -> Iterator[bytes]:
        headers, streams = request_headers(path, *more), iter(_STREAMS)
        while True:
            batch = [next(streams) for _ in range(per_connection)]
            yield b"".join(call(stream, headers, body(stream)) for stream in batch)

    return pieces


def renewals(per_connection: int = 1_000) -> Flood:
    request = bytes(v1.RenewRequest(group="victims", consumer_name="nobody", session="none"))
    return open_calls(frames.RENEW, lambda _: request, per_connection)


def renewals_with(token: str) -> Flood:
    request = bytes(v1.RenewRequest(group="victims", consumer_name="nobody", session="none"))
    return open_calls(frames.RENEW, lambda _: request, 20, ("authorization", f"Bearer {token}"))


def unknown_groups(prefix: str) -> Flood:
    numbers = count()
    return open_calls(
        frames.RENEW,
        lambda _: bytes(v1.RenewRequest(group=f"{prefix}{next(numbers)}", consumer_name="nobody", session="none")),
        per_connection=50,
    )


def rapid_reset() -> Iterator[bytes]:
    headers = request_headers(frames.RENEW)
    cancel = (8).to_bytes(4, "big")
    for first in _STREAMS[::500]:
        batch = range(first, first + 1_000, 2)
        yield b"".join(call(one, headers, None) + frame(frames.RESET, cancel, stream=one) for one in batch)


def zero_window(group: str, calls: int) -> Flood:
    """Asks for long answers and takes none of them."""
    headers = request_headers(frames.DESCRIBE_GROUP)
    body = bytes(v1.DescribeGroupRequest(group=group))

    def pieces() -> Iterator[bytes]:
        yield settings([(frames.INITIAL_WINDOW_SIZE, 0)])
        yield b"".join(call(stream, headers, body) for stream in _STREAMS[:calls])

    return pieces


def watching() -> Iterator[bytes]:
    """One stream of health and nothing else."""
    yield call(1, request_headers(frames.WATCH), b"")


# --- connections -------------------------------------------------------------------------------------------------


async def silent(port: int, connections: int, seconds: float) -> Load:
    """Connect and say nothing. Whom the server closes is not replaced."""
    load, open_now = Load(), list[asyncio.StreamWriter]()
    for _ in range(connections):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            load.refused += 1
            continue
        load.connected += 1
        open_now.append(writer)
    await asyncio.sleep(seconds)
    for writer in open_now:
        writer.transport.abort()
    await asyncio.sleep(0)
    return load


async def knocking(port: int, connections: int, at_once: int = 50) -> Load:
    """Connect and close, as a careless health check does."""
    load = Load()
    for _ in range(0, connections, at_once):
        opened = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", port) for _ in range(at_once)), return_exceptions=True
        )
        for one in opened:
            if isinstance(one, BaseException):
                load.refused += 1
            else:
                load.connected += 1
                one[1].transport.abort()
        await asyncio.sleep(0)
    return load


async def handshakes_begun(port: int, connections: int, seconds: float) -> Load:
    """Connect, begin a TLS handshake and stop in the middle of it."""
    load = Load()
    hello = _client_hello()

    async def one() -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            load.connected += 1
            try:
                writer.write(hello[: len(hello) - 1])
                load.sent += len(hello) - 1
                await asyncio.sleep(seconds)
            finally:
                writer.transport.abort()

    await _for(seconds, [one() for _ in range(connections)])
    return load


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()
