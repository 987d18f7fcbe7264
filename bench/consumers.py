"""Consumers in a process of their own, told by lines on stdin what to do, so that they do not share the service's loop.

`join NAME...` registers real clients that warm and release at once; `die NAME...` drops them without a word; `leave`
ends. Each command is answered by one line.
"""

from __future__ import annotations

import asyncio
import sys

import anyio

from assigner.client import AssignerConsumer, Handler
from assigner.clock import SystemClock


class AtOnce(Handler):
    """Has nothing to warm and nothing to finish."""


class Crowd:
    def __init__(self, address: str, group: str) -> None:
        self._address = address
        self._group = group
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, names: list[str]) -> None:
        entered = [asyncio.Event() for _ in names]
        for name, event in zip(names, entered, strict=True):
            self._tasks[name] = asyncio.create_task(self._live(name, event))
        for event in entered:
            await event.wait()

    async def _live(self, name: str, entered: asyncio.Event) -> None:
        consumer = AssignerConsumer(
            [self._address], self._group, name, [], AtOnce(), warm_concurrency=1000, handler_concurrency=1000
        )
        async with consumer:
            entered.set()
            await anyio.sleep_forever()

    async def serve(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command, *names = line.decode().split()
            if command == "join":
                await self.join(names)
            elif command == "clock":
                print(SystemClock().now(), flush=True)
                continue
            else:
                break
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(Crowd(sys.argv[1], sys.argv[2]).serve())
