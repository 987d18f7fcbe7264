"""grpclib's and h2's classes for one connection, changed where they would let a peer harm the server.

h2 closes a connection over one stream too many and accepts frames of 16 MiB; grpclib queues empty frames and pings by
its own rules. `connection` puts these classes together.
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
    # Every byte is a letter in it: what is not ASCII is refused with its call, not with the connection.
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
        # Announced in the first frame, so that no client works by h2's default of 100 streams.
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

    def holds_too_much(self) -> bool:
        """h2 looks at a frame's length only when all of it has arrived, which can be 16 MiB."""
        return len(self.incoming_buffer._data) > self.max_inbound_frame_size + _FRAME_HEADER

    @property
    def open_inbound_streams(self) -> int:
        """Always 0 to h2, because it would close the connection over one stream too many; `ConnectionCalls` counts, and
        refuses with a status. h2 also walks over all streams here, for each new one, to forget the closed: that is
        done only after as many new ones as there are streams."""
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
    earned = 0
    """Frames without data that the peer may send because of what we sent, since the last tick."""

    def create_stream(self, *, stream_id: int | None = None, wrapper: Any = None) -> CallStream:
        stream = CallStream(self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper)
        stream.max_message_bytes = self.traffic.settings.max_message_bytes
        stream.traffic = self.traffic
        stream.share = self.calls.share
        stream.unread = self.unread
        return stream

    @contextmanager
    def with_consumer(self) -> Iterator[None]:
        """While a consumer is registered over the connection."""
        self.calls.consumer_joined()
        try:
            yield
        finally:
            self.calls.consumer_left()

    def initialize(self) -> None:
        """grpclib's own pings are not used: they close a dead connection only once its buffer was sent."""

    def flush(self) -> None:
        if not self.is_closing():
            super().flush()

    def close(self) -> None:
        transport = getattr(self, "_transport", None)
        if transport is not None and not transport.is_closing():
            # A peer that takes neither the last bytes nor TLS's goodbye must not keep the connection.
            asyncio.get_running_loop().call_later(_CLOSE_GRACE, transport.abort)
        super().close()


class Processor(EventsProcessor):
    def process(self, event: Event) -> None:
        if isinstance(event, DataReceived) and not event.flow_controlled_length:
            # Costs the sender no window, and grpclib would queue it, or take it for the end.
            return
        # Others are extensions of HTTP/2 that are none of our business.
        if event.__class__ in getattr(self, "processors", ()):
            super().process(event)
