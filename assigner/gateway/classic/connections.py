"""Makes calls at the instances that lead classic groups, over gRPC connections that many clients share.

A JoinGroup waits for minutes and takes a stream of its connection meanwhile. So there are several connections to an
instance where there are many, and the short calls are bounded: a burst of them waits here and is not refused there.
Pings notice an instance that is gone or frozen, whatever is being waited for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

import anyio
import msgspec
from google.protobuf.message import Message
from grpclib.client import Channel

from assigner.client.channel import Address, Dialer, close_channel, parse_address, unary_call
from assigner.observability.tracing import context_headers
from assigner.proto import classic_groups as wire
from assigner.proto.classic_groups import Method
from assigner.proto.runtime import message_class

MOST_INSTANCES = 64
"""Instances with connections; those of the least recently used one are closed."""
LONG_CALLS = 400
"""Calls that may wait on one connection, of the thousand streams that an instance allows."""
MOST_CONNECTIONS = 32
"""To one instance."""
SHORT_CALLS = 64
"""Other calls at a time to one instance."""
MAX_ELEMENTS = 100_000
"""Of a list in an answer."""
A = TypeVar("A", bound=msgspec.Struct)


class _Connection:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.long_calls = 0


class _Instance:
    def __init__(self, address: Address, dialer: Dialer) -> None:
        self._address = address
        self._dialer = dialer
        self._short = anyio.CapacityLimiter(SHORT_CALLS)
        self._connections: list[_Connection] = []

    async def call(
        self, method: Method, request: Message, metadata: dict[str, str], timeout: float, *, long: bool
    ) -> Message:
        if not long:
            async with self._short:
                return await self._make(self._connection(0), method, request, metadata, timeout)
        connection = self._roomy()
        connection.long_calls += 1
        try:
            return await self._make(connection, method, request, metadata, timeout)
        finally:
            connection.long_calls -= 1

    async def _make(
        self, connection: _Connection, method: Method, request: Message, metadata: dict[str, str], timeout: float
    ) -> Message:
        answer: type[Message] = message_class(method.answer)
        return await unary_call(connection.channel, method.path, request, answer, timeout, metadata=metadata)

    def _roomy(self) -> _Connection:
        """The connection with the fewest calls that wait; a new one if all have many."""
        found = min(self._connections, key=lambda one: one.long_calls, default=None)
        if found is None or (found.long_calls >= LONG_CALLS and len(self._connections) < MOST_CONNECTIONS):
            return self._connection(len(self._connections))
        return found

    def _connection(self, number: int) -> _Connection:
        if number >= len(self._connections):
            self._connections.append(_Connection(self._dialer.dial(self._address)))
        return self._connections[number]

    async def close(self) -> None:
        for one in self._connections:
            await close_channel(one.channel)


class LeaderConnections:
    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._instances: OrderedDict[str, _Instance] = OrderedDict()

    async def call(
        self,
        address: str,
        method: Method,
        kind: type[A],
        request: msgspec.Struct,
        *,
        org: str,
        principal: str,
        timeout: float,
    ) -> A:
        """Make a call at that address. Raises the client's errors: `Unavailable` if another try may help."""
        instance = await self._instance(address)
        long = method in (wire.JOIN, wire.SYNC)
        message: Message = wire.message_of(method.request, request)
        metadata = {**wire.carrier(org, principal), **context_headers()}
        reply = await instance.call(method, message, metadata, timeout, long=long)
        return wire.value_of(reply, kind, MAX_ELEMENTS)

    async def _instance(self, address: str) -> _Instance:
        found = self._instances.get(address)
        if found is None:
            found = self._instances[address] = _Instance(parse_address(address), self._dialer)
            if len(self._instances) > MOST_INSTANCES:
                _, oldest = self._instances.popitem(last=False)
                await oldest.close()
        else:
            self._instances.move_to_end(address)
        return found

    async def close(self) -> None:
        while self._instances:
            _, instance = self._instances.popitem()
            await instance.close()
