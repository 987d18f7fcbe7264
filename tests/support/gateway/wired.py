"""One client's connection of a gateway without sockets: a transport that notes what is done, and scripted brokers.

What a client sends is bytes of the protocol, made by kio; what it gets is read back the same way.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from assigner.gateway.codec import decode_response, encode, has_tagged_header, make, request_class
from assigner.gateway.login.access import ClientAccess
from assigner.gateway.login.sasl import Logins
from assigner.gateway.requests import Handlers
from assigner.gateway.settings import GatewaySettings
from assigner.gateway.upstream.brokers import Broker, BrokerApis
from assigner.gateway.wire.connection import ClientConnection
from assigner.gateway.wire.frames import FrameReader
from assigner.gateway.wire.shared import Wire

NODE = 3
PORT = 20_003
BROKER_APIS = BrokerApis(
    {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 10: (0, 6), 19: (2, 7), 22: (0, 6), 60: (0, 2)}
)


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_700_000_000.0 + self.time


class NotedTransport(asyncio.Transport):
    """Notes what is written, and whether it reads."""

    def __init__(self, **extra: Any) -> None:
        super().__init__({"peername": ("192.0.2.7", 5000), **extra})
        self.sent = bytearray()
        self.reads = True
        self.closed = False
        self.aborted = False

    def write(self, data: Any) -> None:
        assert not self.closed, "written after close"
        self.sent += data

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class ScriptedConnection:
    """A connection to a broker: notes what is sent to it, and answers what the test says."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.reads = True
        self.closed = False
        self.aborted = False
        self.pipe: Any = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def join(self, pipe: Any) -> None:
        self.pipe = pipe
        self._reader = FrameReader(pipe)

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self, paused: bool) -> None:
        self.reads = not paused

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def answers(self, data: bytes) -> None:
        self._reader.feed(data)

    def is_lost(self) -> None:
        self.lost.set_result(None)
        self.pipe.broker_is_lost()


class ScriptedBrokers:
    """One broker that is up, and connections to it that the test scripts."""

    def __init__(self) -> None:
        self.broker = Broker(NODE, "broker-3.internal", 9092)
        self.broker.apis = BROKER_APIS
        self.connections: list[ScriptedConnection] = []
        self.may_connect = asyncio.Event()
        self.may_connect.set()
        self.failure: Exception | None = None
        self.looked = 0
        self.coordinators: dict[str, Broker] = {}

    @property
    def up(self) -> list[Broker]:
        return [self.broker] if self.broker.is_up else []

    def get(self, node_id: int) -> Broker | None:
        return self.broker if node_id == NODE else None

    def next_up(self) -> Broker | None:
        return self.broker if self.broker.is_up else None

    def coordinator_of(self, group: str) -> Broker | None:
        return self.coordinators.get(group) or self.next_up()

    def common_apis(self) -> BrokerApis | None:
        return self.broker.apis

    def look(self) -> None:
        self.looked += 1

    async def connect(self, _: Broker) -> ScriptedConnection:
        await self.may_connect.wait()
        if self.failure is not None:
            raise self.failure
        self.connections.append(ScriptedConnection())
        return self.connections[-1]


class NotedPlace:
    def __init__(self) -> None:
        self.used = 0
        self.left = 0

    def on_close(self, close: Callable[[], None]) -> None:
        self.close = close

    def is_used(self) -> None:
        self.used += 1

    def leave(self) -> None:
        self.left += 1


class WiredGateway:
    """What connections share, with scripted brokers."""

    def __init__(
        self, handlers: Handlers | None = None, *, logins: Logins | None = None, required: bool = False, **settings: Any
    ) -> None:
        self.clock = SetClock()
        self.brokers = ScriptedBrokers()
        chosen = GatewaySettings(**settings)
        access = ClientAccess(self.clock, required=required)
        brokers: Any = self.brokers
        self.wire = Wire(chosen, handlers or {}, brokers, access, logins or Logins((), self.clock), self.clock)
        self.wire.advertised_host = "gateway.example"
        self.wire.ports[NODE] = PORT

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.wire.traffic.refused)

    def client(self, *, node_id: int = NODE, **extra: Any) -> WiredClient:
        return WiredClient(self, node_id, **extra)


class WiredClient:
    """A client's end."""

    def __init__(self, gateway: WiredGateway, node_id: int, **extra: Any) -> None:
        self.gateway = gateway
        self.place = NotedPlace()
        self.connection = ClientConnection(gateway.wire, "test", node_id, self.place)
        self.transport = NotedTransport(**extra)
        self.connection.connection_made(self.transport)
        self._read = 0
        self._correlation = 0

    @property
    def is_open(self) -> bool:
        return not self.transport.closed

    @property
    def upstream(self) -> ScriptedConnection:
        return self.gateway.brokers.connections[-1]

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def request(self, api: int, version: int, **fields: Any) -> int:
        """Send a request and return its correlation id."""
        self._correlation += 1
        self.send(framed(api, version, self._correlation, **fields))
        return self._correlation

    def gone(self) -> None:
        """What the transport calls after a close, or when the client hung up."""
        self.transport.closed = True
        self.connection.connection_lost(None)

    def frames(self) -> list[bytes]:
        """The frames that were sent since the last look, without their lengths."""
        found = []
        while len(self.transport.sent) - self._read >= 4:
            size = struct.unpack_from(">i", self.transport.sent, self._read)[0]
            if len(self.transport.sent) - self._read - 4 < size:
                break
            found.append(bytes(self.transport.sent[self._read + 4 : self._read + 4 + size]))
            self._read += 4 + size
        return found

    def answers(self, api: int, version: int) -> list[tuple[int, Any]]:
        """The answers since the last look, which are all of that kind, with their correlation ids."""
        return [read_answer(api, version, frame) for frame in self.frames()]

    def correlations(self) -> list[int]:
        """The correlation ids of the answers since the last look."""
        return [struct.unpack_from(">i", frame)[0] for frame in self.frames()]


def framed(api: int, version: int, correlation: int, *, client_id: str = "client", **fields: Any) -> bytes:
    """A request with its length and its header."""
    schema = request_class(api, version)
    return framed_body(api, version, correlation, encode(make(schema, **fields)), client_id=client_id)


def framed_body(api: int, version: int, correlation: int, body: bytes, *, client_id: str = "client") -> bytes:
    name = client_id.encode()
    head = struct.pack(">hhih", api, version, correlation, len(name)) + name
    if request_class(api, version).__flexible__:
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def framed_answer(api: int, version: int, correlation: int, answer: Any) -> bytes:
    """A broker's answer with its length and its header."""
    body = encode(answer)
    head = struct.pack(">i", correlation) + (b"\0" if has_tagged_header(api, version) else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def read_answer(api: int, version: int, frame: bytes) -> tuple[int, Any]:
    start = 5 if has_tagged_header(api, version) else 4
    return struct.unpack_from(">i", frame)[0], decode_response(api, version, frame[start:])


async def settle() -> None:
    """Let everything run that is ready to."""
    for _ in range(10):
        await asyncio.sleep(0)
