"""Two kinds of consumers on real streams, with one face: upstream's client (grpcio, in another process) and ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import anyio

from assigner.client import AssignerConsumer, Handler, Ownership, Release, Timing, TopicPartition, Warm
from assigner.client.session import Ending
from assigner.clock import LoopClock
from assigner.testing.waiting import eventually
from tests.support.clients.upstream_client import UpstreamClients, UpstreamConsumer, upstream_clients
from tests.support.cluster import GROUP

Place = tuple[str, int]
TIMING = Timing(call_timeout=5.0, keepalive=0.5, keepalive_timeout=2.0, first_pause=0.02, longest_pause=0.2)


class StreamConsumer(Protocol):
    name: str

    @property
    def owned(self) -> set[Place]: ...

    @property
    def warms(self) -> list[Place]:
        """What it was asked to warm, in order."""
        ...

    @property
    def releases(self) -> list[Place]: ...

    @property
    def ended_well(self) -> bool:
        """The stream was closed because nothing was left to do."""
        ...

    async def drop(self) -> None:
        """Gone without a word."""
        ...

    async def leave(self) -> str:
        """Ask to leave: the action the service answers with, if the client shows it."""
        ...


class Clients(Protocol):
    async def start(self, address: str, name: str, *, warm_delay: float = 0.0) -> StreamConsumer:
        """A consumer that has got its first message, and answers by itself."""
        ...


async def until(what: str, holds: Callable[[], bool], within: float = 30.0) -> None:
    await eventually(holds, within=within, every=0.04, what=what)


# --- upstream's --------------------------------------------------------------------------------------------------


class UpstreamStream:
    def __init__(self, consumer: UpstreamConsumer) -> None:
        self.name = consumer.name
        self.consumer = consumer

    @property
    def owned(self) -> set[Place]:
        return self.consumer.owned

    @property
    def warms(self) -> list[Place]:
        return self.consumer.warms

    @property
    def releases(self) -> list[Place]:
        return self.consumer.releases

    @property
    def ended_well(self) -> bool:
        return self.consumer.ended == ("OK", "")

    async def drop(self) -> None:
        await self.consumer.drop()

    async def leave(self) -> str:
        return (await self.consumer.deregister()).removeprefix("DEREGISTER_ACTION_")


class Upstreams:
    def __init__(self, clients: UpstreamClients) -> None:
        self._clients = clients

    async def start(self, address: str, name: str, *, warm_delay: float = 0.0) -> UpstreamStream:
        consumer = await self._clients.register(address, name, topic="t", warm_delay=warm_delay)
        await consumer.until(lambda: consumer.updates > 0 or consumer.ended is not None)
        assert consumer.ended is None, consumer.ended
        return UpstreamStream(consumer)


# --- ours --------------------------------------------------------------------------------------------------------


class OurStream(Handler):
    def __init__(self, name: str, warm_delay: float) -> None:
        self.name = name
        self.warms: list[Place] = []
        self.releases: list[Place] = []
        self._warm_delay = warm_delay
        self._leaving: asyncio.Future[Ending] | None = None
        self.consumer: AssignerConsumer

    @property
    def owned(self) -> set[Place]:
        return {(tp.topic, tp.partition) for tp in self.consumer.partitions}

    @property
    def ended_well(self) -> bool:
        return bool(self._leaving and self._leaving.done() and self._leaving.result() is Ending.DRAINED)

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        self.warms.append((partition.topic, partition.partition))
        await anyio.sleep(self._warm_delay)

    async def release(self, partition: Ownership, order: Release) -> None:
        self.releases.append((partition.tp.topic, partition.tp.partition))

    async def drop(self) -> None:
        # As a killed process: nothing is said to the service any more.
        assert self.consumer._task is not None
        self.consumer._task.cancel()
        await anyio.wait_all_tasks_blocked()

    async def leave(self) -> str:
        self._leaving = asyncio.ensure_future(self._drain())
        return ""

    async def _drain(self) -> Ending:
        await self.consumer.drain()
        return await self.consumer.closed()


class Ours:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def start(self, address: str, name: str, *, warm_delay: float = 0.0) -> OurStream:
        stream = OurStream(name, warm_delay)
        stream.consumer = AssignerConsumer(
            [address],
            GROUP,
            name,
            ["t"],
            stream,
            timing=TIMING,
            clock=LoopClock(),
            connect_timeout=20,
            warm_concurrency=100,
        )
        await self._stack.enter_async_context(stream.consumer)
        return stream


@asynccontextmanager
async def clients_of(kind: str) -> AsyncIterator[Clients]:
    if kind == "upstream":
        async with upstream_clients() as clients:
            yield Upstreams(clients)
    else:
        async with AsyncExitStack() as stack:
            yield Ours(stack)
