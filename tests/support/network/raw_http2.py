"""An HTTP/2 client that does only what a test tells it to: for peers that break the rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, PingReceived, ResponseReceived, TrailersReceived

REGISTER = "/kafka_assigner.v1.KafkaAssigner/Register"
RENEW = "/kafka_assigner.v1.KafkaAssigner/Renew"


class Unbounded(H2Connection):
    """Opens as many streams as it likes, without counting them each time."""

    open_outbound_streams = 0


class RawPeer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        # Checks nothing, so that a test may send what is forbidden.
        self.h2 = Unbounded(
            H2Configuration(
                header_encoding="utf-8",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.events: list[Event] = []
        self.closed = False

    def greet(self) -> None:
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def open(self, path: str = RENEW, extra: list[tuple[str, str]] | None = None, *, end: bool = False) -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, headers(path) + (extra or []), end_stream=end)
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self.h2.send_data(stream, data, end_stream=end)
        self.flush()

    async def read(self, *, acknowledge: bool = True) -> bool:
        """Take what the server sent; False at the end."""
        try:
            data = await self.reader.read(65_536)
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            return False
        events = self.h2.receive_data(data)
        if not acknowledge:
            # Pings included: h2 has answers ready, which stay unsent.
            self.h2.clear_outbound_data_buffer()
        for event in events:
            if acknowledge and isinstance(event, DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
        self.events += events
        self.flush()
        return True

    async def status(self, stream: int) -> tuple[int, str]:
        """The gRPC status and message that the call got."""
        async with asyncio.timeout(15):
            while True:
                for event in self.events:
                    ended = isinstance(event, ResponseReceived | TrailersReceived) and event.stream_id == stream
                    found = dict(event.headers) if ended else {}  # type: ignore[attr-defined]
                    if "grpc-status" in found:
                        return int(found["grpc-status"]), found.get("grpc-message", "")
                assert await self.read(), "the server closed the connection without a status"

    async def until_closed(self) -> None:
        async with asyncio.timeout(15):
            while await self.read():
                pass

    @property
    def goodbye(self) -> ConnectionTerminated | None:
        return next((event for event in self.events if isinstance(event, ConnectionTerminated)), None)

    @property
    def pings(self) -> int:
        return sum(isinstance(event, PingReceived) for event in self.events)


def headers(path: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@asynccontextmanager
async def raw_peer(port: int, *, greet: bool = True) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = RawPeer(reader, writer)
    if greet:
        peer.greet()
    try:
        yield peer
    finally:
        writer.transport.abort()
