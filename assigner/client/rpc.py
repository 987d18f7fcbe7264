"""Makes the calls of one consumer to one instance of the service."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, TypeVar

import msgspec
from grpclib.client import Channel

from assigner.client.channel import stream_call, unary_call
from assigner.errors import InvalidInput
from assigner.model.commands import Ack
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class

LOADS_PER_CALL = 5_000
LOADS_PER_LIST = 500
_SERVICE = "/kafka_assigner.v1.KafkaAssigner/"
_M = TypeVar("_M")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer registers as. Calls that need no registration use the group only."""

    group: str
    name: str = ""
    session: str = ""
    topics: tuple[str, ...] = ()
    capacity: float = 1.0
    rack: str = ""
    address: str = ""
    generation: str = ""


class ConsumerRpc:
    """One consumer's calls over one channel."""

    def __init__(self, channel: Channel, identity: Identity, timeout: float) -> None:
        self._channel = channel
        self._identity = identity
        self._timeout = timeout

    async def register(self) -> AsyncGenerator[Any, None]:
        """Register, and yield the stream's messages as the C runtime's AssignmentCommand."""
        identity = self._identity
        request = v1.RegisterRequest(
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
        )
        async with aclosing(stream_call(self._channel, _SERVICE + "Register", request, v1.AssignmentCommand)) as stream:
            async for message in stream:
                yield message

    async def renew(self, timeout: float) -> float:
        """Renew the session; returns the TTL in seconds."""
        request = v1.RenewRequest(
            consumer_name=self._identity.name, group=self._identity.group, session=self._identity.session
        )
        reply = await self._call("Renew", request, v1.RenewResponse, timeout)
        return reply.ttl_ms / 1000

    async def ready(self, acks: Sequence[Ack]) -> dict[TopicPartition, str]:
        """Acknowledge warm partitions; returns those that the service rejected, and why."""
        first = acks[0]
        request = v1.PartitionReadyRequest(failure=first.failure, **self._ack_fields(acks))
        return _reasons((await self._call("PartitionReady", request, v1.PartitionReadyResponse)).refusals)

    async def released(self, acks: Sequence[Ack]) -> dict[TopicPartition, str]:
        """Acknowledge released partitions; returns those that the service rejected, and why."""
        request = v1.PartitionReleasedRequest(**self._ack_fields(acks))
        return _reasons((await self._call("PartitionReleased", request, v1.PartitionReleasedResponse)).refusals)

    async def report_load(self, topics: list[v1.TopicLoads], node: float | None) -> float:
        """Report loads; returns the seconds after which another report is of use."""
        request = v1.ReportLoadRequest(
            consumer_name=self._identity.name,
            topics=topics,
            node_load=node,
            group=self._identity.group,
            session=self._identity.session,
        )
        return (await self._call("ReportLoad", request, v1.ReportLoadResponse)).next_report_ms / 1000

    async def commit(self, topics: list[dict[str, Any]]) -> v1.CommitOffsetsResponse:
        """`topics`: the fields of TopicOffsets messages."""
        request = message_class("CommitOffsetsRequest")(
            consumer_name=self._identity.name, topics=topics, group=self._identity.group, session=self._identity.session
        )
        return await self._call("CommitOffsets", request, v1.CommitOffsetsResponse)

    async def fetch(self, topics: list[v1.TopicPartitions]) -> Any:
        """The C runtime's FetchOffsetsResponse."""
        request = v1.FetchOffsetsRequest(topics=topics, group=self._identity.group)
        return await self._call("FetchOffsets", request, v1.FetchOffsetsResponse)

    async def deregister(self, *, gates_closed: bool) -> v1.DeregisterAction:
        request = v1.DeregisterRequest(
            consumer_name=self._identity.name,
            group=self._identity.group,
            session=self._identity.session,
            gates_closed=gates_closed,
        )
        return (await self._call("Deregister", request, v1.DeregisterResponse)).action

    def _ack_fields(self, acks: Sequence[Ack]) -> dict[str, Any]:
        first, *others = acks
        return {
            "consumer_name": self._identity.name,
            "group": self._identity.group,
            "session": self._identity.session,
            "partition": _partition(first),
            "handoff_id": first.handoff_id,
            "batch": [
                v1.PartitionAnswer(partition=_partition(one), handoff_id=one.handoff_id, failure=one.failure)
                for one in others
            ],
        }

    async def _call(self, method: str, request: Any, reply: type[_M], timeout: float | None = None) -> _M:
        return await unary_call(self._channel, _SERVICE + method, request, reply, timeout or self._timeout)


def _partition(ack: Ack) -> v1.TopicPartition:
    return v1.TopicPartition(topic=ack.tp.topic, partition=ack.tp.partition)


def _reasons(refusals: Iterable[v1.Refusal]) -> dict[TopicPartition, str]:
    return {
        TopicPartition(one.partition.topic, one.partition.partition): one.reason
        for one in refusals
        if one.partition is not None
    }


# --- loads, cut into messages that the service accepts -------------------------------------------------------------


def load_messages(
    loads: Mapping[TopicPartition, float], node: float | None
) -> Iterator[tuple[list[v1.TopicLoads], float | None]]:
    """Loads cut into requests, at least one; the node's load goes with the first. Raises `InvalidInput` for a number
    that is not a load."""
    if node is not None:
        _check_load("node", node)
    rest = iter(sorted(loads.items()))
    while part := list(islice(rest, LOADS_PER_CALL)):
        yield list(_lists(part)), node
        node = None
    if not loads:
        yield [], node


def _lists(part: list[tuple[TopicPartition, float]]) -> Iterator[v1.TopicLoads]:
    message = v1.TopicLoads()
    for tp, load in part:
        _check_load(str(tp), load)
        if tp.topic != message.topic or len(message.partitions) >= LOADS_PER_LIST:
            if message.partitions:
                yield message
            message = v1.TopicLoads(topic=tp.topic)
        message.partitions.append(tp.partition)
        message.loads.append(float(load))
    yield message


def _check_load(what: str, load: float) -> None:
    if not math.isfinite(load) or load < 0:
        raise InvalidInput(f"the load of {what} is {load}; it must be a number from 0 up")
