"""Counts what the connections of one gateway do, bounds what they hold in memory together, and says what was refused.

Labels are few: APIs by their key, reasons from this module. Shared by all ports, on one event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from assigner.gateway.requests import Interruption
from assigner.logs import get_logger
from assigner.logs.printable import one_line

if TYPE_CHECKING:
    from assigner.gateway.wire.connection import ClientConnection
    from assigner.gateway.wire.pipe import BrokerPipe

MOST_BUFFERED = 256 * 1024 * 1024
"""Bytes of requests that are being read whole, of all connections together."""
SMALL = 64 * 1024
"""Requests up to this size are not counted in that: the number of connections bounds them."""
MOST_ORPHANS = 1_000
"""Handlers that still work for connections that are gone."""

REASONS = (
    "malformed",
    "unsupported",
    "too_large",
    "memory",
    "unauthenticated",
    "session_expired",
    "withdrawn",
    "forbidden",
    "upstream",
    "idle",
    "slow",
    "handshake",
    "handler",
    "draining",
    "fetchers",
)
"""Why connections are closed by the gateway."""

_log = get_logger(__name__)


class GatewayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    connections: int = 0
    parked: int = 0
    """Requests whose answers are awaited or held back."""
    buffered_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    upstream_connections: int = 0
    upstream_failures: int = 0
    """Connections to brokers that could not be opened, or were lost with requests in flight."""
    brokers_up: int = 0
    requests: dict[int, int] = {}
    """By API key."""
    refused: dict[str, int] = {}
    """Connections closed or not accepted, by reason."""
    logins: dict[str, int] = {}
    """SASL logins by how they ended."""


class GatewayTraffic:
    def __init__(self) -> None:
        self.connections: set[ClientConnection] = set()
        self.requests: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self.received = 0
        self.sent = 0
        self.buffered = 0
        self.parked = 0
        self.pipes: set[BrokerPipe] = set()
        """Connections to brokers, one for each client that needs one."""
        self.upstream_failures = 0
        self.draining = False
        self._fetchers: dict[tuple[str, str, str], set[ClientConnection]] = {}
        self._orphans: dict[object, Callable[[], object]] = {}
        self._emptied: list[Callable[[], None]] = []

    def refuse(self, reason: str, host: str, message: str) -> None:
        """Count a connection that is closed, and say why; the log limits how often."""
        self.refused[reason] += 1
        _log.warning("kafka_connection_closed", reason=reason, host=host, message=one_line(message[:300]))

    # --- memory --------------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        """Take room for a request that is read whole; False: there is none."""
        if size <= SMALL:
            return True
        if self.buffered + size > MOST_BUFFERED:
            return False
        self.buffered += size
        return True

    def release(self, size: int) -> None:
        if size > SMALL:
            self.buffered -= size

    # --- connections ---------------------------------------------------------------------------------------------

    def arrived(self, connection: ClientConnection) -> None:
        self.connections.add(connection)

    def left(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            for tell in self._emptied:
                tell()
            self._emptied.clear()

    def when_empty(self, tell: Callable[[], None]) -> None:
        """Call `tell` once when no connection is left."""
        if self.connections:
            self._emptied.append(tell)
        else:
            tell()

    def at(self, node_id: int) -> Iterator[ClientConnection]:
        """The connections on a broker's port."""
        return (one for one in list(self.connections) if one.node_id == node_id)

    def interrupt(self, one: Interruption) -> None:
        for connection in list(self.connections):
            connection.interrupt(one)

    def orphaned(self, work: object, cancel: Callable[[], object]) -> None:
        """Remember a handler whose client is gone; of too many the oldest is cancelled."""
        self._orphans[work] = cancel
        if len(self._orphans) > MOST_ORPHANS:
            oldest = next(iter(self._orphans))
            self._orphans.pop(oldest)()

    def finished(self, work: object) -> None:
        self._orphans.pop(work, None)

    def cancel_orphans(self) -> None:
        for cancel in list(self._orphans.values()):
            cancel()

    # --- connections that fetch ------------------------------------------------------------------------------------

    def fetches(self, connection: ClientConnection, client_id: str) -> None:
        """Note that the connection has sent a Fetch."""
        key = (connection.client.identity, client_id, connection.client.host)
        self._fetchers.setdefault(key, set()).add(connection)
        connection.fetches_as.add(key)

    def fetches_no_more(self, connection: ClientConnection) -> None:
        for key in connection.fetches_as:
            found = self._fetchers.get(key)
            if found is not None:
                found.discard(connection)
                if not found:
                    del self._fetchers[key]
        connection.fetches_as.clear()

    def close_fetchers(self, principal: str, client_id: str, host: str) -> int:
        """See `requests.FetchConnections`."""
        found = list(self._fetchers.get((principal, client_id, host), ()))
        for connection in found:
            connection.close_for("fetchers", "its client lost its lease")
        return len(found)
