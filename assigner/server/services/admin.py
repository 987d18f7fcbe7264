"""Serves the Admin service: checks requests, calls `Administration`, and encodes replies.

Responses are built by protobuf's C runtime, in steps, because a group may have many thousand partitions.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, cast

from grpclib.const import Handler
from grpclib.server import Stream

from assigner import api
from assigner.errors import InvalidInput
from assigner.model.names import check_name, check_topic
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class
from assigner.server.services.group_description import described, in_steps, summary_fields, topic_fields
from assigner.server.services.loads import limit, loads_message, weights
from assigner.server.services.offsets import new_offsets
from assigner.server.services.requests import MAX_PARTITION, Requests, option_changes, options_message
from assigner.server.transport.calls import reading, receive, streaming, unary

PATH = "/kafka_assigner.v1.Admin/"


class AdminService:
    def __init__(self, administration: api.Administration, requests: Requests) -> None:
        self._administration = administration
        self._requests = requests

    def __mapping__(self) -> dict[str, Handler]:
        return {
            PATH + "SetTopic": unary(self.set_topic, v1.SetTopicRequest, v1.SetTopicResponse),
            PATH + "ListTopics": unary(self.list_topics, v1.ListTopicsRequest, v1.ListTopicsResponse),
            PATH + "ListGroups": unary(self.list_groups, v1.ListGroupsRequest, v1.ListGroupsResponse),
            PATH + "DescribeGroup": unary(self.describe_group, v1.DescribeGroupRequest, v1.DescribeGroupResponse),
            PATH + "SetGroupOptions": unary(
                self.set_group_options, v1.SetGroupOptionsRequest, v1.SetGroupOptionsResponse
            ),
            PATH + "Drain": streaming(self.drain, v1.DrainRequest, v1.DrainProgress),
            PATH + "Pause": unary(self.pause, v1.PauseRequest, v1.PauseResponse),
            PATH + "Resume": unary(self.resume, v1.ResumeRequest, v1.ResumeResponse),
            PATH + "Rebalance": unary(self.rebalance, v1.RebalanceRequest, v1.RebalanceResponse),
            PATH + "SetLoads": unary(self.set_loads, v1.SetLoadsRequest, v1.SetLoadsResponse),
            PATH + "DescribeLoads": unary(self.describe_loads, v1.DescribeLoadsRequest, v1.DescribeLoadsResponse),
            PATH + "SetOffsets": unary(self.set_offsets, v1.SetOffsetsRequest, v1.SetOffsetsResponse),
            PATH + "DeleteGroup": unary(self.delete_group, v1.DeleteGroupRequest, v1.DeleteGroupResponse),
            PATH + "DeleteTopic": unary(self.delete_topic, v1.DeleteTopicRequest, v1.DeleteTopicResponse),
        }

    async def set_topic(self, request: v1.SetTopicRequest) -> v1.SetTopicResponse:
        group, topic = self._requests.group(request.group), check_topic(request.topic)
        if request.discover:
            if request.partitions:
                raise InvalidInput(f"partitions is {request.partitions}; with discover it is found out: leave it 0")
            found = await self._administration.find_topic(group, topic, create=not request.existing)
            return v1.SetTopicResponse(topic=v1.Topic(**topic_fields(found)))
        if not 0 < request.partitions <= MAX_PARTITION + 1:
            raise InvalidInput(f"partitions is {request.partitions}; it must be 1 to {MAX_PARTITION + 1}")
        config = await self._administration.set_topic(
            group, topic, request.partitions, force=request.force, create=not request.existing
        )
        return v1.SetTopicResponse(topic=v1.Topic(**topic_fields(config)))

    async def list_topics(self, request: v1.ListTopicsRequest) -> bytes:
        topics = await self._administration.topics(self._requests.group(request.group))
        reply = message_class("ListTopicsResponse")()
        async for config in in_steps(topics):
            reply.topics.add(**topic_fields(config))
        return cast(bytes, reply.SerializeToString())

    async def list_groups(self, request: v1.ListGroupsRequest) -> bytes:
        reply = message_class("ListGroupsResponse")()
        groups = [one for one in await self._administration.groups() if self._requests.may_see(one.group)]
        async for summary in in_steps(groups):
            reply.groups.add(**summary_fields(summary))
        return cast(bytes, reply.SerializeToString())

    async def describe_group(self, request: v1.DescribeGroupRequest) -> bytes:
        description = await self._administration.describe(self._requests.group(request.group))
        return await described(description)

    async def set_group_options(self, request: v1.SetGroupOptionsRequest) -> v1.SetGroupOptionsResponse:
        group, changes = self._requests.group(request.group), option_changes(request.options)
        options = await self._administration.set_options(group, changes, create=request.create)
        return v1.SetGroupOptionsResponse(options=options_message(options))

    async def drain(self, stream: Stream[v1.DrainRequest, v1.DrainProgress]) -> None:
        request: v1.DrainRequest = await receive(stream)
        group, consumer = self._requests.group(request.group), check_name("consumer", request.consumer)
        remaining = await self._administration.drain(group, consumer)
        await stream.send_message(_progress(remaining))
        if not request.wait or not remaining:
            return
        # Typed as an iterator; every implementation is a generator.
        left = cast(Any, self._administration.drain_progress(group, consumer))
        async with aclosing(left):
            async for remaining in left:
                async with reading(stream):
                    await stream.send_message(_progress(remaining))
                if not remaining:
                    return

    async def pause(self, request: v1.PauseRequest) -> v1.PauseResponse:
        await self._administration.set_options(self._requests.group(request.group), {"paused": True})
        return v1.PauseResponse()

    async def resume(self, request: v1.ResumeRequest) -> v1.ResumeResponse:
        await self._administration.set_options(self._requests.group(request.group), {"paused": False})
        return v1.ResumeResponse()

    async def rebalance(self, request: v1.RebalanceRequest) -> v1.RebalanceResponse:
        await self._administration.rebalance(self._requests.group(request.group))
        return v1.RebalanceResponse()

    async def set_loads(self, request: v1.SetLoadsRequest) -> v1.SetLoadsResponse:
        group, (wanted, valid_for) = self._requests.group(request.group), weights(request)
        count = await self._administration.set_loads(group, wanted, valid_for, keep_others=request.keep_others)
        return v1.SetLoadsResponse(partitions=count)

    async def describe_loads(self, request: v1.DescribeLoadsRequest) -> v1.DescribeLoadsResponse:
        group = self._requests.group(request.group)
        return loads_message(await self._administration.loads(group, limit(request)))

    async def set_offsets(self, request: v1.SetOffsetsRequest) -> v1.SetOffsetsResponse:
        group, offsets = self._requests.group(request.group), new_offsets(request)
        count = await self._administration.set_offsets(group, offsets, force=request.force)
        return v1.SetOffsetsResponse(partitions=count)

    async def delete_group(self, request: v1.DeleteGroupRequest) -> v1.DeleteGroupResponse:
        if not request.group:
            raise InvalidInput("group is empty; what is to be deleted must be named, the default group too")
        group = self._requests.group(request.group)
        records, more = await self._administration.delete_group(group, force=request.force)
        return v1.DeleteGroupResponse(records=records, more=more)

    async def delete_topic(self, request: v1.DeleteTopicRequest) -> v1.DeleteTopicResponse:
        group, topic = self._requests.group(request.group), check_topic(request.topic)
        records, more = await self._administration.delete_topic(group, topic, force=request.force)
        return v1.DeleteTopicResponse(records=records, more=more)


def _progress(remaining: int) -> v1.DrainProgress:
    return v1.DrainProgress(remaining=remaining, done=remaining == 0)
