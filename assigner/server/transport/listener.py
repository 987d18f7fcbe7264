"""Accepts connections, counts them at once, and serves each one only after its peer has sent the first byte.

In TLS and in HTTP/2 the client sends first. Until it does, a connection is a bare socket without TLS and without
buffers. asyncio's own server would begin each TLS handshake at once, uncounted, and would log hundreds of times a
second that the process has too many open files.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from assigner.logs import get_logger
from assigner.server.transport.admission import ConnectionStage, Slot
from assigner.server.transport.fair_turns import ConnectionShare
from assigner.server.transport.traffic import RefusalReason, Traffic

MAX_HANDSHAKES = 256
"""TLS handshakes at a time; beyond that the oldest is cancelled."""
_ACCEPTED_AT_ONCE = 16
"""Connections that are accepted in one callback."""
_REFUSED_AT_ONCE = 64
"""Refused connections that get a GOAWAY, at a time; others are closed without one."""
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE = 1.0
"""Seconds without accepting when the system has no more files or memory."""
_LOG_AGAIN_AFTER = 60.0

ProtocolFactory = Callable[[Slot | None], asyncio.BaseProtocol]
"""Creates the protocol of a connection; without a slot, of one that is refused with a GOAWAY."""

_log = get_logger(__name__)


class Listener:
    def __init__(
        self,
        traffic: Traffic,
        protocols: ProtocolFactory,
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._traffic = traffic
        self._admission = traffic.admission
        self._protocols = protocols
        self._tls = tls
        self._handshake_timeout = traffic.settings.handshake_timeout
        self._listening: list[socket.socket] = []
        self._silent: set[Slot] = set()
        """Connections accepted here whose peers have sent nothing yet."""
        self._opening: set[asyncio.Task[None]] = set()
        self._begun: dict[Any, None] = {}
        """Of those, the ones whose handshake has begun, oldest first."""
        self._refusing = 0
        self._error_logged_at = float("-inf")
        self._sweeping: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Listen on every address of the host. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._listening.append(_bound(family, kind, protocol, address, backlog))
        except OSError:
            self.close()
            raise
        for listening in self._listening:
            loop.add_reader(listening, self._accept, listening)
        self._sweep()

    @property
    def port(self) -> int:
        return int(self._listening[0].getsockname()[1])

    def close(self) -> None:
        """Stop accepting, and close connections whose peers have sent nothing yet."""
        loop = asyncio.get_running_loop()
        for listening in self._listening:
            loop.remove_reader(listening)
            listening.close()
        self._listening.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for slot in list(self._silent):
            slot.close()

    async def wait_closed(self) -> None:
        """Cancel the handshakes in progress, and wait until they have ended."""
        for task in self._opening:
            task.cancel()
        while self._opening:
            await asyncio.wait(set(self._opening))

    # --- accepting ---

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                arrived, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listening, error)
                return
            arrived.setblocking(False)
            self._admit(arrived, str(address[0]))

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment after an error that would repeat at once; log it once a minute at most."""
        self._traffic.refuse(RefusalReason.FILES if error.errno in _OUT_OF_FILES else RefusalReason.ACCEPT)
        loop, now = asyncio.get_running_loop(), self._traffic.clock.now()
        if now - self._error_logged_at >= _LOG_AGAIN_AFTER:
            self._error_logged_at = now
            self._log_failure(error)
        loop.remove_reader(listening)
        loop.call_later(_PAUSE, self._resume_accepting, listening)

    def _log_failure(self, error: OSError) -> None:
        _log.error("grpc_accept_failed", error=str(error), remedy="allow more open files, or lower max_connections")

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, arrived: socket.socket, host: str) -> None:
        slot = self._admission.admit(host, self._traffic.clock.now())
        if slot is None:
            self._no_room(arrived)
            return
        loop = asyncio.get_running_loop()

        def close() -> None:
            self._traffic.refuse(RefusalReason.HANDSHAKE)
            loop.remove_reader(arrived)
            arrived.close()
            self._silent.discard(slot)
            self._admission.leave(slot)

        slot.close = close
        self._silent.add(slot)
        loop.add_reader(arrived, self._first_bytes, arrived, slot)

    def _no_room(self, arrived: socket.socket) -> None:
        self._traffic.refuse(RefusalReason.CONNECTIONS)
        if self._tls is not None or self._refusing >= _REFUSED_AT_ONCE:
            arrived.close()
            return
        self._refusing += 1
        self._open(arrived, None)

    def _first_bytes(self, arrived: socket.socket, slot: Slot) -> None:
        asyncio.get_running_loop().remove_reader(arrived)
        self._silent.discard(slot)
        try:
            gone = not arrived.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            gone = False
        except OSError:
            gone = True
        if gone:
            arrived.close()
            self._admission.leave(slot)
            return
        self._open(arrived, slot)

    def _sweep(self) -> None:
        """Close connections whose peers have sent nothing for too long, again and again."""
        for slot in self._admission.silent_too_long(self._traffic.clock.now() - self._handshake_timeout):
            slot.close()
        pause = min(1.0, self._handshake_timeout / 2)
        self._sweeping = asyncio.get_running_loop().call_later(pause, self._sweep)

    # --- opening ---

    def _open(self, arrived: socket.socket, slot: Slot | None) -> None:
        opening = _Opening(arrived, slot)
        task = asyncio.get_running_loop().create_task(self._serve(opening), name="opening of a connection")
        if slot is not None:
            self._admission.move(slot, ConnectionStage.NO_CONSUMER, self._traffic.clock.now())
            slot.close = partial(_cancel, task)
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, opening))

    async def _serve(self, opening: _Opening) -> None:
        # A new connection costs some tenths of a millisecond, and thousands may begin to send at once.
        await self._traffic.turns.take(ConnectionShare())
        if len(self._begun) >= MAX_HANDSHAKES:
            self._traffic.refuse(RefusalReason.HANDSHAKE)
            next(iter(self._begun)).cancel()
        opening.begun = asyncio.current_task()
        self._begun[opening.begun] = None
        protocol = self._protocols(opening.slot)
        secure: dict[str, Any] = (
            {"ssl": self._tls, "ssl_handshake_timeout": self._handshake_timeout} if self._tls else {}
        )
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, opening.arrived, **secure)

    def _opened(self, opening: _Opening, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._begun.pop(task, None)
        self._refusing -= opening.slot is None
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        self._traffic.closed += 1
        if opening.begun is None:
            # Cancelled before its turn came, so no transport closes the socket.
            opening.arrived.close()
        if opening.slot is not None:
            self._admission.leave(opening.slot)
        if error is not None:
            # The reason of a failed handshake is the peer's problem; it is only counted.
            self._traffic.refuse(RefusalReason.HANDSHAKE)
            if not isinstance(error, OSError):
                _log.warning("grpc_connection_failed", error=f"{type(error).__name__}: {error}")


class _Opening:
    """A connection whose peer has sent the first byte and that is not served yet."""

    def __init__(self, arrived: socket.socket, slot: Slot | None) -> None:
        self.arrived = arrived
        self.slot = slot
        self.begun: asyncio.Task[Any] | None = None


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _bound(family: int, kind: int, protocol: int, address: Any, backlog: int) -> socket.socket:
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"can't listen on {address[0]} port {address[1]}: {error.strerror}") from None
    return listening
