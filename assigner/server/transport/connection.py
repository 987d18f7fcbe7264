"""Serves one HTTP/2 connection, and adds to grpclib limits, keepalive pings and an orderly GOAWAY.

No input of a peer may raise out of this module, and no output that it does not read may pile up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

from grpclib.config import Configuration
from grpclib.const import Handler
from grpclib.encoding.base import CodecBase
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import FrameTooLargeError, H2Error

from assigner.logs import get_logger
from assigner.server.transport.admission import ConnectionStage, Slot
from assigner.server.transport.calls import ADMIN_AT_ONCE, ConnectionCalls
from assigner.server.transport.http2 import ConnectionPulse, Http2, PeerConnection, Processor
from assigner.server.transport.status import CallStatus
from assigner.server.transport.traffic import RefusalReason, Traffic

_MAX_UNREAD = 1024 * 1024
"""Bytes of acknowledgements and the like that a peer may provoke without reading."""
_MAX_CONTROL_FRAMES = 10_000
"""Frames that carry no data, per ping interval and consumer of the connection; a tenth of it while the instance has
more to do than it can."""
_RESET, _REFUSED = 5, 5
"""A call that was reset, or refused, counts as so many such frames: it costs as much."""
_PER_DATA_FRAME = 4
"""Such frames that are allowed per data frame sent: the reader answers with window updates."""
_MAX_OVERSIZED = 8
"""Calls with too much metadata, per ping interval."""
_SMALLEST_SLICE, _FIRST_SLICE, _NO_CONSUMER_SLICE = 32, 256, 512
"""Bytes that are processed at a time: at least, at first, and at most for a connection without a consumer: a hostile
peer may send cheap bytes first and expensive ones next."""
_SLICE_TIME = 0.002
"""Seconds that a slice should not take."""
_TLS_UNREAD = 32 * 1024
"""Bytes that TLS buffers while the connection waits for its turn; asyncio's default is 256 KiB."""
_received = memoryview(bytearray(8 * 1024))
"""The read buffer of all connections: its content is copied in the callback that follows the read."""
_PING, _LAST_PING = b"assigner", b"farewell"
_CALL_EVENTS = (RequestReceived, DataReceived, StreamEnded, TrailersReceived, ConnectionTerminated)
"""Events of calls. All others, those of unknown frames included, count as frames without data."""
_GOAWAYS_AT_ONCE = 64
"""Connections that get a GOAWAY to make room, at a time; others are aborted."""
_NO_ROOM = b"too many connections; use another instance"
_GOAWAY_TIMEOUT = 0.5
"""Seconds for a peer to ack the last ping, and again to close the connection itself."""

_log = get_logger(__name__)


class PeerProtocol(asyncio.BufferedProtocol):
    """asyncio's protocol of one connection. Reads little at a time, because what is read is processed at once."""

    def __init__(
        self, traffic: Traffic, methods: dict[str, Handler], codec: CodecBase, slot: Slot | None = None
    ) -> None:
        """Without a slot there is no room for the connection: it gets a GOAWAY and is closed."""
        self._slot = slot
        self._traffic = traffic
        self._settings = traffic.settings
        self._calls = ConnectionCalls(traffic, methods, codec)
        self._calls.on_idle = self._last_call_ended
        self._calls.on_refused = self._refused
        self._calls.on_consumers = self._consumers_changed
        self._share = self._calls.share
        self._unread = b""
        self._slice = _FIRST_SLICE
        self._waiting = False
        """Waiting for a turn to process what was read."""
        self._opened = traffic.clock.now()
        self.pulse = ConnectionPulse(self._opened)
        self._settings_received = False
        self._leaving = False
        self._sent_goaway = False
        self._making_room = False
        self._control_frames = 0
        self._oversized = 0
        self._ticked = self._pinged = self._opened
        self._timer: asyncio.TimerHandle | None = None

    # --- callbacks of asyncio ---

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
        self._connection.calls = self._calls
        self._connection.admin = asyncio.Semaphore(ADMIN_AT_ONCE)
        self._connection.unread = self._traffic.sending.connection()
        self._connection.unread.cut = self.abort
        bound_reading = getattr(self._transport, "set_read_buffer_limits", None)
        if bound_reading is not None:
            bound_reading(high=_TLS_UNREAD)
        self._processor = Processor(self._calls, self._connection)
        self._calls.owner = self._traffic.access.connection(*_shown_by(self._transport))
        self._connection.flush()
        self._traffic.arrived(self)
        if self._slot is None or not self._slot.held:
            self._send_goaway(ErrorCodes.ENHANCE_YOUR_CALM, _NO_ROOM)
            return
        self._slot.close = self._make_room
        if not _speaks_http2(self._transport):
            self._traffic.refuse(RefusalReason.PROTOCOL)
            self._send_goaway(ErrorCodes.HTTP_1_1_REQUIRED, b"this is gRPC: offer h2 by ALPN")
        elif self._traffic.draining:
            self.leave_when_done()
        else:
            self._schedule()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_received[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Process the bytes in the connection's turn. Until it comes nothing more is read."""
        self.pulse.at = self._traffic.clock.now()
        self._unread += data
        if self._waiting:
            return
        while self._unread:
            if not self._traffic.turns.read(self._share, self._process_slice):
                self._waiting = True
                self._transport.pause_reading()
                self._traffic.turns.read_later(self._share, self._read_on)
                return

    def _read_on(self) -> None:
        """Process a slice in the connection's turn, and resume reading once everything read is processed."""
        self._process_slice()
        if self._unread:
            self._traffic.turns.read_later(self._share, self._read_on)
            return
        self._waiting = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _process_slice(self) -> None:
        """Process some bytes: fewer if those before took long, because a slice is not interrupted."""
        data, self._unread = self._unread[: self._slice], self._unread[self._slice :]
        began = time.perf_counter()
        self._process(data)
        took = time.perf_counter() - began
        if took > _SLICE_TIME:
            self._slice = max(_SMALLEST_SLICE, self._slice // 2)
        elif took < _SLICE_TIME / 4:
            most = len(_received) if self._share.consumers else _NO_CONSUMER_SLICE
            self._slice = min(most, self._slice * 2)
        if self._transport.is_closing() or self._sent_goaway:
            self._unread = b""

    def _process(self, data: bytes) -> None:
        try:
            for event in self._feed(data):
                self._processor.process(event)
                if self._sent_goaway:
                    return
            self._connection.flush()
        except Exception as error:  # noqa: BLE001 - h2 and hpack raise many kinds on bad input
            self._protocol_violated(error)
        if not self._transport.is_closing() and self._transport.get_write_buffer_size() > _MAX_UNREAD:
            self._abort_for(RefusalReason.UNREAD)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._share.forget()
        self._traffic.making_room -= self._making_room
        self._making_room = False
        self._processor.close(reason="Connection lost")
        if self._slot is not None:
            self._traffic.admission.leave(self._slot)
        self._traffic.left(self)

    def eof_received(self) -> bool:
        return False

    # --- limits of the peer ---

    def _feed(self, data: bytes) -> list[Event]:
        if self._sent_goaway or self._connection.is_closing():
            return []
        events = self._connection.feed(data)
        if self._http2.has_oversized_frame():
            raise FrameTooLargeError("a frame is longer than the announced maximum")
        self._connection.flush()
        for event in events:
            if not isinstance(event, _CALL_EVENTS) or (isinstance(event, DataReceived) and not event.data):
                self._control_frames += _RESET if isinstance(event, StreamReset) else 1
            if isinstance(event, RemoteSettingsChanged):
                self._settings_received = True
            elif isinstance(event, PingAckReceived) and event.ping_data == _LAST_PING:
                self._send_final_goaway()
        return [] if self._check_floods() else events

    def _check_floods(self) -> bool:
        """Close the connection if the peer exceeds the limits of frames without data; whether it does."""
        each = _MAX_CONTROL_FRAMES // 10 if self._traffic.turns.late else _MAX_CONTROL_FRAMES
        if self._control_frames > each * (1 + self._share.consumers) + _PER_DATA_FRAME * self._connection.frames_sent:
            self._close_for_flood(b"too many frames that carry no data, or calls that were refused or given up")
        elif self._oversized > _MAX_OVERSIZED:
            self._close_for_flood(b"too many calls with too much metadata")
        else:
            return False
        return True

    def _close_for_flood(self, text: bytes) -> None:
        self._traffic.refuse(RefusalReason.FLOOD)
        self._send_goaway(ErrorCodes.ENHANCE_YOUR_CALM, text)

    def _refused(self, reason: RefusalReason | None) -> None:
        """Count a refused call of the peer against its limits."""
        self._control_frames += _REFUSED
        self._oversized += reason is RefusalReason.METADATA_SIZE

    def _protocol_violated(self, error: Exception) -> None:
        """Close the connection because h2 or grpclib rejected what the peer sent."""
        self._traffic.refuse(RefusalReason.PROTOCOL)
        if not isinstance(error, H2Error):
            _log.warning("grpc_protocol_violated", error=f"{type(error).__name__}: {error}")
        # If h2 found the error, it has queued a GOAWAY with its code: send that one first.
        self._connection.flush()
        self._send_goaway(ErrorCodes.PROTOCOL_ERROR, b"not understood")
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
        # If the loop or the machine was suspended, what peers sent meanwhile is not read yet: check them next time.
        late = now - self._ticked > 2 * pause + 1.0
        self._ticked, self._control_frames, self._oversized, self._connection.frames_sent = now, 0, 0, 0
        if self._sent_goaway or self._connection.is_closing() or (not late and self._overdue(now)):
            return
        self._calls.end_unauthorized()
        if self._share.consumers or now - self._pinged >= self._settings.ping_timeout / 3:
            # Pings renew the leases of consumers; other connections need a keepalive less often.
            self._pinged = now
            try:
                self._http2.ping(_PING)
                self._connection.flush()
            except H2Error:
                self.abort()
                return
        self._schedule()

    def _overdue(self, now: float) -> bool:
        """Whether a timeout of the connection has expired; it is then closed."""
        settings, age = self._settings, now - self._opened
        if now - self.pulse.at > settings.ping_timeout and not self._waiting:
            self._abort_for(RefusalReason.DEAD_PEER)
        elif not self._settings_received and age >= settings.handshake_timeout:
            self._abort_for(RefusalReason.HANDSHAKE)
        elif (not self._calls.ever_called and age >= settings.first_request_timeout) or (
            not self._calls and now - self._calls.idle_since >= settings.idle_timeout
        ):
            self._idle()
        else:
            return False
        return True

    def _idle(self) -> None:
        self._traffic.refuse(RefusalReason.IDLE)
        self._send_goaway(ErrorCodes.NO_ERROR, b"idle")

    def _abort_for(self, reason: RefusalReason) -> None:
        self._traffic.refuse(reason)
        self.abort()

    # --- closing, on behalf of the server ---

    def _consumers_changed(self, consumers: int) -> None:
        """Protect the connection from being closed to make room while consumers are registered over it."""
        if self._slot is not None:
            stage = ConnectionStage.CONSUMERS if consumers else ConnectionStage.NO_CONSUMER
            self._traffic.admission.move(self._slot, stage, self._traffic.clock.now())

    def _make_room(self) -> None:
        """Close to make room; without a GOAWAY if many connections are closing already: each holds a file meanwhile."""
        self._traffic.refuse(RefusalReason.CONNECTIONS)
        if self._traffic.making_room >= _GOAWAYS_AT_ONCE:
            self.abort()
            return
        self._making_room = True
        self._traffic.making_room += 1
        self._send_goaway(ErrorCodes.ENHANCE_YOUR_CALM, _NO_ROOM)

    def end_calls(self, status: CallStatus, *, streaming_only: bool) -> None:
        self._calls.end(status, streaming_only=streaming_only)

    def leave_when_done(self) -> None:
        self._leaving = True
        if not self._calls:
            self._last_call_ended()

    def _last_call_ended(self) -> None:
        """If the connection is to close, send a last ping, and a GOAWAY once it is acked: by then the peer has read its
        replies. grpclib's clients drop a reply that arrives together with a GOAWAY."""
        if not self._leaving or self._sent_goaway or self._connection.is_closing():
            return
        try:
            self._http2.ping(_LAST_PING)
            self._connection.flush()
        except H2Error:
            pass
        asyncio.get_running_loop().call_later(_GOAWAY_TIMEOUT, self._send_final_goaway)

    def _send_final_goaway(self) -> None:
        if not self._calls:
            self._send_goaway(ErrorCodes.NO_ERROR, b"instance is shutting down")

    def _send_goaway(self, code: ErrorCodes, text: bytes) -> None:
        """Send a GOAWAY and let the peer close the connection. If we did, what the peer sends meanwhile would be
        answered with a TCP reset, and its system would discard what it has not read yet. A peer that does not close is
        closed a moment later."""
        if self._sent_goaway or self._connection.is_closing():
            return
        self._sent_goaway = True
        try:
            self._http2.close_connection(code, additional_data=text)
            self._connection.flush()
        except H2Error:
            pass
        self._calls.close()
        asyncio.get_running_loop().call_later(_GOAWAY_TIMEOUT, self._processor.close, "Connection closed by the server")

    def abort(self) -> None:
        self._transport.abort()

    def unsent_bytes(self) -> int:
        # A TLS transport that is closing does not know its buffer size.
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()


def _speaks_http2(transport: asyncio.BaseTransport) -> bool:
    """Whether the client negotiated HTTP/2 by ALPN. Without TLS there is no ALPN, and HTTP/2 is assumed."""
    secured = transport.get_extra_info("ssl_object")
    return secured is None or secured.selected_alpn_protocol() == "h2"


def _shown_by(transport: asyncio.BaseTransport) -> tuple[Mapping[str, Any] | None, str]:
    """The certificate that the peer has shown, None if it has not, and its address."""
    secured, address = transport.get_extra_info("ssl_object"), transport.get_extra_info("peername")
    # Without a verified certificate it is an empty dictionary.
    certificate = secured.getpeercert() if secured is not None else None
    return certificate or None, str(address[0]) if isinstance(address, tuple) else ""
