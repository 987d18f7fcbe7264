"""Serves the calls of consumers: checks requests, calls `Membership`, and sends commands over the consumer's stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec
from grpclib.const import Handler
from grpclib.server import Stream

from assigner.api import CommandStream, Membership, RejectedAck
from assigner.logs import get_logger
from assigner.model.commands import Commands, Opening
from assigner.proto.kafka_assigner import v1
from assigner.server.services.assignment_encoding import Dialect, encode, encode_refusals
from assigner.server.services.loads import load_report
from assigner.server.services.offsets import OffsetCalls
from assigner.server.services.requests import Requests
from assigner.server.transport.calls import deliver, receive, streaming, unary
from assigner.server.transport.http2 import PeerConnection
from assigner.server.transport.status import reason_for

PATH = "/kafka_assigner.v1.KafkaAssigner/"

_log = get_logger(__name__)


async def no_incarnation() -> str:
    """Return the empty incarnation, for a store without one."""
    return ""


class ConsumerService:
    def __init__(
        self,
        members: Membership,
        requests: Requests,
        offsets: OffsetCalls,
        incarnation: Callable[[], Awaitable[str]] = no_incarnation,
    ) -> None:
        self._members = members
        self._incarnation = incarnation
        self._offsets = offsets
        self._requests = requests
        self._cleanups: set[asyncio.Task[None]] = set()

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
            await self._leave(consumer)

    async def _send_commands(
        self, stream: Stream[Any, Any], consumer: CommandStream, dialect: Dialect, incarnation: str
    ) -> None:
        opened = False
        async with aclosing(_closable(consumer.commands())) as commands:
            async for change in commands:
                if not opened:
                    opening = Opening(consumer.session, consumer.ttl, consumer.exclusive, incarnation)
                    change, opened = msgspec.structs.replace(change, opening=opening), True
                await deliver(stream, encode(change, dialect))

    async def _leave(self, consumer: CommandStream) -> None:
        """Clean up the stream in a task of its own, because the call's task may be cancelled more than once."""
        cleanup = asyncio.get_running_loop().create_task(consumer.leave(), name="cleanup of a stream")
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleaned_up)
        await asyncio.shield(cleanup)

    def _cleaned_up(self, cleanup: asyncio.Task[None]) -> None:
        self._cleanups.discard(cleanup)
        if not cleanup.cancelled() and (error := cleanup.exception()) is not None:
            _log.error("grpc_stream_cleanup_failed", exc_info=error)

    async def cleaned_up(self) -> None:
        """Wait until every ended stream has been cleaned up."""
        while self._cleanups:
            await asyncio.wait(set(self._cleanups))

    async def stop_cleanup(self) -> None:
        """Stop the cleanup of ended streams that is still running: their sessions end with their leases."""
        for cleanup in self._cleanups:
            cleanup.cancel()
        await self.cleaned_up()

    # --- unary calls ---

    async def ready(self, request: v1.PartitionReadyRequest) -> bytes:
        asked = self._requests.acks(request, request.failure)
        refused = await self._members.ready(asked.group, asked.name, asked.session, asked.acks)
        return _reply(request.batch, refused, "PartitionReady")

    async def released(self, request: v1.PartitionReleasedRequest) -> bytes:
        asked = self._requests.acks(request, "")
        refused = await self._members.released(asked.group, asked.name, asked.session, asked.acks)
        return _reply(request.batch, refused, "PartitionReleased")

    async def deregister(self, request: v1.DeregisterRequest) -> v1.DeregisterResponse:
        who = self._requests.caller(request)
        wait = await self._members.deregister(*who, gates_closed=request.gates_closed)
        action = v1.DeregisterAction.WAIT_FOR_DRAIN if wait else v1.DeregisterAction.SHUTDOWN_NOW
        return v1.DeregisterResponse(action=action)

    async def renew(self, request: v1.RenewRequest) -> v1.RenewResponse:
        ttl = await self._members.renew(*self._requests.caller(request))
        return v1.RenewResponse(ttl_ms=round(ttl * 1000))

    async def report_load(self, request: v1.ReportLoadRequest) -> v1.ReportLoadResponse:
        receipt = await self._members.report_load(*self._requests.caller(request), load_report(request))
        return v1.ReportLoadResponse(taken=receipt.taken, next_report_ms=round(receipt.next_report * 1000))


def _reply(batch: Sequence[v1.PartitionAnswer], refused: Sequence[RejectedAck], method: str) -> bytes:
    """Encode the rejected acks of a batch as the response; the rejection of a single ack becomes the call's status."""
    if refused and not batch:
        raise refused[0].error
    return encode_refusals((one.tp, reason_for(one.error, PATH + method)) for one in refused)


async def _closable(commands: AsyncIterator[Commands]) -> Any:
    """Wrap the commands in a generator, which can be closed; an iterator need not have `aclose`."""
    try:
        async for change in commands:
            yield change
    finally:
        close: Callable[[], Any] | None = getattr(commands, "aclose", None)
        if close is not None:
            await close()
