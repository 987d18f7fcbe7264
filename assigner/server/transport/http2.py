"""Subclasses grpclib's and h2's connection classes where they would let a peer harm the server.

h2 closes a connection because of one stream too many, and buffers frames of 16 MiB; grpclib queues empty frames and
sends pings by its own rules. `connection` puts these classes together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpclib.protocol import Connection, EventsProcessor
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event
from h2.settings import SettingCodes, Settings

from assigner.server.settings import ServerSettings
from assigner.server.transport.calls import CallStream, ConnectionCalls
from assigner.server.transport.send_buffers import Unread
from assigner.server.transport.traffic import Traffic

_FRAME_HEADER = 9
_CLOSE_GRACE = 2.0
"""Seconds for the last bytes to leave after a close."""
_HTTP2 = H2Configuration(
    client_side=False,
    # Latin-1 decodes every byte, so a header that is not ASCII costs its call and not the connection.
    header_encoding="latin-1",
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
)


class ConnectionPulse:
    """When bytes of the peer were last read, on the service's clock."""

    def __init__(self, now: float) -> None:
        self.at = now

    def last_read(self) -> float:
        return self.at


class Http2(H2Connection):
    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(_HTTP2)
        largest = 2 * settings.max_metadata_bytes
        # Announced in the first frame, so that no client begins with h2's default of 100 streams.
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: settings.max_streams_per_connection,
                SettingCodes.MAX_HEADER_LIST_SIZE: settings.max_metadata_bytes,
                SettingCodes.INITIAL_WINDOW_SIZE: settings.stream_window,
            },
        )
        self.decoder.max_header_list_size = largest
        self._opened_since_sweep = 0

    def has_oversized_frame(self) -> bool:
        """Whether a frame longer than the maximum is arriving. h2 checks the length only when the frame is complete."""
        return len(self.incoming_buffer._data) > self.max_inbound_frame_size + _FRAME_HEADER

    @property
    def open_inbound_streams(self) -> int:
        """Always 0, so that h2 never closes the connection over one stream too many: `ConnectionCalls` counts, and
        refuses with a status. h2 would also sweep closed streams here for each new one, by a walk over all; here that
        is done only once as many were opened as half of those there are."""
        self._opened_since_sweep += 1
        if self._opened_since_sweep > len(self.streams) // 2:
            self._opened_since_sweep = 0
            self._open_streams(1)
        return 0


class PeerConnection(Connection):
    traffic: Traffic
    pulse: ConnectionPulse
    calls: ConnectionCalls
    unread: Unread
    admin: asyncio.Semaphore
    frames_sent = 0
    """Data frames sent since the last tick: the peer answers them with frames without data."""

    def create_stream(self, *, stream_id: int | None = None, wrapper: Any = None) -> CallStream:
        stream = CallStream(self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper)
        stream.max_message_bytes = self.traffic.settings.max_message_bytes
        stream.traffic = self.traffic
        stream.share = self.calls.share
        stream.unread = self.unread
        return stream

    @contextmanager
    def with_consumer(self) -> Iterator[None]:
        """Count a consumer as registered over the connection while the block runs."""
        self.calls.consumer_joined()
        try:
            yield
        finally:
            self.calls.consumer_left()

    def initialize(self) -> None:
        """Start no pings of grpclib: they close a dead connection only once its buffer has been sent."""

    def flush(self) -> None:
        if not self.is_closing():
            super().flush()

    def close(self) -> None:
        transport = getattr(self, "_transport", None)
        if transport is not None and not transport.is_closing():
            # A peer that reads neither the last bytes nor TLS's close alert must not keep the connection open.
            asyncio.get_running_loop().call_later(_CLOSE_GRACE, transport.abort)
        super().close()


class Processor(EventsProcessor):
    def process(self, event: Event) -> None:
        if isinstance(event, DataReceived) and not event.flow_controlled_length:
            # It costs the sender no window, and grpclib would queue it, or take it for the end of the stream.
            return
        # Other events are of HTTP/2 extensions that the server does not use.
        if event.__class__ in getattr(self, "processors", ()):
            super().process(event)
