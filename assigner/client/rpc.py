"""The calls of one consumer to one instance of the service."""

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
    """What a consumer registers as. Calls that anyone may make need the group only."""

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

    def __init__(self, channel: Channel, who: Identity, timeout: float) -> None:
        self._channel = channel
        self._who = who
        self._timeout = timeout

    async def register(self) -> AsyncGenerator[Any, None]:
        """The stream's messages, as the C runtime's AssignmentCommand."""
        who = self._who
        request = v1.RegisterRequest(
            consumer_name=who.name,
            group=who.group,
            capacity=who.capacity,
            rack=who.rack,
            topics=list(who.topics),
            session=who.session,
            address=who.address,
            packed=True,
            renews=True,
            generation=who.generation,
            standbys=True,
        )
        async with aclosing(stream_call(self._channel, _SERVICE + "Register", request, v1.AssignmentCommand)) as stream:
            async for message in stream:
                yield message

    async def renew(self, timeout: float) -> float:
        """The TTL in seconds."""
        request = v1.RenewRequest(consumer_name=self._who.name, group=self._who.group, session=self._who.session)
        reply = await self._call("Renew", request, v1.RenewResponse, timeout)
        return reply.ttl_ms / 1000

    async def ready(self, answers: Sequence[Ack]) -> dict[TopicPartition, str]:
        """Those that were not taken, and why."""
        first = answers[0]
        request = v1.PartitionReadyRequest(failure=first.failure, **self._answer_fields(answers))
        return _reasons((await self._call("PartitionReady", request, v1.PartitionReadyResponse)).refusals)

    async def released(self, answers: Sequence[Ack]) -> dict[TopicPartition, str]:
        """Those that were not taken, and why."""
        request = v1.PartitionReleasedRequest(**self._answer_fields(answers))
        return _reasons((await self._call("PartitionReleased", request, v1.PartitionReleasedResponse)).refusals)

    async def report_load(self, topics: list[v1.TopicLoads], node: float | None) -> float:
        """Seconds after which another report is of use."""
        request = v1.ReportLoadRequest(
            consumer_name=self._who.name,
            topics=topics,
            node_load=node,
            group=self._who.group,
            session=self._who.session,
        )
        return (await self._call("ReportLoad", request, v1.ReportLoadResponse)).next_report_ms / 1000

    async def commit(self, topics: list[dict[str, Any]]) -> v1.CommitOffsetsResponse:
        """`topics`: the fields of TopicOffsets messages."""
        request = message_class("CommitOffsetsRequest")(
            consumer_name=self._who.name, topics=topics, group=self._who.group, session=self._who.session
        )
        return await self._call("CommitOffsets", request, v1.CommitOffsetsResponse)

    async def fetch(self, topics: list[v1.TopicPartitions]) -> Any:
        """The C runtime's FetchOffsetsResponse."""
        request = v1.FetchOffsetsRequest(topics=topics, group=self._who.group)
        return await self._call("FetchOffsets", request, v1.FetchOffsetsResponse)

    async def deregister(self, *, gates_closed: bool) -> v1.DeregisterAction:
        request = v1.DeregisterRequest(
            consumer_name=self._who.name,
            group=self._who.group,
            session=self._who.session,
            gates_closed=gates_closed,
        )
        return (await self._call("Deregister", request, v1.DeregisterResponse)).action

    def _answer_fields(self, answers: Sequence[Ack]) -> dict[str, Any]:
        first, *others = answers
        return {
            "consumer_name": self._who.name,
            "group": self._who.group,
            "session": self._who.session,
            "partition": _partition(first),
            "handoff_id": first.handoff_id,
            "batch": [
                v1.PartitionAnswer(partition=_partition(one), handoff_id=one.handoff_id, failure=one.failure)
                for one in others
            ],
        }

    async def _call(self, method: str, request: Any, reply: type[_M], timeout: float | None = None) -> _M:
        return await unary_call(self._channel, _SERVICE + method, request, reply, timeout or self._timeout)


def _partition(answer: Ack) -> v1.TopicPartition:
    return v1.TopicPartition(topic=answer.tp.topic, partition=answer.tp.partition)


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
    """At least one; the node's load goes with the first. Raises `InvalidInput` for what is not a load."""
    if node is not None:
        _check_load("node", node)
    rest = iter(sorted(loads.items()))
    while part := list(islice(rest, LOADS_PER_CALL)):
        yield list(_lists(part)), node
        node = None
    if not loads:
        yield [], node


def _lists(part: list[tuple[TopicPartition, float]]) -> Iterator[v1.TopicLoads]:
    told = v1.TopicLoads()
    for tp, load in part:
        _check_load(str(tp), load)
        if tp.topic != told.topic or len(told.partitions) >= LOADS_PER_LIST:
            if told.partitions:
                yield told
            told = v1.TopicLoads(topic=tp.topic)
        told.partitions.append(tp.partition)
        told.loads.append(float(load))
    yield told


def _check_load(what: str, load: float) -> None:
    if not math.isfinite(load) or load < 0:
        raise InvalidInput(f"the load of {what} is {load}; it must be a number from 0 up")
