"""One HTTP/2 connection, on grpclib's machinery, with what it lacks: limits, pings that tell whether the peer lives,
and a goodbye.

Nothing a peer sends may raise out of here, and nothing it leaves unread may pile up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from grpclib.config import Configuration
from grpclib.const import Handler
from grpclib.encoding.base import CodecBase
from grpclib.protocol import Connection, EventsProcessor
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    StreamReset,
)
from h2.exceptions import FrameTooLargeError, H2Error
from h2.settings import SettingCodes, Settings

from assigner.logs import get_logger
from assigner.server.calls import Calls, CallStream
from assigner.server.settings import ServerSettings
from assigner.server.status import Answer
from assigner.server.traffic import Reason, Traffic

_MAX_UNREAD = 1024 * 1024
"""Bytes of acknowledgements and the like that a peer may provoke without reading."""
_MAX_CONTROL_FRAMES = 10_000
"""Frames that carry no data, per ping interval."""
_received = memoryview(bytearray(8 * 1024))
"""Where asyncio puts what it reads, for all connections: it is taken out in the same callback. Its size bounds the
work of one callback: a request's headers are some 50 bytes long and take 100 us."""
_FRAME_HEADER = 9
_PING, _LAST_PING = b"assigner", b"farewell"
_CONTROL = (PingReceived, RemoteSettingsChanged, PriorityUpdated, StreamReset)
_CLOSE_GRACE = 2.0
"""Seconds for the last bytes to leave after a close."""
_GOODBYE = 0.5
"""Seconds for a peer to answer the last ping, and again to close the connection itself."""
_HTTP2 = H2Configuration(
    client_side=False,
    header_encoding="ascii",
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
)

_log = get_logger(__name__)


class Pulse:
    """When the peer was last heard, on the service's clock."""

    def __init__(self, now: float) -> None:
        self.at = now

    def heard(self) -> float:
        return self.at


class Http2(H2Connection):
    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(_HTTP2)
        largest = 4 * settings.max_metadata_bytes
        # Announced in the first frame, so that no client works by h2's default of 100 streams.
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: settings.max_streams_per_connection,
                SettingCodes.MAX_HEADER_LIST_SIZE: largest,
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
        """Always 0 to h2, because it would close the connection over one stream too many; `Calls` counts, and
        refuses with a status. h2 also walks over all streams here, for each new one, to forget the closed: that is
        done only after as many new ones as there are streams."""
        self._opened_since_sweep += 1
        if self._opened_since_sweep > len(self.streams) // 2:
            self._opened_since_sweep = 0
            self._open_streams(1)
        return 0


class PeerConnection(Connection):
    traffic: Traffic
    pulse: Pulse

    def create_stream(self, *, stream_id: int | None = None, wrapper: Any = None) -> CallStream:
        stream = CallStream(self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper)
        stream.max_message_bytes = self.traffic.settings.max_message_bytes
        stream.traffic = self.traffic
        return stream

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


class PeerProtocol(asyncio.BufferedProtocol):
    """What asyncio calls for one connection. Reads little at a time, because what is read is worked off at once."""

    def __init__(self, traffic: Traffic, methods: dict[str, Handler], codec: CodecBase) -> None:
        self._traffic = traffic
        self._settings = traffic.settings
        self._calls = Calls(traffic, methods, codec)
        self._calls.on_idle = self._now_idle
        self._opened = traffic.clock.now()
        self.pulse = Pulse(self._opened)
        self._shook_hands = False
        self._leaving = False
        self._said_goodbye = False
        self._control_frames = 0
        self._ticked = self._opened
        self._timer: asyncio.TimerHandle | None = None

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._http2 = Http2(self._settings)
        self._http2.initiate_connection()
        more = self._settings.connection_window - 65_535
        if more:
            self._http2.increment_flow_control_window(more)
        self._connection = PeerConnection(self._http2, self._transport, config=Configuration())
        self._connection.traffic = self._traffic
        self._connection.pulse = self.pulse
        self._processor = Processor(self._calls, self._connection)
        self._connection.flush()
        if not self._traffic.arrived(self):
            self._goodbye(ErrorCodes.ENHANCE_YOUR_CALM, b"too many connections; use another instance")
        elif self._traffic.draining:
            self.leave_when_done()
        else:
            self._schedule()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_received[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self.pulse.at = self._traffic.clock.now()
        try:
            for event in self._feed(data):
                self._processor.process(event)
            self._connection.flush()
        except Exception as error:  # noqa: BLE001 - h2 and hpack raise many kinds on bad input
            self._offended(error)
        if not self._transport.is_closing() and self._transport.get_write_buffer_size() > _MAX_UNREAD:
            self._cut(Reason.UNREAD)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._processor.close(reason="Connection lost")
        self._traffic.left(self)

    def eof_received(self) -> bool:
        return False

    # --- what a peer may do ---

    def _feed(self, data: bytes) -> list[Event]:
        if self._said_goodbye or self._connection.is_closing():
            return []
        events = self._connection.feed(data)
        if self._http2.holds_too_much():
            raise FrameTooLargeError("a frame is longer than announced as the most")
        self._connection.flush()
        for event in events:
            if isinstance(event, _CONTROL) or (isinstance(event, DataReceived) and not event.data):
                self._control_frames += 1
            if isinstance(event, RemoteSettingsChanged):
                self._shook_hands = True
            elif isinstance(event, PingAckReceived) and event.ping_data == _LAST_PING:
                self._farewell()
        if self._control_frames > _MAX_CONTROL_FRAMES:
            self._traffic.refuse(Reason.FLOOD)
            self._goodbye(ErrorCodes.ENHANCE_YOUR_CALM, b"too many frames that carry no data")
            return []
        return events

    def _offended(self, error: Exception) -> None:
        """The peer broke the protocol, in whatever way h2 or grpclib found out."""
        self._traffic.refuse(Reason.PROTOCOL)
        if not isinstance(error, H2Error):
            _log.warning("grpc_protocol_error", error=f"{type(error).__name__}: {error}")
        # h2 has prepared a GOAWAY; let it leave first.
        self._connection.flush()
        self._processor.close("Protocol error")

    # --- time ---

    def _schedule(self) -> None:
        settings = self._settings
        pause = min(
            settings.ping_interval,
            settings.handshake_timeout,
            settings.first_request_timeout,
            settings.idle_timeout,
        )
        self._timer = asyncio.get_running_loop().call_later(pause, self._tick, pause)

    def _tick(self, pause: float) -> None:
        now = self._traffic.clock.now()
        # If the loop or the machine stood still, what peers sent meanwhile is not read yet: judge them next time.
        late = now - self._ticked > 2 * pause + 1.0
        self._ticked, self._control_frames = now, 0
        if self._said_goodbye or self._connection.is_closing() or (not late and self._overdue(now)):
            return
        try:
            self._http2.ping(_PING)
            self._connection.flush()
        except H2Error:
            self.abort()
            return
        self._schedule()

    def _overdue(self, now: float) -> bool:
        """Whether the connection's time is over; it is then closed."""
        settings, age = self._settings, now - self._opened
        if now - self.pulse.at > settings.ping_timeout:
            self._cut(Reason.DEAD_PEER)
        elif not self._shook_hands and age >= settings.handshake_timeout:
            self._cut(Reason.HANDSHAKE)
        elif (not self._calls.ever_called and age >= settings.first_request_timeout) or (
            not self._calls and now - self._calls.idle_since >= settings.idle_timeout
        ):
            self._idle()
        else:
            return False
        return True

    def _idle(self) -> None:
        self._traffic.refuse(Reason.IDLE)
        self._goodbye(ErrorCodes.NO_ERROR, b"idle")

    def _cut(self, reason: Reason) -> None:
        self._traffic.refuse(reason)
        self.abort()

    # --- what the server may do ---

    def end_calls(self, answer: Answer, *, streaming_only: bool) -> None:
        self._calls.end(answer, streaming_only=streaming_only)

    def leave_when_done(self) -> None:
        self._leaving = True
        if not self._calls:
            self._now_idle()

    def _now_idle(self) -> None:
        """If leaving, ask the peer for a last sign, and say goodbye when it came: by then it has read its answers.
        grpclib's clients drop an answer that arrives together with a goodbye."""
        if not self._leaving or self._said_goodbye or self._connection.is_closing():
            return
        try:
            self._http2.ping(_LAST_PING)
            self._connection.flush()
        except H2Error:
            pass
        asyncio.get_running_loop().call_later(_GOODBYE, self._farewell)

    def _farewell(self) -> None:
        if not self._calls:
            self._goodbye(ErrorCodes.NO_ERROR, b"instance is shutting down")

    def _goodbye(self, code: ErrorCodes, text: bytes) -> None:
        """Tell the peer, and let it close the connection: if we did, what it sends meanwhile would make its system
        throw away what it has not read yet. A peer that does not is closed a moment later."""
        if self._said_goodbye or self._connection.is_closing():
            return
        self._said_goodbye = True
        try:
            self._http2.close_connection(code, additional_data=text)
            self._connection.flush()
        except H2Error:
            pass
        self._calls.close()
        asyncio.get_running_loop().call_later(_GOODBYE, self._processor.close, "Connection closed by the server")

    def abort(self) -> None:
        self._transport.abort()

    def unsent_bytes(self) -> int:
        # A TLS transport that is closing can't be asked.
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()


def protocol_factory(traffic: Traffic, methods: dict[str, Handler], codec: CodecBase) -> Callable[[], PeerProtocol]:
    return lambda: PeerProtocol(traffic, methods, codec)
