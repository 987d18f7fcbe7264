"""A pod of the demo with routers: a process that serves requests of the partitions it owns.

python -m assigner.demo.pod ADDRESS NAME WARM_SECONDS RELEASE_SECONDS
"""

from __future__ import annotations

import asyncio
import socket
import sys

import anyio
from aiohttp import web

from assigner.client import AssignerConsumer, Handler, Ownership, Release, TopicPartition, Warm
from assigner.demo.traffic import GROUP, TOPIC
from assigner.routing.aiohttp import routed

WORK = 0.02
"""Seconds that a request takes, so that some are in flight for people to see."""


class SlowHandler(Handler):
    """Takes a moment for each partition, as real state does."""

    def __init__(self, warm: float, release: float) -> None:
        self._warm = warm
        self._release = release

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        await anyio.sleep(self._warm)

    async def release(self, partition: Ownership, order: Release) -> None:
        await anyio.sleep(self._release)


async def answer(request: web.Request) -> web.Response:
    await anyio.sleep(WORK)
    return web.Response(text="done")


async def run(address: str, name: str, handler: Handler) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        consumer = AssignerConsumer(address, GROUP, name, [TOPIC], handler, advertised_address=f"{host}:{port}")
        app = web.Application(middlewares=[routed(consumer)])
        app.router.add_get("/{key}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            await consumer.run_until_signal()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], SlowHandler(float(sys.argv[3]), float(sys.argv[4]))))
