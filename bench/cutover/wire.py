"""What routers and pods speak in the measurement: requests and answers over one TCP connection, any number in flight.

Plain asyncio with length-prefixed msgpack, because two cores have to carry 2,000 requests per second beside everything
else; HTTP in Python would take more than one of them. What it does not do, HTTP/2 would not do either: a request that
is in flight when the connection ends may or may not have had its effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum

import msgspec

_LENGTH = 4


class Verdict(IntEnum):
    DONE = 0
    STALE = 1
    """Nothing was done: the epoch is over, or the pod lost the partition. Look for another owner."""
    NOT_YET = 2
    """Nothing was done: the gate was about to open, or crowded. Come again."""


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    """Of the connection, so that answers may come in any order."""
    partition: int
    epoch: int
    key: str
    sequence: int


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    verdict: Verdict


class NotSent(Exception):
    """No connection: nothing of the request left."""


class Cut(Exception):
    """The connection ended while the request was in flight."""


class Frames(asyncio.Protocol):
    """Cuts what arrives into frames, and sends frames that are written in one turn of the loop together."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._arrived = bytearray()
        self._outgoing: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        arrived += data
        begin = 0
        while len(arrived) - begin >= _LENGTH:
            end = begin + _LENGTH + int.from_bytes(arrived[begin : begin + _LENGTH], "big")
            if len(arrived) < end:
                break
            self.frame_received(bytes(arrived[begin + _LENGTH : end]))
            begin = end
        del arrived[:begin]

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        if not self._outgoing and self.transport is not None:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(len(frame).to_bytes(_LENGTH, "big") + frame)

    def _flush(self) -> None:
        if self.transport is not None:
            self.transport.write(b"".join(self._outgoing))
            self._outgoing.clear()


class Connection(Frames):
    """A router's connection to one pod. Requests that come while it is being opened are sent once it is, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False
        self._waiting: dict[int, asyncio.Future[Verdict]] = {}
        self._number = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Answer).decode

    async def open(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
        except OSError:
            self._end(NotSent())

    def ask(self, partition: int, epoch: int, key: str, sequence: int) -> asyncio.Future[Verdict]:
        """The answer, or `NotSent` or `Cut`."""
        self._number += 1
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self.send(self._encode(Request(self._number, partition, epoch, key, sequence)))
        return answer

    def frame_received(self, frame: bytes) -> None:
        answer = self._decode(frame)
        waiting = self._waiting.pop(answer.number)
        if not waiting.done():
            waiting.set_result(answer.verdict)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._end(Cut())

    def _end(self, how: Exception) -> None:
        self.is_over = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(how)
        self._waiting.clear()


class Connections:
    """A router's connections, one to each pod, opened when they are needed."""

    def __init__(self) -> None:
        self._known: dict[str, Connection] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def ask(self, address: str, partition: int, epoch: int, key: str, sequence: int) -> asyncio.Future[Verdict]:
        """The answer, or `NotSent` or `Cut`. Requests leave in the order of the calls."""
        connection = self._known.get(address)
        if connection is None or connection.is_over:
            connection = self._known[address] = Connection()
            opening = asyncio.create_task(connection.open(address))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        return connection.ask(partition, epoch, key, sequence)

    def close(self) -> None:
        for connection in self._known.values():
            if connection.transport is not None:
                connection.transport.close()


class Requests(Frames):
    """A pod's end of one connection: each request is given to `handle` at once, with a way to answer it."""

    def __init__(self, handle: Callable[[Request, Callable[[Verdict], None]], None]) -> None:
        super().__init__()
        self._handle = handle
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Request).decode

    def frame_received(self, frame: bytes) -> None:
        request = self._decode(frame)
        self._handle(request, lambda verdict: self.send(self._encode(Answer(request.number, verdict))))
