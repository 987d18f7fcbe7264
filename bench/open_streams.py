"""Opens many consumer streams from a process of its own and tells when each heard of its first partition.

`python -m bench.open_streams ADDRESS GROUP STREAMS CONNECTIONS`. Prints `open` when every stream has its first message,
then, once all were assigned something, the moments (CLOCK_MONOTONIC, which all processes share) as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from grpclib.client import Channel
from grpclib.config import Configuration

from assigner.proto.kafka_assigner.v1 import KafkaAssignerStub, RegisterRequest, RenewRequest


class Streams:
    def __init__(self, address: str, group: str, count: int, connections: int) -> None:
        host, _, port = address.rpartition(":")
        windows = Configuration(http2_connection_window_size=64 * 2**20, http2_stream_window_size=2**20)
        self._channels = [Channel(host, int(port), config=windows) for _ in range(connections)]
        self._group = group
        self._count = count
        self._opened = 0
        self._heard: list[float] = []
        self._all_open = asyncio.Event()
        self._all_heard = asyncio.Event()

    async def run(self) -> None:
        limit = asyncio.Semaphore(200)
        tasks = [asyncio.create_task(self._consume(number, limit)) for number in range(self._count)]
        for task in tasks:
            task.add_done_callback(_complain)
        await self._all_open.wait()
        print("open", flush=True)
        await self._all_heard.wait()
        print(json.dumps(self._heard), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for task in tasks:
            task.cancel()
        for channel in self._channels:
            channel.close()

    async def _consume(self, number: int, limit: asyncio.Semaphore) -> None:
        stub = KafkaAssignerStub(self._channels[number % len(self._channels)])
        name = f"consumer-{number:05}"
        request = RegisterRequest(consumer_name=name, group=self._group, session=f"s{number}", packed=True, renews=True)
        await limit.acquire()
        heard = False
        renewing: asyncio.Task[None] | None = None
        async for command in stub.register(request):
            if renewing is None:
                limit.release()
                renewing = asyncio.create_task(self._renew(stub, name, f"s{number}"))
                self._opened += 1
                if self._opened == self._count:
                    self._all_open.set()
            if not heard and (command.batch or (command.assignment and command.assignment.assigned_packed)):
                heard = True
                self._heard.append(time.monotonic())
                if len(self._heard) == self._count:
                    self._all_heard.set()

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
    await Streams(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).run()


if __name__ == "__main__":
    asyncio.run(main())
