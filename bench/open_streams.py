"""Opens many consumer streams from a process of its own and tells when each heard of its first partition.

`python -m bench.open_streams ADDRESS GROUP STREAMS CONNECTIONS AT_ONCE`: so many register at a time. A registration
that is refused for the moment is tried again, as clients do. Prints `open` and how many tries failed when every stream
has its first message; then, once all were assigned something, the moments (CLOCK_MONOTONIC, which all processes share)
as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from assigner.proto.kafka_assigner.v1 import KafkaAssignerStub, RegisterRequest, RenewRequest

RETRY = 0.2
"""Seconds after a failed registration."""
PASSES = (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED)


class Streams:
    def __init__(self, address: str, group: str, count: int, connections: int, at_once: int) -> None:
        host, _, port = address.rpartition(":")
        windows = Configuration(http2_connection_window_size=64 * 2**20, http2_stream_window_size=2**20)
        self._channels = [Channel(host, int(port), config=windows) for _ in range(connections)]
        self._group = group
        self._count = count
        self._limit = asyncio.Semaphore(at_once)
        self._opened = self._failed = 0
        self._heard: list[float] = []
        self._all_open = asyncio.Event()
        self._all_heard = asyncio.Event()

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._consume(number)) for number in range(self._count)]
        for task in tasks:
            task.add_done_callback(_complain)
        await self._all_open.wait()
        print("open", self._failed, flush=True)
        await self._all_heard.wait()
        print(json.dumps(self._heard), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for task in tasks:
            task.cancel()
        for channel in self._channels:
            channel.close()

    async def _consume(self, number: int) -> None:
        stub = KafkaAssignerStub(self._channels[number % len(self._channels)])
        while not await self._registered(stub, number):
            self._failed += 1
            await asyncio.sleep(RETRY)

    async def _registered(self, stub: KafkaAssignerStub, number: int) -> bool:
        """Whether the stream was opened; returns when it is over."""
        name = f"consumer-{number:05}"
        request = RegisterRequest(consumer_name=name, group=self._group, session=f"s{number}", packed=True, renews=True)
        heard = False
        renewing: asyncio.Task[None] | None = None
        await self._limit.acquire()
        try:
            async for command in stub.register(request):
                if renewing is None:
                    self._limit.release()
                    renewing = asyncio.create_task(self._renew(stub, name, f"s{number}"))
                    self._opened += 1
                    if self._opened == self._count:
                        self._all_open.set()
                if not heard and (command.batch or (command.assignment and command.assignment.assigned_packed)):
                    heard = True
                    self._heard.append(time.monotonic())
                    if len(self._heard) == self._count:
                        self._all_heard.set()
        except (GRPCError, StreamTerminatedError, OSError) as error:
            if renewing is not None or (isinstance(error, GRPCError) and error.status not in PASSES):
                raise
            self._limit.release()
            return False
        return True

    async def _renew(self, stub: KafkaAssignerStub, name: str, session: str) -> None:
        while True:
            await asyncio.sleep(40)
            await stub.renew(RenewRequest(consumer_name=name, group=self._group, session=session))


def _complain(task: asyncio.Task[None]) -> None:
    """A stream that fails spoils the measurement: say so and give up."""
    if not task.cancelled() and task.exception():
        print(f"a stream failed: {task.exception()!r}", file=sys.stderr)
        os._exit(1)


async def main() -> None:
    address, group, *numbers = sys.argv[1:]
    await Streams(address, group, *map(int, numbers)).run()


if __name__ == "__main__":
    asyncio.run(main())
