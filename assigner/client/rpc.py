"""Makes the calls of one consumer to one instance of the service.

Requests and replies are messages of protobuf's C runtime: it reads long ones without holding the event loop, and
spares a consumer the import of the generated classes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any

import msgspec
from grpclib.client import Channel

from assigner.client.channel import stream_call, unary_call
from assigner.errors import InvalidInput
from assigner.model.commands import Ack
from assigner.model.keys import TopicPartition
from assigner.proto.runtime import enum_number, message_class

LOADS_PER_CALL = 5_000
LOADS_PER_LIST = 500
_SERVICE = "/kafka_assigner.v1.KafkaAssigner/"
_WAIT_FOR_DRAIN = enum_number("DeregisterAction", "DEREGISTER_ACTION_WAIT_FOR_DRAIN")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The group, name and properties of a registration. Calls without a registration use the group only."""

    group: str
    name: str = ""
    session: str = ""
    topics: tuple[str, ...] = ()
    capacity: float = 1.0
    rack: str = ""
    address: str = ""
    generation: str = ""
    cold: bool = False
    kind: str = ""


class ConsumerRpc:
    """One consumer's calls over one channel."""

    def __init__(self, channel: Channel, identity: Identity, timeout: float) -> None:
        self._channel = channel
        self._identity = identity
        self._timeout = timeout

    async def register(self) -> AsyncGenerator[Any, None]:
        """Register, and yield the stream's AssignmentCommand messages."""
        identity = self._identity
        request = message_class("RegisterRequest")(
            consumer_name=identity.name,
            group=identity.group,
            capacity=identity.capacity,
            rack=identity.rack,
            topics=list(identity.topics),
            session=identity.session,
            address=identity.address,
            packed=True,
            renews=True,
            generation=identity.generation,
            standbys=True,
            cold=identity.cold,
            kind=identity.kind,
        )
        command = message_class("AssignmentCommand")
        async with aclosing(stream_call(self._channel, _SERVICE + "Register", request, command)) as stream:
            async for message in stream:
                yield message

    async def renew(self, timeout: float) -> float:
        """Renew the session; returns the TTL in seconds."""
        request = message_class("RenewRequest")(
            consumer_name=self._identity.name, group=self._identity.group, session=self._identity.session
        )
        reply = await self._call("Renew", request, timeout)
        return float(reply.ttl_ms / 1000)

    async def ready(self, acks: Sequence[Ack]) -> dict[TopicPartition, str]:
        """Acknowledge warm partitions; returns those that the service rejected, and why."""
        first = acks[0]
        request = message_class("PartitionReadyRequest")(failure=first.failure, **self._ack_fields(acks))
        return _reasons((await self._call("PartitionReady", request)).refusals)

    async def released(self, acks: Sequence[Ack]) -> dict[TopicPartition, str]:
        """Acknowledge released partitions; returns those that the service rejected, and why."""
        request = message_class("PartitionReleasedRequest")(**self._ack_fields(acks))
        return _reasons((await self._call("PartitionReleased", request)).refusals)

    async def report_load(self, topics: list[Any], node: float | None) -> float:
        """Report loads; returns the seconds after which another report is of use. `topics`: TopicLoads messages."""
        request = message_class("ReportLoadRequest")(
            consumer_name=self._identity.name,
            topics=topics,
            node_load=node,
            group=self._identity.group,
            session=self._identity.session,
        )
        return float((await self._call("ReportLoad", request)).next_report_ms / 1000)

    async def commit(self, topics: list[dict[str, Any]]) -> Any:
        """Commit offsets; returns the CommitOffsetsResponse. `topics`: the fields of TopicOffsets messages."""
        request = message_class("CommitOffsetsRequest")(
            consumer_name=self._identity.name, topics=topics, group=self._identity.group, session=self._identity.session
        )
        return await self._call("CommitOffsets", request)

    async def fetch(self, topics: list[dict[str, Any]]) -> Any:
        """Fetch offsets; returns the FetchOffsetsResponse. `topics`: the fields of TopicPartitions messages."""
        request = message_class("FetchOffsetsRequest")(topics=topics, group=self._identity.group)
        return await self._call("FetchOffsets", request)

    async def deregister(self, *, gates_closed: bool) -> bool:
        """Deregister; returns whether the consumer has to wait until its partitions are drained."""
        request = message_class("DeregisterRequest")(
            consumer_name=self._identity.name,
            group=self._identity.group,
            session=self._identity.session,
            gates_closed=gates_closed,
        )
        return bool((await self._call("Deregister", request)).action == _WAIT_FOR_DRAIN)

    def _ack_fields(self, acks: Sequence[Ack]) -> dict[str, Any]:
        first, *others = acks
        return {
            "consumer_name": self._identity.name,
            "group": self._identity.group,
            "session": self._identity.session,
            "partition": _partition(first),
            "handoff_id": first.handoff_id,
            "batch": [
                {"partition": _partition(one), "handoff_id": one.handoff_id, "failure": one.failure} for one in others
            ],
        }

    async def _call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        reply = message_class(f"{method}Response")
        return await unary_call(self._channel, _SERVICE + method, request, reply, timeout or self._timeout)


def _partition(ack: Ack) -> dict[str, Any]:
    """Build the fields of a TopicPartition message."""
    return {"topic": ack.tp.topic, "partition": ack.tp.partition}


def _reasons(refusals: Iterable[Any]) -> dict[TopicPartition, str]:
    return {
        TopicPartition(one.partition.topic, one.partition.partition): one.reason
        for one in refusals
        if one.HasField("partition")
    }


# --- loads, cut into messages that the service accepts -------------------------------------------------------------


def load_messages(
    loads: Mapping[TopicPartition, float], node: float | None
) -> Iterator[tuple[list[Any], float | None]]:
    """Cut loads into requests, at least one, each a list of TopicLoads messages; the node's load goes with the first.
    Raises `InvalidInput` for a number that is not a load."""
    if node is not None:
        _check_load("node", node)
    rest = iter(sorted(loads.items()))
    while part := list(islice(rest, LOADS_PER_CALL)):
        yield list(_lists(part)), node
        node = None
    if not loads:
        yield [], node


def _lists(part: list[tuple[TopicPartition, float]]) -> Iterator[Any]:
    kind = message_class("TopicLoads")
    message = kind()
    for tp, load in part:
        _check_load(str(tp), load)
        if tp.topic != message.topic or len(message.partitions) >= LOADS_PER_LIST:
            if message.partitions:
                yield message
            message = kind(topic=tp.topic)
        message.partitions.append(tp.partition)
        message.loads.append(float(load))
    yield message


def _check_load(what: str, load: float) -> None:
    if not math.isfinite(load) or load < 0:
        raise InvalidInput(f"the load of {what} is {load}; it must be a number from 0 up")
