"""Serves the calls of consumers: checks requests, calls `Membership`, and sends commands over the consumer's stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from grpclib.const import Handler
from grpclib.server import Stream

from assigner.api import CommandStream, Membership, RejectedAck
from assigner.model.commands import Opening
from assigner.proto.kafka_assigner import v1
from assigner.server.services.assignment_encoding import Dialect, encode, encode_refusals
from assigner.server.services.loads import load_report
from assigner.server.services.offsets import OffsetCalls
from assigner.server.services.requests import Requests
from assigner.server.services.streams import Incarnation, StreamCleanup, closing, no_incarnation
from assigner.server.transport.calls import deliver, receive, streaming, unary
from assigner.server.transport.http2 import PeerConnection
from assigner.server.transport.status import reason_for

PATH = "/kafka_assigner.v1.KafkaAssigner/"


class ConsumerService:
    def __init__(
        self,
        members: Membership,
        requests: Requests,
        offsets: OffsetCalls,
        cleanup: StreamCleanup,
        incarnation: Incarnation = no_incarnation,
    ) -> None:
        self._cleanup = cleanup
        self._members = members
        self._incarnation = incarnation
        self._offsets = offsets
        self._requests = requests

    def __mapping__(self) -> dict[str, Handler]:
        return {
            PATH + "Register": streaming(self.register, v1.RegisterRequest, v1.AssignmentCommand),
            PATH + "PartitionReady": unary(self.ready, v1.PartitionReadyRequest, v1.PartitionReadyResponse),
            PATH + "PartitionReleased": unary(self.released, v1.PartitionReleasedRequest, v1.PartitionReleasedResponse),
            PATH + "Deregister": unary(self.deregister, v1.DeregisterRequest, v1.DeregisterResponse),
            PATH + "Renew": unary(self.renew, v1.RenewRequest, v1.RenewResponse),
            PATH + "ReportLoad": unary(self.report_load, v1.ReportLoadRequest, v1.ReportLoadResponse),
            PATH + "CommitOffsets": unary(self._offsets.commit, v1.CommitOffsetsRequest, v1.CommitOffsetsResponse),
            PATH + "FetchOffsets": unary(self._offsets.fetch, v1.FetchOffsetsRequest, v1.FetchOffsetsResponse),
        }

    # --- the stream ---

    async def register(self, stream: Stream[v1.RegisterRequest, v1.AssignmentCommand]) -> None:
        request: v1.RegisterRequest = await receive(stream)
        registration = self._requests.registration(request)
        connection = cast(PeerConnection, stream._stream.connection)
        # Before the group is read: what is granted is never older than the incarnation that is sent with it.
        incarnation = await self._incarnation()
        consumer = await self._members.register(registration, connection.pulse.last_read)
        try:
            with connection.with_consumer():
                # At once, so that the client knows that it is registered before there are any commands.
                await stream.send_initial_metadata()
                dialect = Dialect(packed=request.packed, cancels=bool(registration.session), standbys=request.standbys)
                await self._send_commands(stream, consumer, dialect, incarnation)
        finally:
            await self._cleanup.leave(consumer)

    async def _send_commands(
        self, stream: Stream[Any, Any], consumer: CommandStream, dialect: Dialect, incarnation: str
    ) -> None:
        opened = False
        async with closing(consumer.commands()) as commands:
            async for change in commands:
                if not opened:
                    opening = Opening(consumer.session, consumer.ttl, consumer.exclusive, incarnation)
                    change, opened = msgspec.structs.replace(change, opening=opening), True
                await deliver(stream, encode(change, dialect))

    # --- unary calls ---

    async def ready(self, request: v1.PartitionReadyRequest) -> bytes:
        asked = self._requests.acks(request, request.failure)
        refused = await self._members.ready(
            asked.group, asked.name, asked.session, asked.acks, principal=self._requests.principal
        )
        return _reply(request.batch, refused, "PartitionReady")

    async def released(self, request: v1.PartitionReleasedRequest) -> bytes:
        asked = self._requests.acks(request, "")
        refused = await self._members.released(
            asked.group, asked.name, asked.session, asked.acks, principal=self._requests.principal
        )
        return _reply(request.batch, refused, "PartitionReleased")

    async def deregister(self, request: v1.DeregisterRequest) -> v1.DeregisterResponse:
        who = self._requests.caller(request)
        wait = await self._members.deregister(
            *who, gates_closed=request.gates_closed, principal=self._requests.principal
        )
        action = v1.DeregisterAction.WAIT_FOR_DRAIN if wait else v1.DeregisterAction.SHUTDOWN_NOW
        return v1.DeregisterResponse(action=action)

    async def renew(self, request: v1.RenewRequest) -> v1.RenewResponse:
        ttl = await self._members.renew(*self._requests.caller(request), principal=self._requests.principal)
        return v1.RenewResponse(ttl_ms=round(ttl * 1000))

    async def report_load(self, request: v1.ReportLoadRequest) -> v1.ReportLoadResponse:
        who = self._requests.caller(request)
        receipt = await self._members.report_load(*who, load_report(request), principal=self._requests.principal)
        return v1.ReportLoadResponse(taken=receipt.taken, next_report_ms=round(receipt.next_report * 1000))


def _reply(batch: Sequence[v1.PartitionAnswer], refused: Sequence[RejectedAck], method: str) -> bytes:
    """Encode the rejected acks of a batch as the response; the rejection of a single ack becomes the call's status."""
    if refused and not batch:
        raise refused[0].error
    return encode_refusals((one.tp, reason_for(one.error, PATH + method)) for one in refused)
