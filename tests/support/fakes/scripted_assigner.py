"""A service that says what the test tells it to say, on a real port, with the generated stubs.

It decides nothing: a test pushes commands, breaks calls and connections, and reads what the client sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from grpclib.exceptions import GRPCError

from assigner.proto.kafka_assigner import v1
from tests.support.fakes.scripted_service import ScriptedService

TOPIC = "orders"


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


class ScriptedAssigner(ScriptedService, v1.KafkaAssignerBase):
    def __init__(self, *, ttl: float = 30.0, owned: dict[str, int] | None = None) -> None:
        super().__init__()
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
        self.refuse: Callable[[v1.PartitionAnswer], str] = lambda _: ""

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


def _answers(request: Any, failure: str) -> list[tuple[int, str, str]]:
    first = (request.partition.partition, request.handoff_id, failure)
    return [first, *((one.partition.partition, one.handoff_id, one.failure) for one in request.batch)]
