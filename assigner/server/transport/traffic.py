"""Counts the connections and calls of the whole server, and what was refused and why.

Shared by all connections of one server, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import msgspec
from grpclib.const import Status

from assigner.clock import Clock
from assigner.server.access import Access
from assigner.server.settings import ServerSettings
from assigner.server.transport.admission import Admission
from assigner.server.transport.fair_turns import FairTurns
from assigner.server.transport.send_buffers import Sending
from assigner.server.transport.status import CallStatus

SHUTTING_DOWN = CallStatus(Status.UNAVAILABLE, "instance is shutting down, reconnect elsewhere", "")


class RefusalReason(str, Enum):
    """Why a connection or a call was refused or ended by the server."""

    CONNECTIONS = "connections"
    STREAMS = "streams"
    STREAMS_PER_CONNECTION = "streams_per_connection"
    MESSAGE_SIZE = "message_size"
    METADATA_SIZE = "metadata_size"
    METADATA = "metadata"
    BATCH_SIZE = "batch_size"
    REQUEST_TIMEOUT = "request_timeout"
    SLOW_CONSUMER = "slow_consumer"
    HANDSHAKE = "handshake"
    IDLE = "idle"
    DEAD_PEER = "dead_peer"
    FLOOD = "flood"
    UNREAD = "unread"
    UNREAD_ANSWERS = "unread_answers"
    PROTOCOL = "protocol"
    DRAINING = "draining"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    FILES = "files"
    ACCEPT = "accept"


class ServerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    connections: int
    streams: int
    """Calls in progress, of any kind."""
    calls: int
    """Calls taken since the start."""
    waiting: int
    """Calls that wait for their turn to work."""
    unsent_bytes: int
    """Waiting in the send buffers of all connections."""
    refused: dict[str, int]
    tls_reloads: int = 0
    tls_reload_failures: int = 0


class Peer(Protocol):
    """A connection, as far as the server as a whole uses it."""

    def end_calls(self, status: CallStatus, *, streaming_only: bool) -> None: ...

    def leave_when_done(self) -> None:
        """Send GOAWAY and close as soon as no call is in progress."""
        ...

    def abort(self) -> None: ...

    def unsent_bytes(self) -> int: ...


class Traffic:
    def __init__(self, settings: ServerSettings, clock: Clock, access: Access | None = None) -> None:
        """`access`: who may call; by default everybody."""
        self.access = access or Access()
        self.settings = settings
        self.clock = clock
        self.turns = FairTurns()
        self.admission = Admission(settings.max_connections, settings.max_connections_per_address)
        self.sending = Sending(clock, lambda: self.refuse(RefusalReason.UNREAD_ANSWERS))
        self.making_room = 0
        """Connections that are closing to make room and have not ended yet."""
        self.closed = 0
        """Connections that have ended."""
        self.peers: set[Peer] = set()
        self.in_progress = 0
        self.no_consumer_calls = 0
        """Of those, on connections without a registered consumer."""
        self.no_consumer_room = max(1, settings.max_streams // 2)
        """Calls of connections without a consumer; the rest is reserved for connections with one."""
        self.draining = False
        self._calls = 0
        self._refused: Counter[RefusalReason] = Counter()
        self._changed = asyncio.Event()

    def refuse(self, reason: RefusalReason) -> None:
        self._refused[reason] += 1

    def arrived(self, peer: Peer) -> None:
        self.peers.add(peer)

    def left(self, peer: Peer) -> None:
        self.peers.discard(peer)
        self.closed += 1
        self._changed.set()

    def call_began(self, *, without_consumer: bool) -> None:
        self.in_progress += 1
        self.no_consumer_calls += without_consumer
        self._calls += 1

    def call_ended(self, *, without_consumer: bool) -> None:
        self.in_progress -= 1
        self.no_consumer_calls -= without_consumer
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked whenever a call or a connection ends."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            connections=len(self.admission),
            streams=self.in_progress,
            calls=self._calls,
            waiting=len(self.turns),
            unsent_bytes=sum(peer.unsent_bytes() for peer in self.peers),
            refused={reason.value: self._refused[reason] for reason in RefusalReason},
        )
