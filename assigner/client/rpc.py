"""Calls to one instance of the service, with every failure turned into one of three kinds.

`Disconnected`: the connection is gone. `Unavailable`: the instance, or something behind it, can't answer now. Any
other `AssignerError`: the service's considered refusal, which a retry will not change.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import anyio
import anyio.lowlevel
import msgspec
from grpclib.client import Channel, Stream
from grpclib.config import Configuration
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.exceptions import H2Error

from assigner import errors
from assigner.client.codec import Codec
from assigner.errors import AssignerError, InvalidInput
from assigner.model.commands import Ack
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class

DEFAULT_PORT = 50_051
_SERVICE = "/kafka_assigner.v1.KafkaAssigner/"
_ERROR_KEY = "assigner-error"
"""Trailing metadata: which error it was, where several share a status."""
_M = TypeVar("_M")


class Unavailable(AssignerError):
    """The service can't answer now. Trying again may help."""


class Disconnected(Unavailable):
    """The connection to an instance failed or ended."""


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host`, `host:port` or `[v6]:port`."""
    text = text.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    port = port or str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
        raise InvalidInput(f"address {text!r} is not host:port; write for example assigner.example:{DEFAULT_PORT}")
    return Address(host, int(port))


class Dialling(msgspec.Struct, frozen=True):
    """How connections are made."""

    tls: ssl.SSLContext | None
    keepalive: float
    keepalive_timeout: float

    def dial(self, address: Address) -> Channel:
        """A channel that connects at its first call, and notices a peer that stopped answering."""
        config = Configuration(
            # Several times the stream's window, so that a stream nobody reads can't hold up the other calls.
            http2_connection_window_size=64 * 2**20,
            http2_stream_window_size=2**20,
            _keepalive_time=self.keepalive,
            _keepalive_timeout=self.keepalive_timeout,
            _keepalive_permit_without_calls=True,
            _http2_max_pings_without_data=0,
            _http2_min_sent_ping_interval_without_data=self.keepalive / 2,
        )
        return Channel(address.host, address.port, codec=Codec(), ssl=self.tls, config=config)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who the consumer says it is."""

    group: str
    name: str
    session: str
    topics: tuple[str, ...]
    capacity: float
    rack: str
    address: str
    generation: str


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
        stream = self._open("Register", Cardinality.UNARY_STREAM, request, v1.AssignmentCommand)
        with _typed_errors(stream):
            async with stream:
                await stream.send_message(request, end=True)
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

    def _open(self, method: str, kind: Cardinality, request: Any, reply: type[_M]) -> Stream[Any, _M]:
        return self._channel.request(_SERVICE + method, kind, type(request), reply)

    async def _call(self, method: str, request: Any, reply: type[_M], timeout: float | None = None) -> _M:
        seconds = timeout or self._timeout
        stream = self._open(method, Cardinality.UNARY_UNARY, request, reply)
        # anyio's timeout instead of grpclib's deadline: leaving the call resets it at the server just the same.
        with anyio.move_on_after(seconds):
            with _typed_errors(stream):
                async with stream:
                    await stream.send_message(request, end=True)
                    message = await stream.recv_message()
            if message is None:
                raise Unavailable(f"{method} was answered with nothing")
            return message
        raise Unavailable(f"{method} was not answered within {seconds:.1f} s")


def _partition(answer: Ack) -> v1.TopicPartition:
    return v1.TopicPartition(topic=answer.tp.topic, partition=answer.tp.partition)


def _reasons(refusals: Iterable[v1.Refusal]) -> dict[TopicPartition, str]:
    return {
        TopicPartition(one.partition.topic, one.partition.partition): one.reason
        for one in refusals
        if one.partition is not None
    }


# --- errors --------------------------------------------------------------------------------------------------------


@contextmanager
def _typed_errors(stream: Stream[Any, Any]) -> Iterator[None]:
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    except GRPCError as error:
        raise error_of(error.status, error.message or "", _named(stream)) from None
    except ssl.SSLCertVerificationError as error:
        raise errors.FailedPrecondition(f"the service's certificate was not accepted: {error}; check `tls`") from None
    except (StreamTerminatedError, OSError, ProtocolError, H2Error, AssertionError, AttributeError) as error:
        # The last two: grpclib's own, when a connection ends in the middle of a message or of a ping's timeout.
        if task is not None and task.cancelling() > before:
            # grpclib wakes its caller by cancelling the task and never takes it back.
            task.uncancel()
        raise Disconnected(str(error) or type(error).__name__) from None


def _named(stream: Stream[Any, Any]) -> str:
    metadata = stream.trailing_metadata
    return cast(str, metadata.get(_ERROR_KEY, "")) if metadata is not None else ""


_REFUSALS: dict[str, type[AssignerError]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidName,
        errors.InvalidInput,
        errors.NotRegistered,
        errors.NotTheTarget,
        errors.UnknownTopic,
        errors.UnknownGroup,
        errors.FailedPrecondition,
        errors.Superseded,
        errors.Evicted,
    )
}
_STATUSES: dict[Status, type[AssignerError]] = {
    Status.INVALID_ARGUMENT: InvalidInput,
    Status.OUT_OF_RANGE: InvalidInput,
    Status.NOT_FOUND: errors.NotRegistered,
    Status.FAILED_PRECONDITION: errors.FailedPrecondition,
    Status.PERMISSION_DENIED: errors.FailedPrecondition,
    Status.UNAUTHENTICATED: errors.FailedPrecondition,
    Status.UNIMPLEMENTED: errors.FailedPrecondition,
    Status.ABORTED: errors.Superseded,
}


def error_of(status: Status, message: str, name: str) -> AssignerError:
    """The error that the service meant. What is neither named nor a known refusal may pass by itself."""
    text = message or status.name
    if name in _REFUSALS:
        return _REFUSALS[name](text)
    if name or status not in _STATUSES:
        return Unavailable(f"{text} ({status.name})")
    return _STATUSES[status](text)


# Ends a connection so that nothing of it outlives its event loop.
#
# Over TLS a channel's `close` only begins a farewell, which the end of the loop would cut off, and leave an open socket
# behind.


async def close_channel(channel: Channel) -> None:
    protocol = channel._protocol
    transport = getattr(protocol.connection, "_transport", None) if protocol is not None else None
    channel.close()
    if transport is not None and transport.get_extra_info("ssl_object") is not None:
        transport.abort()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
