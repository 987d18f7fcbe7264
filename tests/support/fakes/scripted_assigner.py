"""A service that says what the test tells it to say, on a real port, with the generated stubs.

It decides nothing: a test pushes commands, breaks calls and connections, and reads what the client sent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import anyio
import anyio.lowlevel
from grpclib.const import Status
from grpclib.events import SendTrailingMetadata, listen
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from assigner.proto.kafka_assigner import v1
from assigner.testing.waiting import eventually

TOPIC = "orders"


class Refusal(GRPCError):
    """A status with the name of the service's error, as the real service sends it."""

    def __init__(self, status: Status, message: str, error: str = "") -> None:
        super().__init__(status, message)
        self.error = error


SUPERSEDED = Refusal(Status.ABORTED, "another session took over", "Superseded")
EVICTED = Refusal(Status.ABORTED, "the release took too long", "Evicted")
NOT_REGISTERED = Refusal(Status.NOT_FOUND, "no such session", "NotRegistered")
UNAVAILABLE = Refusal(Status.UNAVAILABLE, "the store does not answer", "StoreUnavailable")


class _End:
    pass


class ScriptedStream:
    """One Register call."""

    def __init__(self, request: v1.RegisterRequest) -> None:
        self.request = request
        self.gone = False
        self._outbox: asyncio.Queue[v1.AssignmentCommand | GRPCError | _End] = asyncio.Queue()

    def send(self, message: v1.AssignmentCommand) -> None:
        self._outbox.put_nowait(message)

    def fail(self, error: GRPCError) -> None:
        self._outbox.put_nowait(error)

    @property
    def waiting(self) -> int:
        """Messages that did not leave yet."""
        return self._outbox.qsize()

    def end(self) -> None:
        """Close the stream with OK."""
        self._outbox.put_nowait(_End())

    async def messages(self) -> AsyncIterator[v1.AssignmentCommand]:
        try:
            while True:
                item = await self._outbox.get()
                if isinstance(item, _End):
                    return
                if isinstance(item, GRPCError):
                    raise item
                yield item
        finally:
            self.gone = True

    # --- commands ----------------------------------------------------------------------------------------------------

    def update(self, **epochs: int) -> None:
        """`update(p0=5)`: partition 0 is assigned with epoch 5."""
        self.send(v1.AssignmentCommand(assignment=v1.AssignmentUpdate(assigned_packed=packed(epochs))))

    def unassign(self, **epochs: int) -> None:
        self.send(v1.AssignmentCommand(assignment=v1.AssignmentUpdate(unassigned_packed=packed(epochs))))

    def warm(self, partition: int, handoff_id: str = "h1") -> None:
        self.batch(warms=[(partition, handoff_id)])

    def release(self, partition: int, epoch: int, handoff_id: str = "h1") -> None:
        self.batch(releases=[(partition, epoch, handoff_id)])

    def cancel(self, partition: int, handoff_id: str = "h1") -> None:
        cancel = v1.CancelWarm(partition=place(partition), handoff_id=handoff_id)
        self.send(v1.AssignmentCommand(batch=v1.CommandBatch(cancels=[cancel])))

    def batch(self, warms: Sequence[tuple[int, str]] = (), releases: Sequence[tuple[int, int, str]] = ()) -> None:
        batch = v1.CommandBatch(
            warms=[
                v1.WarmPartition(partition=place(partition), handoff_id=handoff_id, current_owner="other")
                for partition, handoff_id in warms
            ],
            releases=[
                v1.ReleasePartition(partition=place(partition, epoch), handoff_id=handoff_id, new_owner="other")
                for partition, epoch, handoff_id in releases
            ],
        )
        self.send(v1.AssignmentCommand(batch=batch))


def place(partition: int, epoch: int = 0) -> v1.TopicPartition:
    return v1.TopicPartition(topic=TOPIC, partition=partition, epoch=epoch)


def packed(epochs: dict[str, int]) -> list[v1.TopicPartitions]:
    if not epochs:
        return []
    partitions = [int(name.removeprefix("p")) for name in epochs]
    return [v1.TopicPartitions(topic=TOPIC, partitions=partitions, epochs=list(epochs.values()))]


class _TrackingServer(Server):
    """Knows its connections, so that a test can break them."""

    def __init__(self, handlers: Sequence[Any]) -> None:
        super().__init__(handlers)
        self.protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self.protocols.append(protocol)
        return protocol


class ScriptedAssigner(v1.KafkaAssignerBase):
    def __init__(self, *, ttl: float = 30.0, owned: dict[str, int] | None = None) -> None:
        self.ttl = ttl
        self.owned = dict(owned or {})
        """What the first message of a stream says."""
        self.incarnation = ""
        """Of the store, which the first message of a stream tells."""
        self.opening: Callable[[ScriptedStream], None] = self.greet
        self.streams: list[ScriptedStream] = []
        self.renewals: list[v1.RenewRequest] = []
        self.readies: list[v1.PartitionReadyRequest] = []
        self.releases: list[v1.PartitionReleasedRequest] = []
        self.deregistrations: list[v1.DeregisterRequest] = []
        self.action = v1.DeregisterAction.WAIT_FOR_DRAIN
        self.fail: dict[str, GRPCError] = {}
        """Errors by method name, until they are taken away."""
        self.fail_once: dict[str, GRPCError] = {}
        self.failed: list[str] = []
        self.hang: set[str] = set()
        """Methods that never answer."""
        self.hold: dict[str, anyio.Event] = {}
        """Methods that answer once the event is set."""
        self.asked: list[str] = []
        self.refuse: Callable[[v1.PartitionAnswer], str] = lambda _: ""
        self.port = 0
        self._named = {known.message or "": known.error for known in (SUPERSEDED, EVICTED, NOT_REGISTERED)}
        self._server: _TrackingServer | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = _TrackingServer([self])
        listen(self._server, SendTrailingMetadata, self._name_the_error)
        await self._server.start("127.0.0.1", self.port, ssl=tls)
        listening: Any = self._server._server
        self.port = listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if killed: connections are cut, nothing is said."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None
            await anyio.lowlevel.checkpoint()

    def cut(self) -> None:
        for transport in self._transports():
            transport.abort()

    def freeze(self) -> None:
        """Connections stay open and nobody reads them."""
        for transport in self._transports():
            transport.pause_reading()

    def _transports(self) -> list[Any]:
        assert self._server is not None
        made = [protocol for protocol in self._server.protocols if hasattr(protocol, "connection")]
        return [one.connection._transport for one in made if not one.connection.is_closing()]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- what tests ask ----------------------------------------------------------------------------------------------

    @property
    def stream(self) -> ScriptedStream:
        return self.streams[-1]

    def greet(self, stream: ScriptedStream) -> None:
        stream.send(
            v1.AssignmentCommand(
                assignment=v1.AssignmentUpdate(
                    full=True,
                    session=stream.request.session,
                    ttl_ms=int(self.ttl * 1000),
                    assigned_packed=packed(self.owned),
                    incarnation=self.incarnation,
                )
            )
        )

    def ready_acks(self) -> list[tuple[int, str, str]]:
        return [answer for request in self.readies for answer in _answers(request, request.failure)]

    def released_acks(self) -> list[tuple[int, str, str]]:
        return [answer for request in self.releases for answer in _answers(request, "")]

    async def receives(self, condition: Callable[[], bool]) -> None:
        await eventually(condition, within=30.0, every=0.003)

    # --- the service -------------------------------------------------------------------------------------------------

    async def register(self, message: v1.RegisterRequest) -> AsyncIterator[v1.AssignmentCommand]:
        await self._script("register")
        stream = ScriptedStream(message)
        self.streams.append(stream)
        self.opening(stream)
        async for command in stream.messages():
            yield command

    async def renew(self, message: v1.RenewRequest) -> v1.RenewResponse:
        await self._script("renew")
        self.renewals.append(message)
        return v1.RenewResponse(ttl_ms=int(self.ttl * 1000))

    async def partition_ready(self, message: v1.PartitionReadyRequest) -> v1.PartitionReadyResponse:
        await self._script("ready" if message.batch else "single ready", "ready")
        self.readies.append(message)
        return v1.PartitionReadyResponse(refusals=self._refusals(message))

    async def partition_released(self, message: v1.PartitionReleasedRequest) -> v1.PartitionReleasedResponse:
        await self._script("released")
        self.releases.append(message)
        return v1.PartitionReleasedResponse(refusals=self._refusals(message))

    async def deregister(self, message: v1.DeregisterRequest) -> v1.DeregisterResponse:
        await self._script("deregister")
        self.deregistrations.append(message)
        return v1.DeregisterResponse(action=self.action)

    def _refusals(self, message: Any) -> list[v1.Refusal]:
        first = v1.PartitionAnswer(partition=message.partition, handoff_id=message.handoff_id)
        answers = [first, *message.batch]
        reasons = [(one, self.refuse(one)) for one in answers]
        return [v1.Refusal(partition=one.partition, reason=reason) for one, reason in reasons if reason]

    async def _script(self, *names: str) -> None:
        for name in names:
            self.asked.append(name)
            if name in self.hold:
                await self.hold[name].wait()
            if name in self.hang:
                await anyio.sleep_forever()
            error = self.fail_once.pop(name, None) or self.fail.get(name)
            if error is not None:
                self._remember(error)
                self.failed.append(name)
                raise error

    def _remember(self, error: GRPCError) -> None:
        if isinstance(error, Refusal):
            self._named[error.message or ""] = error.error

    async def _name_the_error(self, event: SendTrailingMetadata) -> None:
        name = self._named.get(event.status_message or "")
        if name:
            event.metadata["assigner-error"] = name


def _answers(request: Any, failure: str) -> list[tuple[int, str, str]]:
    first = (request.partition.partition, request.handoff_id, failure)
    return [first, *((one.partition.partition, one.handoff_id, one.failure) for one in request.batch)]
