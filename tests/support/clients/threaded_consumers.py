"""Consumers on a thread: real clients of the service, driven from a synchronous test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from grpclib.client import Channel
from grpclib.exceptions import GRPCError

from assigner.client import AssignerConsumer, ConsumerStatistics, Ending
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner.v1 import (
    AdminStub,
    DescribeGroupRequest,
    DescribeGroupResponse,
    GroupOptions,
    KafkaAssignerStub,
    RegisterRequest,
    SetGroupOptionsRequest,
    SetTopicRequest,
)
from tests.support.clients.worker_process import Noting, Sink, consumer, work

T = TypeVar("T")
TOPIC = "orders"
_PATIENCE = 20.0


class Worker:
    """A consumer at work on the crew's thread."""

    def __init__(self, crew: Crew, group: str, name: str, addresses: list[str]) -> None:
        self.group = group
        self.name = name
        self.calls: list[str] = []
        """What the handler was called for, in order, such as `assigned orders/3@7`."""
        self._crew = crew
        self._client = crew.run(self._make(addresses))
        self._task: asyncio.Task[None] | None = None

    def _note(self, event: str, what: str) -> None:
        self.calls.append(f"{event} {what}")
        self._crew.noted.append(f"{time.time():.3f} {self.group} {self.name} {event} {what}")

    def called(self, event: str) -> int:
        return sum(call.startswith(event) for call in self.calls)

    @property
    def partitions(self) -> dict[TopicPartition, int]:
        return self._crew.run(self._ask(lambda client: client.partitions))

    @property
    def statistics(self) -> ConsumerStatistics:
        statistics: ConsumerStatistics = self._crew.run(self._ask(AssignerConsumer.statistics))
        return statistics

    @property
    def session(self) -> str:
        return self._client.session

    @property
    def address(self) -> str:
        """Of the instance that serves it; empty while there is none."""
        return self.statistics.address

    def leave(self) -> None:
        """Close: everything it owns is free at once."""
        self._crew.run(self._close())

    def drain(self) -> None:
        self._crew.run(self._client.drain(_PATIENCE))

    def closed(self) -> Ending:
        return self._crew.run(self._client.closed())

    async def _ask(self, question: Any) -> Any:
        return question(self._client)

    async def _make(self, addresses: list[str]) -> AssignerConsumer:
        return consumer(self.group, self.name, addresses, Noting(self._note))

    async def open(self, sink: Sink) -> None:
        await self._client.__aenter__()
        self._task = asyncio.create_task(work(self.group, self._client, sink, lambda _tp, _epoch: None))

    async def _close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()


class Crew:
    def __init__(self, sink: Sink) -> None:
        self.noted: list[str] = []
        self._sink = sink
        self._workers: list[Worker] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crew", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], patience: float = _PATIENCE) -> T:
        """Have it done on the thread, and wait for it."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(patience)
        finally:
            future.cancel()

    # --- consumers -------------------------------------------------------------------------------------------------

    def join(self, group: str, name: str, addresses: list[str]) -> Worker:
        worker = Worker(self, group, name, addresses)
        self._workers.append(worker)
        self.run(worker.open(self._sink))
        return worker

    def dismiss(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.leave()

    def notes(self) -> list[str]:
        return self.noted[-100:]

    def close(self) -> None:
        self.dismiss()
        self.run(_end_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    def last_words(self, address: str, group: str, name: str) -> Future[tuple[str, str]]:
        """Register by hand, and listen until the stream ends: its status and message. Ready once registered."""
        registered = threading.Event()

        async def listen() -> tuple[str, str]:
            async with _channel(address) as channel:
                request = RegisterRequest(consumer_name=name, group=group)
                try:
                    async for _ in KafkaAssignerStub(channel).register(request):
                        registered.set()
                except GRPCError as error:
                    return error.status.name, error.message or ""
            return "OK", ""

        future = asyncio.run_coroutine_threadsafe(listen(), self._loop)
        assert registered.wait(_PATIENCE), f"{name} was not registered at {address}"
        return future

    # --- operators -------------------------------------------------------------------------------------------------

    def set_topic(self, address: str, group: str, partitions: int) -> None:
        """Give the group's topic that many partitions."""

        async def ask() -> None:
            async with _channel(address) as channel:
                request = SetTopicRequest(group=group, topic=TOPIC, partitions=partitions)
                await AdminStub(channel).set_topic(request, timeout=10)

        self.run(ask())

    def set_options(self, address: str, group: str, **options: Any) -> None:
        async def ask() -> None:
            async with _channel(address) as channel:
                request = SetGroupOptionsRequest(group=group, options=GroupOptions(**options))
                await AdminStub(channel).set_group_options(request, timeout=10)

        self.run(ask())

    def describe(self, address: str, group: str) -> DescribeGroupResponse:
        async def ask() -> DescribeGroupResponse:
            async with _channel(address) as channel:
                admin = AdminStub(channel)
                return await admin.describe_group(DescribeGroupRequest(group=group), timeout=10)

        return self.run(ask())


async def _end_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    # Transports close one turn of the loop later.
    await asyncio.sleep(0.01)


@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[Channel]:
    host, _, port = address.partition(":")
    channel = Channel(host, int(port))
    try:
        yield channel
    finally:
        channel.close()
