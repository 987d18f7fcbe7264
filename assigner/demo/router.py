"""A router of the demo, with clients that make requests all the time: a process that says how they fare.

    python -m assigner.demo.router ADDRESS NAME

It prints a line of JSON several times a second. On SIGTERM its clients make no more requests, those in flight end, and
the router leaves.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import anyio
import msgspec

from assigner.demo.traffic import GROUP, RATE, SAID_EVERY, TOPIC, RouterCounts
from assigner.errors import AssignerError
from assigner.routing import Router, Target
from assigner.routing.aiohttp import RoutedSession

PATIENCE = 60.0
"""Seconds after which a request counts as lost."""
_encode = msgspec.json.Encoder().encode


class CountingRouter(Router):
    """Counts the requests that wait before they are sent again: until there is a newer route, or for a pause."""

    retries = 0
    retrying = 0

    async def newer_than(self, target: Target, *, within: float = 5.0) -> bool:
        self.retries += 1
        self.retrying += 1
        try:
            return await super().newer_than(target, within=within)
        finally:
            self.retrying -= 1


class Clients:
    """Makes requests at an even rate, each on its own, so that one that waits delays no other."""

    def __init__(self, router: CountingRouter, session: RoutedSession) -> None:
        self._router = router
        self._session = session
        self._tasks: set[asyncio.Task[None]] = set()
        self._made = self._answered = self._refused = self._lost = 0
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        """Make requests until they are stopped, and wait for the last of them."""
        began = time.monotonic()
        while not self._stopped.is_set():
            for _ in range(self._made, int((time.monotonic() - began) * RATE)):
                task = asyncio.create_task(self._request(self._made))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self._made += 1
            await anyio.sleep(1 / RATE)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _request(self, number: int) -> None:
        key = f"{self._router.name}-{number}"
        try:
            async with asyncio.timeout(PATIENCE), self._session.request("GET", TOPIC, key, f"/{key}") as response:
                await response.read()
        except AssignerError:
            self._refused += 1
        except Exception:  # noqa: BLE001 - whatever else it is, nobody knows what became of the request
            self._lost += 1
        else:
            self._answered += response.status == 200
            self._lost += response.status != 200

    def counts(self) -> RouterCounts:
        found = self._router.statistics()
        return RouterCounts(
            made=self._made,
            answered=self._answered,
            refused=self._refused,
            lost=self._lost,
            held=found.held,
            retries=self._router.retries,
            retrying=self._router.retrying,
            stashed=found.stashed,
            in_flight=found.in_flight,
        )

    async def say(self) -> None:
        while True:
            print(_encode(self.counts()).decode(), flush=True)
            await anyio.sleep(SAID_EVERY)


async def run(address: str, name: str) -> None:
    async with CountingRouter(address, GROUP, name) as router, RoutedSession(router) as session:
        clients = Clients(router, session)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, clients.stop)
        saying = asyncio.create_task(clients.say())
        await clients.run()
        saying.cancel()
        print(_encode(clients.counts()).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2]))
