"""One HTTP/2 connection, on grpclib's machinery, with what it lacks: limits, pings that tell whether the peer lives,
and a goodbye.

Nothing a peer sends may raise out of here, and nothing it leaves unread may pile up.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

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
"""A call that was given up, or refused, counts as so many such frames: it costs as much."""
_EARNED = 4
"""Such frames that each piece of data we send allows for: its reader makes room in its windows."""
_MAX_OVERSIZED = 8
"""Calls with too much metadata, per ping interval."""
_SMALLEST_SLICE, _FIRST_SLICE, _STRANGERS_SLICE = 32, 256, 512
"""Bytes that are worked off at a time: of a peer whose bytes take very long, of a new connection, and at most of one
without a consumer: what came before says little of how long the next bytes of a hostile peer take."""
_SLICE_TIME = 0.002
"""Seconds that a slice should not take."""
_TLS_UNREAD = 32 * 1024
"""Bytes of TLS that are kept while the connection waits for its turn; asyncio's default is 256 KiB."""
_received = memoryview(bytearray(8 * 1024))
"""Where asyncio puts what it reads, for all connections: it is taken out in the same callback."""
_PING, _LAST_PING = b"assigner", b"farewell"
_OF_CALLS = (RequestReceived, DataReceived, StreamEnded, TrailersReceived, ConnectionTerminated)
"""Events of calls. All others, those of frames that nobody knows included, are of frames without data."""
_GOAWAYS_AT_ONCE = 64
"""Connections that get a GOAWAY to make room, at a time; others are aborted."""
_NO_ROOM = b"too many connections; use another instance"
_GOODBYE = 0.5
"""Seconds for a peer to acknowledge the last ping, and again to close the connection itself."""

_log = get_logger(__name__)


class PeerProtocol(asyncio.BufferedProtocol):
    """What asyncio calls for one connection. Reads little at a time, because what is read is worked off at once."""

    def __init__(
        self, traffic: Traffic, methods: dict[str, Handler], codec: CodecBase, slot: Slot | None = None
    ) -> None:
        """Without a slot there is no room for the connection: it gets a GOAWAY and is closed."""
        self._slot = slot
        self._traffic = traffic
        self._settings = traffic.settings
        self._calls = ConnectionCalls(traffic, methods, codec)
        self._calls.on_idle = self._now_idle
        self._calls.on_refused = self._refused
        self._calls.on_consumers = self._stay
        self._share = self._calls.share
        self._unread = b""
        self._slice = _FIRST_SLICE
        self._waiting = False
        """For a turn to work off what was read."""
        self._opened = traffic.clock.now()
        self.pulse = ConnectionPulse(self._opened)
        self._shook_hands = False
        self._leaving = False
        self._said_goodbye = False
        self._sent_away = False
        self._control_frames = 0
        self._oversized = 0
        self._ticked = self._pinged = self._opened
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
        self._connection.calls = self._calls
        self._connection.admin = asyncio.Semaphore(ADMIN_AT_ONCE)
        self._connection.unread = self._traffic.sending.connection()
        self._connection.unread.cut = self.abort
        bound_reading = getattr(self._transport, "set_read_buffer_limits", None)
        if bound_reading is not None:
            bound_reading(high=_TLS_UNREAD)
        self._processor = Processor(self._calls, self._connection)
        self._connection.flush()
        self._traffic.arrived(self)
        if self._slot is None or not self._slot.held:
            self._goodbye(ErrorCodes.ENHANCE_YOUR_CALM, _NO_ROOM)
            return
        self._slot.close = self._make_room
        if not _speaks_http2(self._transport):
            self._traffic.refuse(RefusalReason.PROTOCOL)
            self._goodbye(ErrorCodes.HTTP_1_1_REQUIRED, b"this is gRPC: offer h2 by ALPN")
        elif self._traffic.draining:
            self.leave_when_done()
        else:
            self._schedule()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_received[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Work the bytes off in the connection's turn. Until it comes nothing more is read."""
        self.pulse.at = self._traffic.clock.now()
        self._unread += data
        if self._waiting:
            return
        while self._unread:
            if not self._traffic.turns.read(self._share, self._work_slice_off):
                self._waiting = True
                self._transport.pause_reading()
                self._traffic.turns.read_later(self._share, self._read_on)
                return

    def _read_on(self) -> None:
        """It is the connection's turn."""
        self._work_slice_off()
        if self._unread:
            self._traffic.turns.read_later(self._share, self._read_on)
            return
        self._waiting = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _work_slice_off(self) -> None:
        """Work some bytes off: fewer of a peer whose bytes take long, because a slice is not interrupted."""
        data, self._unread = self._unread[: self._slice], self._unread[self._slice :]
        began = time.perf_counter()
        self._work_off(data)
        took = time.perf_counter() - began
        if took > _SLICE_TIME:
            self._slice = max(_SMALLEST_SLICE, self._slice // 2)
        elif took < _SLICE_TIME / 4:
            most = len(_received) if self._share.consumers else _STRANGERS_SLICE
            self._slice = min(most, self._slice * 2)
        if self._transport.is_closing() or self._said_goodbye:
            self._unread = b""

    def _work_off(self, data: bytes) -> None:
        try:
            for event in self._feed(data):
                self._processor.process(event)
                if self._said_goodbye:
                    return
            self._connection.flush()
        except Exception as error:  # noqa: BLE001 - h2 and hpack raise many kinds on bad input
            self._offended(error)
        if not self._transport.is_closing() and self._transport.get_write_buffer_size() > _MAX_UNREAD:
            self._cut(RefusalReason.UNREAD)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._share.forget()
        self._traffic.sent_away -= self._sent_away
        self._sent_away = False
        self._processor.close(reason="Connection lost")
        if self._slot is not None:
            self._traffic.admission.leave(self._slot)
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
            if not isinstance(event, _OF_CALLS) or (isinstance(event, DataReceived) and not event.data):
                self._control_frames += _RESET if isinstance(event, StreamReset) else 1
            if isinstance(event, RemoteSettingsChanged):
                self._shook_hands = True
            elif isinstance(event, PingAckReceived) and event.ping_data == _LAST_PING:
                self._farewell()
        return [] if self._floods() else events

    def _floods(self) -> bool:
        """Whether the peer sent more frames without data than it may; it then gets a GOAWAY and is closed."""
        each = _MAX_CONTROL_FRAMES // 10 if self._traffic.turns.late else _MAX_CONTROL_FRAMES
        if self._control_frames > each * (1 + self._share.consumers) + _EARNED * self._connection.earned:
            self._flooded(b"too many frames that carry no data, or calls that were refused or given up")
        elif self._oversized > _MAX_OVERSIZED:
            self._flooded(b"too many calls with too much metadata")
        else:
            return False
        return True

    def _flooded(self, text: bytes) -> None:
        self._traffic.refuse(RefusalReason.FLOOD)
        self._goodbye(ErrorCodes.ENHANCE_YOUR_CALM, text)

    def _refused(self, reason: RefusalReason | None) -> None:
        """A call of the peer was refused."""
        self._control_frames += _REFUSED
        self._oversized += reason is RefusalReason.METADATA_SIZE

    def _offended(self, error: Exception) -> None:
        """The peer broke the protocol, in whatever way h2 or grpclib found out."""
        self._traffic.refuse(RefusalReason.PROTOCOL)
        if not isinstance(error, H2Error):
            _log.warning("grpc_protocol_violated", error=f"{type(error).__name__}: {error}")
        # For what h2 found it has prepared a GOAWAY; let it leave first.
        self._connection.flush()
        self._goodbye(ErrorCodes.PROTOCOL_ERROR, b"not understood")
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
        self._ticked, self._control_frames, self._oversized, self._connection.earned = now, 0, 0, 0
        if self._said_goodbye or self._connection.is_closing() or (not late and self._overdue(now)):
            return
        if self._share.consumers or now - self._pinged >= self._settings.ping_timeout / 3:
            # Only consumers are renewed by their pings; of others it is enough to know now and then that they live.
            self._pinged = now
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
        if now - self.pulse.at > settings.ping_timeout and not self._waiting:
            self._cut(RefusalReason.DEAD_PEER)
        elif not self._shook_hands and age >= settings.handshake_timeout:
            self._cut(RefusalReason.HANDSHAKE)
        elif (not self._calls.ever_called and age >= settings.first_request_timeout) or (
            not self._calls and now - self._calls.idle_since >= settings.idle_timeout
        ):
            self._idle()
        else:
            return False
        return True

    def _idle(self) -> None:
        self._traffic.refuse(RefusalReason.IDLE)
        self._goodbye(ErrorCodes.NO_ERROR, b"idle")

    def _cut(self, reason: RefusalReason) -> None:
        self._traffic.refuse(reason)
        self.abort()

    # --- what the server may do ---

    def _stay(self, consumers: int) -> None:
        """The connection has so many consumers now."""
        if self._slot is not None:
            stage = ConnectionStage.CONSUMERS if consumers else ConnectionStage.STRANGER
            self._traffic.admission.move(self._slot, stage, self._traffic.clock.now())

    def _make_room(self) -> None:
        """Leave, after a word if there are not many who do: until then the connection still takes a file."""
        self._traffic.refuse(RefusalReason.CONNECTIONS)
        if self._traffic.sent_away >= _GOAWAYS_AT_ONCE:
            self.abort()
            return
        self._sent_away = True
        self._traffic.sent_away += 1
        self._goodbye(ErrorCodes.ENHANCE_YOUR_CALM, _NO_ROOM)

    def end_calls(self, status: CallStatus, *, streaming_only: bool) -> None:
        self._calls.end(status, streaming_only=streaming_only)

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


def _speaks_http2(transport: asyncio.BaseTransport) -> bool:
    """Over TLS a client says what it speaks. Without it nothing is said, and HTTP/2 is taken for granted."""
    secured = transport.get_extra_info("ssl_object")
    return secured is None or secured.selected_alpn_protocol() == "h2"
