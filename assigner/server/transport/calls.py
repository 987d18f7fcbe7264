"""Accepts or refuses the calls of one connection, runs each, and sends its replies or its status.

grpclib cancels handlers without sending the peer anything. Here a call that the server ends gets a status first,
unless the peer is gone.
"""

from __future__ import annotations

import asyncio
import binascii
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, cast

import anyio
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.events import _DispatchServerEvents
from grpclib.metadata import Deadline, decode_metadata, encode_grpc_message
from grpclib.protocol import AbstractHandler
from grpclib.protocol import Stream as Http2Stream
from grpclib.server import Stream, request_handler
from h2.errors import ErrorCodes
from h2.exceptions import H2Error

from assigner.aio.supervision import report_failure
from assigner.auth.rules import Denial, DenialKind
from assigner.errors import InvalidInput, LimitReached, TooSlow
from assigner.logs import get_logger
from assigner.server.access import AdmittedCall, error_of, work_for
from assigner.server.transport.fair_turns import ConnectionShare
from assigner.server.transport.send_buffers import Unread
from assigner.server.transport.status import ERROR_KEY, CallStatus, short, status_of
from assigner.server.transport.traffic import SHUTTING_DOWN, RefusalReason, Traffic

Headers = list[tuple[str, str]]
_TIMEOUT = "grpc-timeout"
Work = Callable[[Stream[Any, Any]], Awaitable[None]]

_ENTRY_OVERHEAD = 32
"""What HTTP/2 counts per header besides its text."""
_URGENT = frozenset({"Renew", "PartitionReady", "PartitionReleased", "RenewRouter", "CutoverAck", "Heartbeat"})
"""Methods that leases and handoffs depend on."""
_ADMIN = ".Admin/"
ADMIN_AT_ONCE = 8
"""Unary calls of operators that run at a time on one connection: their replies may be long."""
_PER_CONSUMER = 10
"""Calls that a connection may have in progress per consumer, in addition to those of any connection."""
_ALWAYS_ROOM = 4
"""Calls besides its streams that a connection with consumers may make even when the instance is full."""
_STATUS_TIMEOUT = 5.0
"""Seconds for sending the status of a failed call; a connection that takes none is aborted."""
_PIECE = 64 * 1024
"""Bytes of a stream that are written at once; the peer must read each piece within the slow consumer's timeout."""
_REFUSED_FOR = {
    DenialKind.UNAUTHENTICATED: RefusalReason.UNAUTHENTICATED,
    DenialKind.DENIED: RefusalReason.PERMISSION_DENIED,
    DenialKind.LIMITED: RefusalReason.UNAUTHENTICATED,
}
_DENIALS = {
    Status.UNAUTHENTICATED: DenialKind.UNAUTHENTICATED,
    Status.PERMISSION_DENIED: DenialKind.DENIED,
}

_log = get_logger(__name__)


class Call:
    """One call in progress."""

    def __init__(self, *, streaming: bool, deadline: float, admitted: AdmittedCall) -> None:
        """`deadline`: on anyio's clock. It is enforced here, because grpclib logs each expired deadline as an error."""
        self.streaming = streaming
        self.admitted = admitted
        self._scope = anyio.CancelScope(deadline=deadline)
        self._ending: CallStatus | None = None

    def end(self, status: CallStatus) -> None:
        """Cancel the work and end the call with this status."""
        self._ending = status
        self._scope.cancel()

    async def run(self, work: Work, stream: Stream[Any, Any]) -> None:
        with self._scope:
            await work(stream)
            return
        raise self._ending or _too_late()


def guarded(method: str, work: Work, *, streaming: bool = False) -> Work:
    """Wrap the work of a method so that every error it raises is sent to the caller as a status."""
    few = _ADMIN in method and not streaming
    urgent = method.rpartition("/")[2] in _URGENT

    async def run(stream: Stream[Any, Any]) -> None:
        http2 = cast(CallStream, stream._stream)
        admitted = http2.call.admitted
        work_for(admitted)
        try:
            async with cast(Any, http2.connection).admin if few else nullcontext():
                await http2.traffic.turns.take(http2.share, urgent=urgent)
                await http2.call.run(work, stream)
            _audit(admitted, "done")
        except H2Error:
            # The peer reset the stream while we were writing to it.
            raise CallStatus(Status.CANCELLED, "the call was cancelled", "") from None
        except Exception as error:  # noqa: BLE001 - for any error, the caller gets a status
            status = status_of(error, method)
            _audit(admitted, status.error or status.status.name)
            _note_denial(http2, status)
            await _send_status(stream, http2, status)

    return run


def _note_denial(http2: CallStream, status: CallStatus) -> None:
    kind = _DENIALS.get(status.status)
    if kind is not None:
        http2.traffic.refuse(_REFUSED_FOR[kind])
        http2.call.admitted.note_denial(kind, status.message or "")


def _audit(call: AdmittedCall, outcome: str) -> None:
    """Log an operator's change, also one that failed: it may have been done all the same."""
    if call.changes:
        _log.info(
            "operator_call",
            principal=call.identity,
            action=call.action.value,
            group=call.group,
            peer=call.peer,
            outcome=outcome,
        )


async def _send_status(stream: Stream[Any, Any], http2: CallStream, status: CallStatus) -> None:
    if stream._send_trailing_metadata_done or http2._transport.is_closing():
        return
    metadata = {ERROR_KEY: status.error} if status.error else None
    with anyio.move_on_after(_STATUS_TIMEOUT) as timeout:
        try:
            await stream.send_trailing_metadata(status=status.status, status_message=status.message, metadata=metadata)
        except H2Error:
            raise status from None
    if timeout.cancelled_caught:
        http2._transport.abort()


class CallStream(Http2Stream):
    """The HTTP/2 stream of a call, which rejects messages above a size."""

    call: Call
    max_message_bytes: int
    traffic: Traffic
    share: ConnectionShare
    unread: Unread
    release: Callable[[], None] | None = None
    _in_body = False

    def release_once(self) -> None:
        """Make the connection forget the stream. Idempotent."""
        release, self.release = self.release, None
        if release is not None:
            release()

    async def recv_data(self, size: int) -> bytes:
        """Receive a message's prefix and its body in turn. No data where a prefix is due is the end of the stream."""
        in_body, self._in_body = self._in_body, not self._in_body
        if size > self.max_message_bytes:
            # The length comes from the prefix: nothing of the body was kept yet.
            self.traffic.refuse(RefusalReason.MESSAGE_SIZE)
            raise LimitReached(
                f"the request is {size} bytes long; at most {self.max_message_bytes} are taken: make several calls"
            )
        try:
            data = await super().recv_data(size)
        except AssertionError:
            data = b""
            in_body = True
        if in_body and len(data) < size:
            raise InvalidInput("the request ended before its announced length")
        return data

    async def send_data(self, data: bytes, end_stream: bool = False) -> None:
        """Send data as grpclib does, but check the buffer again after each wait. In grpclib all writers that wait for a
        full buffer write once it drains, and a thousand streams fill it with megabytes."""
        assert self.id is not None
        http2, ready = self._h2_connection, self.connection.write_ready
        sent, size = 0, len(data)
        while True:
            while not ready.is_set():
                await ready.wait()
            window = http2.local_flow_control_window(self.id)
            if window <= 0:
                self.window_updated.clear()
                await self.window_updated.wait()
                continue
            part = data[sent : sent + min(window, http2.max_outbound_frame_size)]
            sent += len(part)
            cast(Any, self.connection).frames_sent += 1
            http2.send_data(self.id, part, end_stream=end_stream and sent == size)
            self.connection.flush()
            self.unread.taken = self.traffic.clock.now()
            if sent == size:
                return


class ConnectionCalls(AbstractHandler):
    """Accepts the calls of one connection, or refuses them with a status."""

    def __init__(self, traffic: Traffic, methods: dict[str, Handler], codec: CodecBase) -> None:
        self.owner = traffic.access.connection(None, "")
        self._traffic = traffic
        self._methods = methods
        self._codec = codec
        self._dispatch = _DispatchServerEvents()
        self._tasks: dict[Http2Stream, tuple[Call, asyncio.Task[None]]] = {}
        self.idle_since = traffic.clock.now()
        self.ever_called = False
        self.share = ConnectionShare()
        self.on_idle: Callable[[], None] = lambda: None
        self.on_refused: Callable[[RefusalReason | None], None] = lambda _: None
        self.on_consumers: Callable[[int], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._tasks)

    def accept(self, stream: Http2Stream, headers: Headers, release_stream: Callable[[], None]) -> None:
        self.ever_called = True
        admitted = self._refusal(headers) or self._admit(headers)
        if not isinstance(admitted, AdmittedCall):
            reason, status = admitted
            if reason is not None:
                self._traffic.refuse(reason)
            release_stream()
            _refuse(stream, status)
            self.on_refused(reason)
            return
        method = self._methods[dict(headers)[":path"]]
        deadline = Deadline.from_headers(headers)
        call = Call(
            streaming=method.cardinality.server_streaming,
            deadline=math.inf if deadline is None else anyio.current_time() + deadline.time_remaining(),
            admitted=admitted,
        )
        headers = [one for one in headers if one[0] != _TIMEOUT]
        mine = cast(CallStream, stream)
        mine.call = call
        mine.release = release_stream
        task = asyncio.get_running_loop().create_task(
            request_handler(self._methods, stream, headers, self._codec, None, self._dispatch, mine.release_once),
            name=f"call of {dict(headers)[':path']}",
        )
        task.add_done_callback(report_failure)
        self._tasks[stream] = (call, task)
        self._traffic.call_began(without_consumer=not self.share.consumers)
        task.add_done_callback(lambda _: self._ended(mine))

    def _ended(self, stream: CallStream) -> None:
        del self._tasks[stream]
        # A task that is cancelled before its first step has not released the stream.
        stream.release_once()
        self.idle_since = self._traffic.clock.now()
        if not self._tasks:
            self.on_idle()
        self._traffic.call_ended(without_consumer=not self.share.consumers)

    def consumer_joined(self) -> None:
        """Count a consumer that one of the calls registered."""
        if not self.share.consumers:
            self._traffic.no_consumer_calls -= len(self._tasks)
        self.share.consumers += 1
        self.on_consumers(self.share.consumers)

    def consumer_left(self) -> None:
        self.share.consumers -= 1
        if not self.share.consumers:
            self._traffic.no_consumer_calls += len(self._tasks)
        self.on_consumers(self.share.consumers)

    def _refusal(self, headers: Headers) -> tuple[RefusalReason | None, CallStatus] | None:
        settings, traffic = self._traffic.settings, self._traffic
        if traffic.draining:
            return RefusalReason.DRAINING, SHUTTING_DOWN
        full = self._full()
        if full is not None:
            return full
        size = sum(len(name) + len(value) + _ENTRY_OVERHEAD for name, value in headers)
        if size > settings.max_metadata_bytes:
            limit = settings.max_metadata_bytes
            text = f"the metadata is {size} bytes long; at most {limit} are taken: send less"
            return RefusalReason.METADATA_SIZE, _limit(text)
        if not _readable(headers):
            return RefusalReason.METADATA, CallStatus(
                Status.INVALID_ARGUMENT, "the headers are malformed", InvalidInput.__name__
            )
        deadline = Deadline.from_headers(headers)
        if deadline is not None and not deadline.time_remaining():
            return None, _too_late()
        path = dict(headers)[":path"]
        if path not in self._methods:
            text = short(f"there is no method {path}") + "; see the services by reflection"
            return None, CallStatus(Status.UNIMPLEMENTED, text, "")
        return None

    def _admit(self, headers: Headers) -> AdmittedCall | tuple[RefusalReason, CallStatus]:
        """Ask whose call it is and whether they may make it, last: it is what costs most of all refusals."""
        path = dict(headers)[":path"]
        found = self.owner.admit(path, headers)
        if isinstance(found, Denial):
            return _REFUSED_FOR[found.kind], status_of(error_of(found), path)
        return found

    def _full(self) -> tuple[RefusalReason, CallStatus] | None:
        """The refusal if there is no room for another call. Cancelled calls that have not ended yet count too, so that
        opening and resetting streams gains a peer nothing."""
        settings, traffic = self._traffic.settings, self._traffic
        here, consumers = len(self._tasks), self.share.consumers
        room = settings.max_streams_without_consumer + _PER_CONSUMER * consumers
        if here >= settings.max_streams_per_connection:
            return _no_room(RefusalReason.STREAMS_PER_CONNECTION, settings.max_streams_per_connection, "connection")
        if here >= room:
            text = f"{room} calls are in progress, the most for a connection with {consumers} consumers: try again, "
            return RefusalReason.STREAMS_PER_CONNECTION, _limit(text + "or use another connection")
        if consumers:
            if traffic.in_progress >= settings.max_streams and here >= consumers + _ALWAYS_ROOM:
                return _no_room(RefusalReason.STREAMS, settings.max_streams, "instance")
        elif traffic.in_progress >= settings.max_streams or traffic.no_consumer_calls >= traffic.no_consumer_room:
            return _no_room(RefusalReason.STREAMS, min(settings.max_streams, traffic.no_consumer_room), "instance")
        return None

    def end(self, status: CallStatus, *, streaming_only: bool) -> None:
        for call, _ in list(self._tasks.values()):
            if call.streaming or not streaming_only:
                call.end(status)

    def end_unauthorized(self) -> None:
        """End the streams whose credentials have expired, unless newer ones were shown over the connection."""
        for call, _ in list(self._tasks.values()):
            error = call.admitted.ended() if call.streaming else None
            if error is not None:
                call.end(status_of(error, call.admitted.action.value))

    def cancel(self, stream: Http2Stream) -> None:
        """Cancel the call of a stream that the peer reset."""
        entry = self._tasks.get(stream)
        if entry is not None:
            entry[1].cancel()

    def close(self) -> None:
        """Cancel every call without a status: the peer is gone."""
        for _, task in list(self._tasks.values()):
            task.cancel()


def _too_late() -> CallStatus:
    return CallStatus(Status.DEADLINE_EXCEEDED, "the call's deadline is over", "")


def _no_room(reason: RefusalReason, limit: int, where: str) -> tuple[RefusalReason, CallStatus]:
    return reason, _limit(f"{limit} calls are in progress on this {where}, the most it takes: use another {where}")


def _limit(text: str) -> CallStatus:
    return CallStatus(Status.RESOURCE_EXHAUSTED, text, LimitReached.__name__)


def _readable(headers: Headers) -> bool:
    """Whether grpclib can parse the headers: with malformed ones it would end the call without a status."""
    names = {name for name, _ in headers}
    try:
        decode_metadata(headers)
        Deadline.from_headers(headers)
    except (binascii.Error, ValueError):
        return False
    return {":method", ":path"} <= names and all(name.isascii() and value.isascii() for name, value in headers)


def _refuse(stream: Http2Stream, status: CallStatus) -> None:
    """Send the status at once, without a task: refusing must stay cheap. The connection's next write flushes it."""
    headers = [
        (":status", "200"),
        ("content-type", "application/grpc+proto"),
        ("grpc-status", str(status.status.value)),
        ("grpc-message", encode_grpc_message(status.message or "")),
    ]
    if status.error:
        headers.append((ERROR_KEY, status.error))
    assert stream.id is not None
    stream._h2_connection.send_headers(stream.id, headers, end_stream=True)
    if stream.closable:
        stream._h2_connection.reset_stream(stream.id, ErrorCodes.NO_ERROR)


# --- how services define their methods ------------------------------------------------------------

Reply = Any
"""Encoded bytes, or a generated message."""


async def receive(stream: Stream[Any, Any]) -> Any:
    """Receive the single request of a call. Raises a status if it does not arrive in time."""
    traffic = cast(CallStream, stream._stream).traffic
    timeout = traffic.settings.request_timeout
    with anyio.move_on_after(timeout):
        request = await stream.recv_message()
        if request is None:
            raise InvalidInput("the call carries no request message; send one")
        return request
    traffic.refuse(RefusalReason.REQUEST_TIMEOUT)
    raise CallStatus(Status.DEADLINE_EXCEEDED, f"the request did not arrive within {timeout:g} s", "")


@asynccontextmanager
async def reading(stream: Stream[Any, Any]) -> AsyncIterator[None]:
    """Bound the time of sending in this block: it raises `TooSlow` if the peer does not read in time."""
    http2 = cast(CallStream, stream._stream)
    timeout = http2.traffic.settings.slow_consumer_timeout
    with anyio.move_on_after(timeout) as scope:
        yield
    if not scope.cancelled_caught:
        return
    http2.traffic.refuse(RefusalReason.SLOW_CONSUMER)
    if not http2.connection.write_ready.is_set():
        # A status would not get through either: the whole connection is stuck.
        http2._transport.abort()
    raise TooSlow(f"nothing was read for {timeout:g} s; read the stream faster and call again")


async def deliver(stream: Stream[Any, Any], messages: Iterable[bytes | None]) -> None:
    """Send encoded messages over a stream in pieces, in turns with other connections; a `None` is a yield point.
    Raises `TooSlow`."""
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


def unary(method: Callable[[Any], Awaitable[Reply]], request: type, reply: type) -> Handler:
    async def work(stream: Stream[Any, Any]) -> None:
        message = await method(await receive(stream))
        # Only encoded replies can be long.
        size = len(message) if isinstance(message, bytes) else 0
        with cast(CallStream, stream._stream).unread.waiting(size):
            async with reading(stream):
                await stream.send_message(message)

    return Handler(work, Cardinality.UNARY_UNARY, request, reply)


def streaming(work: Work, request: type, reply: type) -> Handler:
    return Handler(work, Cardinality.UNARY_STREAM, request, reply)
