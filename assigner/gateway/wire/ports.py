"""Opens a port for each broker that is up, and one for clients that know no broker yet.

A client reads a partition from the address of the broker that leads it, so every broker has a port of its own here, and
keeps it. While a broker is away its port is closed, together with the connections on it: clients know what to do about
a broker that does not accept them, and nothing about one that accepts and then hangs up.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from assigner.gateway.wire.connection import ClientConnection
from assigner.gateway.wire.shared import BOOTSTRAP, Wire
from assigner.logs import get_logger
from assigner.server.transport.admission import Admission, ConnectionStage, Slot
from assigner.server.transport.listener import Listener
from assigner.server.transport.traffic import Traffic

_LARGEST_PORT = 65_535

_log = get_logger(__name__)


class _KafkaListener(Listener):
    def _log_failure(self, error: OSError) -> None:
        _log.error(
            "kafka_accept_failed", error=str(error), remedy="allow more open files, or lower gateway.max_connections"
        )


class _Admitted:
    """The place of one connection."""

    def __init__(self, admission: Admission, slot: Slot, now: Callable[[], float]) -> None:
        self._admission = admission
        self._slot = slot
        self._now = now

    def on_close(self, close: Callable[[], None]) -> None:
        self._slot.close = close

    def is_used(self) -> None:
        self._admission.move(self._slot, ConnectionStage.CONSUMERS, self._now())

    def leave(self) -> None:
        self._admission.leave(self._slot)


class _Refused(asyncio.Protocol):
    """A connection for which there is no room. Kafka has no words for that."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Ports:
    def __init__(self, wire: Wire, admission: Traffic, tls: ssl.SSLContext | None) -> None:
        """`admission`: counts the connections of all ports together."""
        self._wire = wire
        self._admission = admission
        self._tls = tls
        self._open: dict[int, Listener] = {}
        self._failed: set[int] = set()
        self.bootstrap = wire.settings.port
        """The port that stands for no broker, once it was opened."""

    async def open_bootstrap(self) -> None:
        """Open the port that stands for no broker. Raises `OSError`."""
        settings = self._wire.settings
        listener = self._open[BOOTSTRAP] = await self._listen("bootstrap", BOOTSTRAP, settings.port)
        self.bootstrap = listener.port

    async def _listen(self, name: str, node_id: int, port: int) -> Listener:
        settings, wire, admission = self._wire.settings, self._wire, self._admission

        def protocol(slot: Slot | None) -> asyncio.BaseProtocol:
            if slot is None:
                return _Refused()
            place = _Admitted(admission.admission, slot, wire.clock.now)
            return ClientConnection(wire, name, node_id, place)

        listener = _KafkaListener(admission, protocol, tls=self._tls)
        await listener.start(settings.host, port, settings.backlog)
        return listener

    async def match(self) -> bool:
        """Open the ports of brokers that are up and close the others; False: one could not be opened."""
        if self._wire.traffic.draining:
            return True
        for node_id in [one for one in self._open if one != BOOTSTRAP]:
            broker = self._wire.brokers.get(node_id)
            if broker is None or not broker.is_up:
                await self._close(node_id, "away" if broker is not None else "gone")
            if broker is None:
                del self._wire.ports[node_id]
        complete = True
        for broker in self._wire.brokers.up:
            if broker.node_id not in self._open:
                complete = await self._open_for(broker.node_id) and complete
        return complete

    async def _open_for(self, node_id: int) -> bool:
        first = self._wire.settings.first_broker_port
        port = first + node_id if first else self._wire.ports.get(node_id, 0)
        try:
            if port > _LARGEST_PORT:
                raise OSError(f"broker {node_id} would be at port {port}; set gateway.broker_base_port lower")
            listener = await self._listen(f"broker-{node_id}", node_id, port)
        except OSError as error:
            if node_id not in self._failed:
                self._failed.add(node_id)
                _log.error("kafka_port_not_opened", node=node_id, port=port, error=str(error))
            return False
        self._failed.discard(node_id)
        self._open[node_id] = listener
        self._wire.ports[node_id] = listener.port
        _log.info("kafka_port_opened", node=node_id, port=listener.port)
        return True

    async def _close(self, node_id: int, why: str) -> None:
        listener = self._open.pop(node_id)
        listener.close()
        await listener.wait_closed()
        for connection in self._wire.traffic.at(node_id):
            connection.close_for("upstream", f"broker {node_id} is {why}")
        _log.warning("kafka_port_closed", node=node_id, port=self._wire.ports.get(node_id), why=why)

    def close(self) -> None:
        """Accept no more connections."""
        for listener in self._open.values():
            listener.close()

    async def wait_closed(self) -> None:
        """Wait until handshakes in progress have ended."""
        for listener in self._open.values():
            await listener.wait_closed()


def advertised_host(host: str, advertised: str) -> str:
    """The host that clients are told."""
    if advertised:
        return advertised
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host
