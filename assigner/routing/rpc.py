"""Makes the calls of one router to one instance of the service.

Requests and replies are messages of protobuf's C runtime, as the consumers' are: a long table is read without holding
the event loop, and a router need not import the generated classes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from grpclib.client import Channel

from assigner.client.channel import stream_call, unary_call
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck
from assigner.proto.runtime import message_class

_SERVICE = "/kafka_assigner.v1.Router/"


class RouterIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The group, name and properties of a router's registration."""

    group: str
    name: str
    session: str
    loads: bool = False
    """The router wants to be sent the published loads."""


class RouterRpc:
    """One router's calls over one channel."""

    def __init__(self, channel: Channel, identity: RouterIdentity, timeout: float) -> None:
        self._channel = channel
        self._identity = identity
        self._timeout = timeout

    async def register(self) -> AsyncGenerator[Any, None]:
        """Register, and yield the stream's RoutingUpdate messages."""
        request = message_class("RegisterRouterRequest")(loads=self._identity.loads, **self._caller())
        update = message_class("RoutingUpdate")
        async with aclosing(stream_call(self._channel, _SERVICE + "RegisterRouter", request, update)) as stream:
            async for message in stream:
                yield message

    async def renew(self, timeout: float) -> float:
        """Renew the registration; returns the TTL in seconds."""
        request = message_class("RenewRouterRequest")(**self._caller())
        return float((await self._call("RenewRouter", request, timeout)).ttl_ms / 1000)

    async def acknowledge(self, acks: Sequence[FreezeAck]) -> dict[TopicPartition, str]:
        """Acknowledge freezes; returns those that the service rejected, and why."""
        listed = [{"topic": ack.tp.topic, "partition": ack.tp.partition, "handoff_id": ack.handoff_id} for ack in acks]
        request = message_class("CutoverAckRequest")(acks=listed, **self._caller())
        reply = await self._call("CutoverAck", request)
        return {
            TopicPartition(one.partition.topic, one.partition.partition): one.reason
            for one in reply.refusals
            if one.HasField("partition")
        }

    async def deregister(self) -> None:
        await self._call("DeregisterRouter", message_class("DeregisterRouterRequest")(**self._caller()))

    def _caller(self) -> dict[str, Any]:
        identity = self._identity
        return {"router_name": identity.name, "group": identity.group, "session": identity.session}

    async def _call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        reply = message_class(f"{method}Response")
        return await unary_call(self._channel, _SERVICE + method, request, reply, timeout or self._timeout)
