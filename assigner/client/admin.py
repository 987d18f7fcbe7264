"""The client of the Admin service: describes groups, changes their topics and options, drains consumers.

    async with AdminClient("127.0.0.1:50051") as admin:
        for group in (await admin.list_groups()).groups:
            print(group.group, group.consumers)

Not promised: that a change had no effect when its call raised `Unavailable`. Every call may be repeated.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from grpclib.client import Channel

from assigner.client.channel import (
    Address,
    Dialer,
    Unavailable,
    close_channel,
    parse_addresses,
    shows_another_token,
    stream_call,
    unary_call,
)
from assigner.client.offsets import CommittedOffset, committed
from assigner.client.rpc import ConsumerRpc, Identity
from assigner.client.tls import tls_context
from assigner.client.token import Token, token_source
from assigner.errors import PermissionDenied
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class

DEFAULT_TIMEOUT = 10.0
KEEPALIVE = 10.0
"""Seconds between pings, and for the reply to one."""
_SERVICE = "/kafka_assigner.v1.Admin/"
_M = TypeVar("_M")
_T = TypeVar("_T")


class AdminClient:
    """Calls the Admin service. Replies are messages of the protocol, `assigner.proto.kafka_assigner.v1`.

    Any instance can serve a call. The client keeps using the one that replied last, and tries the next address when
    that one is unavailable; it raises `Unavailable` when none replies. A refusal of the service is raised at once, as
    `UnknownGroup`, `InvalidInput`, `FailedPrecondition` or a similar error. The error of grpclib is the cause of each.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        tls: ssl.SSLContext | bool | None = None,
        token: Token | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """`addresses`: `host:port` of one or more instances, a list or separated by commas. `token`: what calls show
        to be recognized, as that of `AssignerConsumer`. `timeout`: seconds that one instance has for one call."""
        self.timeout = timeout
        self._addresses = parse_addresses(addresses)
        self._dialer = Dialer(tls_context(tls), KEEPALIVE, KEEPALIVE, token_source(token))
        self._turn = 0
        self._channel: Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await close_channel(channel)

    # --- groups ----------------------------------------------------------------------------------------------------

    async def list_groups(self) -> v1.ListGroupsResponse:
        return await self._call("ListGroups", v1.ListGroupsRequest(), v1.ListGroupsResponse)

    async def describe_group(self, group: str) -> v1.DescribeGroupResponse:
        return await self._call("DescribeGroup", v1.DescribeGroupRequest(group=group), v1.DescribeGroupResponse)

    async def set_group_options(
        self, group: str, options: v1.GroupOptions, *, create: bool = False
    ) -> v1.SetGroupOptionsResponse:
        """Change the options that are set in `options`. `create`: create the group if it does not exist."""
        request = v1.SetGroupOptionsRequest(group=group, options=options, create=create)
        return await self._call("SetGroupOptions", request, v1.SetGroupOptionsResponse)

    async def pause(self, group: str) -> None:
        """Start no new handoff; those in flight are completed."""
        await self._call("Pause", v1.PauseRequest(group=group), v1.PauseResponse)

    async def resume(self, group: str) -> None:
        await self._call("Resume", v1.ResumeRequest(group=group), v1.ResumeResponse)

    async def rebalance(self, group: str) -> None:
        """Plan the group again, and retry quarantined partitions."""
        await self._call("Rebalance", v1.RebalanceRequest(group=group), v1.RebalanceResponse)

    async def delete_group(self, group: str, *, force: bool = False) -> int:
        """Delete every record of the group; returns their number. `force`: also if records name absent owners."""
        request = v1.DeleteGroupRequest(group=group, force=force)
        return await self._delete("DeleteGroup", request, v1.DeleteGroupResponse)

    # --- topics ----------------------------------------------------------------------------------------------------

    async def list_topics(self, group: str) -> v1.ListTopicsResponse:
        return await self._call("ListTopics", v1.ListTopicsRequest(group=group), v1.ListTopicsResponse)

    async def set_topic(
        self, group: str, topic: str, partitions: int, *, force: bool = False, create: bool = False
    ) -> v1.SetTopicResponse:
        """Set a topic's number of partitions. `force`: it may be lowered. `create`: create the group if it does not
        exist."""
        request = v1.SetTopicRequest(group=group, topic=topic, partitions=partitions, force=force, existing=not create)
        return await self._call("SetTopic", request, v1.SetTopicResponse)

    async def find_topic(self, group: str, topic: str, *, create: bool = False) -> v1.SetTopicResponse:
        """Have the topic's number of partitions found as for a consumer that names it: in Kafka, or in the settings."""
        request = v1.SetTopicRequest(group=group, topic=topic, existing=not create, discover=True)
        return await self._call("SetTopic", request, v1.SetTopicResponse)

    async def delete_topic(self, group: str, topic: str, *, force: bool = False) -> int:
        """Delete every record of the topic in the group. Returns how many there were."""
        request = v1.DeleteTopicRequest(group=group, topic=topic, force=force)
        return await self._delete("DeleteTopic", request, v1.DeleteTopicResponse)

    # --- consumers -------------------------------------------------------------------------------------------------

    async def drain(self, group: str, consumer: str) -> v1.DrainProgress:
        """Start to move every partition off a consumer. Returns how many it still holds."""
        request = v1.DrainRequest(group=group, consumer=consumer)

        async def first(channel: Channel) -> v1.DrainProgress:
            with anyio.move_on_after(self.timeout):
                stream = stream_call(channel, _SERVICE + "Drain", request, v1.DrainProgress)
                async with aclosing(stream):
                    async for progress in stream:
                        return progress
                raise Unavailable("Drain was answered with nothing")
            raise Unavailable(f"Drain was not answered within {self.timeout:.1f} s") from TimeoutError()

        return await self._at_any_instance(first)

    async def drain_progress(self, group: str, consumer: str) -> AsyncGenerator[v1.DrainProgress, None]:
        """Like `drain`, and yield each change of how many partitions the consumer holds, until none is left. There is
        no deadline, and the call is not resumed at another instance if this one becomes unavailable."""
        request = v1.DrainRequest(group=group, consumer=consumer, wait=True)
        for tries_left in (1, 0):
            try:
                stream = stream_call(self._connected(), _SERVICE + "Drain", request, v1.DrainProgress)
                async with aclosing(stream):
                    async for progress in stream:
                        yield progress
                return
            except PermissionDenied:
                if not tries_left or not await self._left_connection_of_others():
                    raise

    # --- loads and offsets -----------------------------------------------------------------------------------------

    async def describe_loads(self, group: str, *, limit: int = 0) -> v1.DescribeLoadsResponse:
        """Describe the loads of a group. `limit`: how many of the heaviest partitions and busiest consumers; 0: the
        service's default."""
        request = v1.DescribeLoadsRequest(group=group, limit=limit)
        return await self._call("DescribeLoads", request, v1.DescribeLoadsResponse)

    async def set_loads(
        self, group: str, weights: Sequence[v1.TopicWeights], valid_for: float, *, keep_others: bool = False
    ) -> v1.SetLoadsResponse:
        """Publish weights that are valid for `valid_for` seconds. Other weights of the topics are dropped unless
        `keep_others`."""
        request = v1.SetLoadsRequest(group=group, weights=list(weights), valid_for=valid_for, keep_others=keep_others)
        return await self._call("SetLoads", request, v1.SetLoadsResponse)

    async def set_offsets(
        self, group: str, topics: Sequence[v1.NewOffsets], *, force: bool = False
    ) -> v1.SetOffsetsResponse:
        """Replace committed offsets. `force`: also of partitions that a consumer owns; the owner is not notified."""
        request = v1.SetOffsetsRequest(group=group, topics=list(topics), force=force)
        return await self._call("SetOffsets", request, v1.SetOffsetsResponse)

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """The group's committed offsets; partitions without one are left out."""
        identity = Identity(group=group)

        async def fetch(channel: Channel) -> dict[TopicPartition, CommittedOffset]:
            rpc = ConsumerRpc(channel, identity, self.timeout)
            return await committed(lambda: rpc, partitions)

        return await self._at_any_instance(fetch)

    async def fetch_offsets(self, request: v1.FetchOffsetsRequest) -> Any:
        """One page of the offsets on record, as the C runtime's FetchOffsetsResponse."""
        path = "/kafka_assigner.v1.KafkaAssigner/FetchOffsets"
        reply = message_class("FetchOffsetsResponse")
        return await self._at_any_instance(lambda channel: unary_call(channel, path, request, reply, self.timeout))

    # --- instances -------------------------------------------------------------------------------------------------

    async def _delete(self, method: str, request: Any, reply: type[Any]) -> int:
        records, more = 0, True
        while more:
            deleted = await self._call(method, request, reply)
            records, more = records + deleted.records, deleted.more
        return records

    async def _call(self, method: str, request: Any, reply: type[_M]) -> _M:
        return await self._at_any_instance(
            lambda channel: unary_call(channel, _SERVICE + method, request, reply, self.timeout)
        )

    async def _at_any_instance(self, call: Callable[[Channel], Awaitable[_T]]) -> _T:
        for left in reversed(range(len(self._addresses))):
            address = self._address
            try:
                try:
                    return await call(self._connected())
                except PermissionDenied:
                    if not await self._left_connection_of_others():
                        raise
                    return await call(self._connected())
            except Unavailable as error:
                await self.close()
                self._turn += 1
                if len(self._addresses) == 1:
                    raise
                if not left:
                    raise Unavailable(f"no instance answers, the last one at {address}: {error}") from error
        raise AssertionError("there is at least one address")

    async def _left_connection_of_others(self) -> bool:
        """Close the connection if another token has been shown over it, whose principal it may belong to; whether it
        was: then a call that was denied may be tried again over another one."""
        channel = self._channel
        if channel is None or not shows_another_token(channel):
            return False
        await self.close()
        return True

    @property
    def _address(self) -> Address:
        return self._addresses[self._turn % len(self._addresses)]

    def _connected(self) -> Channel:
        if self._channel is None:
            self._channel = self._dialer.dial(self._address)
        return self._channel
