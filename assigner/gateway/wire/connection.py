"""Serves one client's connection: takes its frames, has them handled or passes them on, and keeps answers in order.

A broker handles the requests of a connection one after the other, and so does this: while a handler's answer is
awaited, what else arrives is kept, up to a bound, and then not read. Requests that are passed on need not wait for one
another, since the broker keeps their order; an answer that is ready before theirs waits for them.

Nothing a client sends raises an error here: what is no Kafka, or may not be sent now, closes the connection with a
reason that is counted and logged, a limited number of times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

from assigner.auth.actions import Action
from assigner.auth.rules import Denial
from assigner.gateway.checks import Malformed
from assigner.gateway.codec import API_VERSIONS
from assigner.gateway.login.sasl import Login
from assigner.gateway.requests import Client, CloseConnection, Interruption
from assigner.gateway.upstream.connection import keep_alive
from assigner.gateway.upstream.rewriting import rewrites
from assigner.gateway.wire.dispatch import Dispatcher
from assigner.gateway.wire.frames import (
    LENGTH,
    PRODUCE,
    FrameReader,
    Head,
    ProtocolViolation,
    Wanted,
    read_acks,
    read_head,
)
from assigner.gateway.wire.pipe import BrokerPipe, Forwarded
from assigner.gateway.wire.shared import Wire
from assigner.gateway.wire.versions import (
    CHANGES,
    FIND_COORDINATOR,
    OWN,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    WRITES,
    Ranges,
)
from assigner.logs import get_logger

SMALL_REQUEST = 64 * 1024
"""Bytes of a request before the client has logged in, and of those that only log in or ask for versions."""
READ_AHEAD = 64 * 1024
"""Bytes that are kept of requests that have to wait; beyond them the client is not read."""
WRITE_AHEAD = 256 * 1024
"""Bytes that a client may leave unread before no more is made for it."""
_LEAST_REQUEST = 10
_TURN = 50
"""Requests of one connection that are handled before others have their turn."""
_FETCH = 1
_BEFORE_LOGIN = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})

_numbers = count(1)
_log = get_logger(__name__)


class Place(Protocol):
    """A connection's place among those that are admitted, as far as the connection uses it."""

    def on_close(self, close: Callable[[], None]) -> None:
        """Call `close` to make room for another one."""
        ...

    def is_used(self) -> None:
        """It has done what it is for, and is not closed to make room."""
        ...

    def leave(self) -> None: ...


class ClientConnection(asyncio.Protocol):
    def __init__(self, wire: Wire, listener: str, node_id: int, place: Place) -> None:
        """`node_id`: the broker whose port it came to. `place`: among the connections that are admitted."""
        self.node_id = node_id
        self.fetches_as: set[tuple[str, str, str]] = set()
        self.is_logged_in = not wire.with_sasl
        self.client = Client(next(_numbers), listener, "", wire.settings.org, wire.access)
        self._wire = wire
        self._traffic = wire.traffic
        self._place = place
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(self)
        self._dispatch: Dispatcher | None = None
        self._head: Head | None = None
        """Of a request that is held until it is whole."""
        self._size = 0
        self._begun = 0.0
        self._forbidden = ""
        """Why that request is refused and not passed on; empty: it is handled."""
        self._slots: deque[Forwarded | bytes] = deque()
        """Requests that were passed on, and answers that wait for theirs."""
        self._pipe: BrokerPipe | None = None
        self._unread = False
        """The client does not read as fast as it is sent to."""
        self._broker_full = False
        self._paused = False
        self._closing = False
        self._is_used = False
        self._in_turn = 0
        """Requests that were handled since others had their turn on the loop."""
        self._rests = False
        self.began = self.heard = wire.clock.now()
        self.written = self.began
        """When the client had last read all that it was sent, or began not to."""

    # --- what the transport calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._place.on_close(self.abort)
        transport.set_write_buffer_limits(high=WRITE_AHEAD)
        keep_alive(transport)
        peer = transport.get_extra_info("peername")
        self.client.host = str(peer[0]) if peer else ""
        certificate = transport.get_extra_info("peercert")
        login = Login(self._wire.logins, self.client.host, certificate)
        self._dispatch = Dispatcher(self._wire, self, self.client, login)
        self._traffic.arrived(self)
        if self._traffic.draining:
            self.close_for("draining", "the gateway is draining")
            return
        found = self._wire.logins.by_certificate(certificate, self.client.host)
        if isinstance(found, Denial) and not self._wire.with_sasl:
            self.close_for("unauthenticated", found.message)
        elif found is not None and not isinstance(found, Denial) and not self._wire.with_sasl:
            login.principal = found
            self.logged_in()

    def data_received(self, data: bytes) -> None:
        self.heard = self._wire.clock.now()
        self._traffic.received += len(data)
        if self._closing:
            return
        self.interrupt(Interruption.FOLLOWED)
        if not self._rests:
            self._in_turn = 0
        self.guarded(partial(self._reader.feed, data))

    def eof_received(self) -> None:
        # As a broker does it: who sends no more gets no more.
        return

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = self.client.closed = True
        self._reader.close()
        if self._pipe is not None:
            self._pipe.close()
        if self._dispatch is not None:
            self._dispatch.abandon()
        self._slots.clear()
        self._release_partial()
        self._traffic.fetches_no_more(self)
        self._traffic.left(self)
        self._place.leave()

    def pause_writing(self) -> None:
        self._unread = True
        self.written = self._wire.clock.now()
        if self._pipe is not None:
            self._pipe.pause(True)
        self._adjust()

    def resume_writing(self) -> None:
        self._unread = False
        if self._pipe is not None:
            self._pipe.pause(False)
        self.go_on()

    # --- closing -------------------------------------------------------------------------------------------------

    def close_for(self, reason: str, message: str) -> None:
        """Close the connection, and say why. What was answered before is still sent."""
        if self._closing:
            return
        self._closing = True
        self._traffic.refuse(reason, self.client.host, message)
        self._reader.close()
        if self._pipe is not None:
            self._pipe.close()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def interrupt(self, one: Interruption) -> None:
        if self._dispatch is not None:
            self._dispatch.interrupt(one)

    @property
    def _is_parked(self) -> bool:
        return self._dispatch is not None and self._dispatch.parked is not None

    @property
    def is_idle(self) -> bool:
        """Whether no answer is owed to the client."""
        return not self._is_parked and not self._slots and not self._reader.is_within

    def look(self, now: float) -> None:
        """Close the connection if it has taken too long for something."""
        settings, silent = self._wire.settings, now - self.heard
        if self._unread and now - self.written >= settings.request_timeout:
            self.close_for("slow", "the client does not read its answers")
            self.abort()
        elif self._closing:
            if now - self.heard >= settings.request_timeout:
                self.abort()
        elif not self.is_logged_in and now - self.began >= settings.handshake_timeout:
            self.close_for("handshake", "the client did not log in in time")
        elif self._is_late(now, silent):
            self.close_for("slow", "a request was begun and not finished")
        elif self.is_idle and silent >= settings.idle_timeout:
            self.close_for("idle", "the client has sent nothing for a long time")

    def _is_late(self, now: float, silent: float) -> bool:
        """Whether the client has taken too long to send a request: what is held here until it is whole has to come in
        that time, of what is passed on the next piece."""
        most = self._wire.settings.request_timeout
        if self._head is not None:
            return now - self._begun >= most
        return self._reader.is_within and not self.is_busy and silent >= most

    def look_at_login(self) -> None:
        """Close the connection if its login would not succeed any more."""
        if self._dispatch is not None and not self._dispatch.login.still_counts():
            self.close_for("withdrawn", "its credentials were withdrawn")

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return (
            self._is_parked
            or self._rests
            or self._unread
            or self._broker_full
            or self._closing
            or len(self._slots) >= self._wire.settings.max_requests_in_flight
        )

    def guarded(self, work: Callable[[], None]) -> None:
        """Do work that what the client sent may make fail."""
        try:
            work()
        except ProtocolViolation as error:
            self.close_for(error.reason, str(error))
        except Malformed as error:
            self.close_for("malformed", str(error))
        except CloseConnection as error:
            self.close_for("handler", str(error))
        except Exception as error:  # noqa: BLE001 - a defect ends this connection, and no other one notices
            api = None if self._head is None else self._head.api
            _log.error("kafka_request_failed", api=api, host=self.client.host, exc_info=error)
            self.close_for("handler", "an unexpected error, which the log shows")
        if self._is_parked and self._reader.waiting:
            # It had sent more already when the request was parked: nothing that arrives would end the hold.
            self.interrupt(Interruption.FOLLOWED)
        self._adjust()

    def go_on(self) -> None:
        if not self._closing:
            self.guarded(self._reader.go_on)

    def _adjust(self) -> None:
        """Read from the client, or do not."""
        paused = self._unread or self._broker_full or (self.is_busy and self._reader.waiting > READ_AHEAD)
        if paused == self._paused or self._closing or self._transport is None:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def begins(self, size: int, start: bytes) -> Wanted:
        settings = self._wire.settings
        most = settings.max_request_bytes if self.is_logged_in else min(SMALL_REQUEST, settings.max_request_bytes)
        if size < _LEAST_REQUEST:
            raise ProtocolViolation("malformed", f"a request of {size} bytes")
        if size > most:
            raise ProtocolViolation("too_large", f"a request of {size} bytes; at most {most} are taken")
        head = read_head(start)
        if head is None:
            return Wanted.MORE
        self._check(head)
        if not self._is_used and self.is_logged_in and head.api != API_VERSIONS:
            self._is_used = True
            self._place.is_used()
        if head.api in _BEFORE_LOGIN or head.api == FIND_COORDINATOR or head.api in self._wire.handlers:
            self._expect_whole(head, size)
            return Wanted.WHOLE
        return self._forward(head, size, start)

    def _check(self, head: Head) -> None:
        """Raise `ProtocolViolation` for a request that the client may not send now."""
        if head.api == API_VERSIONS:
            return
        if head.api not in _BEFORE_LOGIN:
            if not self.is_logged_in:
                raise ProtocolViolation("unauthenticated", f"API {head.api} before a login")
            expires = None if self._dispatch is None else self._dispatch.login.expires
            if expires is not None and self._wire.clock.wall() >= expires:
                raise ProtocolViolation("session_expired", "the login has ended; log in again in time")
        # Where no SASL is set up, who tries it is told so.
        ranges = OWN if head.api in _BEFORE_LOGIN else self._ranges()
        low, high = ranges.get(head.api, (1, 0))
        if not low <= head.version <= high:
            raise ProtocolViolation("unsupported", f"API {head.api} version {head.version}")

    def _ranges(self) -> Ranges:
        found = self._wire.versions(self.node_id)
        if found is None:
            raise ProtocolViolation("upstream", "no broker is up")
        return found.ranges

    def _expect_whole(self, head: Head, size: int) -> None:
        most = SMALL_REQUEST if head.api in _BEFORE_LOGIN else self._wire.settings.max_group_request_bytes
        if size > most:
            raise ProtocolViolation("too_large", f"API {head.api} with {size} bytes; at most {most} are taken")
        if not self._traffic.reserve(size):
            raise ProtocolViolation("memory", f"no room for a request of {size} bytes")
        self._head, self._size, self._begun = head, size, self.heard

    def _release_partial(self) -> None:
        """Give back the room of a request that will not become whole."""
        if self._head is not None:
            self._head = None
            self._traffic.release(self._size)

    # --- requests that are handled here ------------------------------------------------------------------------------

    def frame(self, body: bytes) -> None:
        head, self._head = self._head, None
        assert head is not None
        assert self._dispatch is not None
        self._traffic.requests[head.api] += 1
        self._count_turn()
        forbidden, self._forbidden = self._forbidden, ""
        try:
            if forbidden:
                self._dispatch.refuse(head, body, forbidden)
            else:
                self._dispatch.handle(head, body)
        finally:
            self._traffic.release(len(body))

    def _count_turn(self) -> None:
        """Let other connections have their turn after some requests: thousands of them may be read at once."""
        self._in_turn += 1
        if self._in_turn >= _TURN and not self._rests:
            self._rests = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._in_turn, self._rests = 0, False
        self.go_on()

    def send(self, frame: bytes) -> None:
        """Send an answer in its turn."""
        if self._slots:
            self._slots.append(frame)
        else:
            self.pass_on(frame)

    def logged_in(self) -> None:
        """Take who has logged in as the client."""
        assert self._dispatch is not None
        self.is_logged_in = True
        self.client.principal = who = self._dispatch.login.principal
        if who is not None and who.organization:
            self.client.org = who.organization

    # --- requests that are passed on -----------------------------------------------------------------------------

    def _forward(self, head: Head, size: int, start: bytes) -> Wanted:
        acks: int | None = None
        if head.api == PRODUCE:
            acks = read_acks(start, head)
            if acks is None:
                return Wanted.MORE
        elif head.api == _FETCH:
            self._traffic.fetches(self, head.client_id)
        action = (
            Action.CHANGE_CLUSTER
            if head.api in CHANGES
            else Action.WRITE_RECORDS
            if head.api in WRITES
            else Action.READ_RECORDS
        )
        reason = self.client.reason(action)
        if reason is not None:
            if acks == 0:
                raise ProtocolViolation("forbidden", f"a Produce without acks: {reason}")
            self._expect_whole(head, size)
            self._forbidden = reason
            return Wanted.WHOLE
        self._traffic.requests[head.api] += 1
        if acks != 0:
            self._expect(head)
        return Wanted.PIECES

    def _expect(self, head: Head) -> None:
        """Keep a place for the broker's answer."""
        answer_is_rewritten = rewrites(head.api, head.version)
        self._slots.append(Forwarded(head.api, head.version, head.correlation, answer_is_rewritten))

    def send_on(self, head: Head, body: bytes) -> None:
        """Pass a request on that was held until it was whole."""
        self._expect(head)
        self._piped().send(LENGTH.pack(len(body)) + body)

    def piece(self, data: bytes, *, is_last: bool) -> None:
        self._piped().send(data)

    def _piped(self) -> BrokerPipe:
        if self._pipe is None:
            wire = self._wire
            self._pipe = BrokerPipe(
                self, wire.brokers, lambda: wire.broker(self.node_id), wire.endpoint, self._traffic.pipes
            )
            self._pipe.pause(self._unread)
        return self._pipe

    # --- what the broker's side calls ----------------------------------------------------------------------------

    def broker_answers(self) -> Forwarded | None:
        first = self._slots[0] if self._slots else None
        return first if isinstance(first, Forwarded) else None

    def pass_on(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            self._traffic.sent += len(data)
            self._transport.write(data)

    def answer_is_complete(self) -> None:
        self._slots.popleft()
        while self._slots and isinstance(ready := self._slots[0], bytes):
            self._slots.popleft()
            self.pass_on(ready)
        self.go_on()

    def broker_is_full(self, full: bool) -> None:
        self._broker_full = full
        if full:
            self._adjust()
        else:
            self.go_on()

    def broker_failed(self, why: str) -> None:
        self._traffic.upstream_failures += 1
        self.close_for("upstream", why)
