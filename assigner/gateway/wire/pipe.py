"""The broker's side of a client's connection: opened when the first request is passed on, and lost together with it.

Requests that were passed on are answered by the broker in order. An answer goes to the client in the pieces in which it
arrives, unless it may name brokers: then it is held until it is whole and rewritten.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Protocol

import msgspec

from assigner.aio.supervision import report_failure
from assigner.errors import SourceUnavailable
from assigner.gateway.checks import Malformed
from assigner.gateway.upstream.brokers import Broker, Brokers
from assigner.gateway.upstream.connection import BrokerConnection
from assigner.gateway.upstream.rewriting import Endpoint, rewrite
from assigner.gateway.wire.frames import LENGTH, ProtocolViolation, Wanted

LARGEST_REWRITTEN = 64 * 1024 * 1024
_BACKLOG = 64 * 1024
"""Bytes that wait for the connection before the client is not read any more."""
_CORRELATION = struct.Struct(">i")


class Forwarded(msgspec.Struct, frozen=True):
    """A request that was passed on and has no answer yet."""

    api: int
    version: int
    correlation: int
    rewrites: bool


class PipeOwner(Protocol):
    """The client's connection, as far as its pipe uses it."""

    def broker_answers(self) -> Forwarded | None:
        """The request that the broker answers next."""
        ...

    def pass_on(self, data: bytes) -> None:
        """Send a piece of the broker's answer to the client."""
        ...

    def answer_is_complete(self) -> None: ...

    def broker_is_full(self, full: bool) -> None: ...

    def broker_failed(self, why: str) -> None: ...


class BrokerPipe:
    def __init__(
        self,
        owner: PipeOwner,
        brokers: Brokers,
        broker: Callable[[], Broker | None],
        endpoint: Endpoint,
        pipes: set[BrokerPipe],
    ) -> None:
        """`broker`: which one to connect to; None: none is up. `pipes`: this one is among them until it is done."""
        self._owner = owner
        self._brokers = brokers
        self._broker = broker
        self._endpoint = endpoint
        self._connection: BrokerConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._backlog: list[bytes] = []
        self._waiting = 0
        self._paused = False
        self._closed = False
        self._pipes = pipes
        pipes.add(self)

    def send(self, data: bytes) -> None:
        """Send bytes of requests to the broker, as soon as it is connected."""
        if self._connection is not None:
            self._connection.write(data)
            return
        self._backlog.append(data)
        self._waiting += len(data)
        if self._waiting > _BACKLOG:
            self._owner.broker_is_full(True)
        if self._opening is None and not self._closed:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="connection to a broker")
            self._opening.add_done_callback(report_failure)

    async def _open(self) -> None:
        broker = self._broker()
        if broker is None:
            self._failed("no broker is up")
            return
        try:
            connection = await self._brokers.connect(broker)
        except SourceUnavailable as error:
            self._brokers.look()
            self._failed(str(error))
            return
        except Exception:
            self._failed("an unexpected error, which the log shows")
            raise
        connection.join(self)
        if connection.lost.done():
            self._failed("the broker hung up")
            return
        self._connection = connection
        if self._paused:
            connection.pause_reading(True)
        was_full = self._waiting > _BACKLOG
        backlog, self._backlog, self._waiting = self._backlog, [], 0
        for data in backlog:
            connection.write(data)
        # Not before the backlog is sent: the owner goes on reading at once, and what it sends must not overtake it.
        if was_full and not self._closed:
            self._owner.broker_is_full(False)
        if self._closed:
            connection.close()

    def pause(self, paused: bool) -> None:
        """Stop or go on reading from the broker, as the client does."""
        if paused != self._paused:
            self._paused = paused
            if self._connection is not None:
                self._connection.pause_reading(paused)

    def close(self) -> None:
        """Give the connection up, once the broker has all that the client sent: a client that asked for no acks leaves
        when it has sent. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._connection is not None:
            self._connection.close()
        elif self._opening is None:
            self._pipes.discard(self)

    def abort(self) -> None:
        """Give the connection up at once."""
        self._closed = True
        if self._connection is not None:
            self._connection.abort()
        elif self._opening is not None:
            self._opening.cancel()
        self._pipes.discard(self)

    # --- what the broker sends ---

    @property
    def is_busy(self) -> bool:
        return False

    def begins(self, size: int, start: bytes) -> Wanted:
        if len(start) < 4:
            return Wanted.MORE
        expected = self._owner.broker_answers()
        if expected is None or _CORRELATION.unpack_from(start)[0] != expected.correlation:
            raise ProtocolViolation("upstream", "the broker answers what nobody asked")
        if not expected.rewrites:
            return Wanted.PIECES
        if size > LARGEST_REWRITTEN:
            raise ProtocolViolation("upstream", f"the answer to API {expected.api} has {size} bytes")
        return Wanted.WHOLE

    def frame(self, body: bytes) -> None:
        expected = self._owner.broker_answers()
        assert expected is not None
        try:
            changed = rewrite(expected.api, expected.version, body, self._endpoint)
        except Malformed as error:
            raise ProtocolViolation("upstream", f"the answer to API {expected.api} can't be read: {error}") from error
        self._owner.pass_on(LENGTH.pack(len(changed)) + changed)
        self._owner.answer_is_complete()

    def piece(self, data: bytes, *, is_last: bool) -> None:
        self._owner.pass_on(data)
        if is_last:
            self._owner.answer_is_complete()

    def broker_is_full(self, full: bool) -> None:
        if not self._closed:
            self._owner.broker_is_full(full)

    def broker_is_lost(self) -> None:
        self._failed("the broker hung up")

    def _failed(self, why: str) -> None:
        self._pipes.discard(self)
        if not self._closed:
            self._owner.broker_failed(why)
