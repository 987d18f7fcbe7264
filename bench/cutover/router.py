"""A router: a process that sends the requests of half of the keys to the owners of their partitions.

    python -m bench.cutover.router NUMBER ASSIGNERS

It says `ready` when it has a table, and begins when it is told `go START RATE SECONDS` on standard input. Each request
is begun when it is due, whatever became of those before it (an open loop). In the end it prints a line for each and
`done`. A request that an owner refused, or that could not be sent at all, is sent to the next owner, and later ones of
its partition wait behind it. One that was in flight when the connection ended is not repeated: it may have had its
effect.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from assigner.core.routing.partitioner import murmur2_partition
from assigner.errors import AssignerError
from assigner.routing import Router
from bench.cutover.course import GROUP, PARTITIONS, ROUTERS, SECOND, TOPIC, Due, requests
from bench.cutover.recording import Outcome, Sent
from bench.cutover.wire import Connections, Cut, NotSent, Verdict

PATIENCE = 40.0
"""Seconds after which a request that nobody answered counts as lost."""
NOTICED = SECOND // 1000
"""A request that had its target sooner was not held back."""
COME_AGAIN = 0.02
LOOK_AGAIN = 1.0
"""Seconds after which a request is sent again though no other owner is known: the same one may have come back."""


def keys(source: int) -> list[str]:
    """One key for each partition, other ones for each source."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < PARTITIONS:
        key = f"key-{source}-{number}"
        found.setdefault(murmur2_partition(key.encode(), PARTITIONS), key)
        number += 1
    return [found[partition] for partition in range(PARTITIONS)]


class Source:
    """The requests of one router."""

    def __init__(self, router: Router, number: int) -> None:
        self._router = router
        self._number = number
        self._keys = keys(number)
        self._connections = Connections()
        self._backlogs = [Backlog() for _ in range(PARTITIONS)]
        self.sent: list[Sent] = []

    async def make(self, start_at: int, rate: int, seconds: float, stopped: Callable[[], bool]) -> None:
        """Make all requests, or those until it is stopped, and wait until they have ended."""
        tasks: set[asyncio.Task[None]] = set()
        for due in requests(rate, seconds, self._number, ROUTERS):
            early = start_at + due.at - time.monotonic_ns()
            if early > 0:
                await asyncio.sleep(early / SECOND)
            if stopped():
                break
            task = asyncio.create_task(self._request(due, start_at + due.at))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks)
        self._connections.close()

    async def _request(self, due: Due, scheduled: int) -> None:
        key = self._keys[due.partition]
        progress = _Progress()
        outcome, error = Outcome.LOST, ""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._send(key, due, progress)
            outcome = Outcome.ANSWERED
        except Cut:
            outcome = Outcome.CUT
        except AssignerError as failure:
            outcome, error = Outcome.FAILED, f"{type(failure).__name__}: {failure}"
        except Exception as failure:  # noqa: BLE001 - an error without a type of ours is a loss, and says why
            error = repr(failure)
        self.sent.append(
            Sent(
                key,
                due.sequence,
                due.partition,
                scheduled,
                time.monotonic_ns(),
                outcome,
                progress.stashed,
                progress.refused,
                progress.waited,
                error,
            )
        )

    async def _send(self, key: str, due: Due, progress: _Progress) -> None:
        backlog = self._backlogs[due.partition]
        progress.waited += await backlog.turn()
        while True:
            asked = time.monotonic_ns()
            async with self._router.route(TOPIC, key) as target:
                waited = time.monotonic_ns() - asked
                if waited >= NOTICED:
                    progress.stashed += waited
                try:
                    verdict = await self._connections.ask(
                        target.address, target.partition, target.epoch, key, due.sequence
                    )
                except NotSent:
                    verdict = None
            match verdict:
                case Verdict.DONE:
                    return
                case Verdict.NOT_YET:
                    progress.refused += 1
                    await backlog.behind(partial(asyncio.sleep, COME_AGAIN))
                case Verdict.STALE:
                    progress.refused += 1
                    await backlog.behind(partial(self._router.newer_than, target, within=LOOK_AGAIN))
                case None:
                    progress.waited += 1
                    await backlog.behind(partial(self._router.newer_than, target, within=LOOK_AGAIN))


class Backlog:
    """Requests of one partition that have to be sent again, and those that came after them, in order.

    The library keeps the order of what it holds back itself; what an owner refused or could not get is the sender's.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._passing: asyncio.Task[None] | None = None
        """Waits for what the requests wait for; there is one while some do."""

    async def turn(self) -> bool:
        """Wait until no earlier request waits; whether one did."""
        if self._passing is None:
            return False
        await self._wait()
        return True

    async def behind(self, passed: Callable[[], Awaitable[object]]) -> None:
        """Wait until it has passed, behind the earlier ones."""
        if self._passing is None:
            self._passing = asyncio.create_task(self._pass(passed))
        await self._wait()

    def _wait(self) -> asyncio.Future[None]:
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    async def _pass(self, passed: Callable[[], Awaitable[object]]) -> None:
        await passed()
        while self._waiting:
            while self._waiting:
                one = self._waiting.popleft()
                if not one.done():
                    one.set_result(None)
            # Those go on in the loop's next turn, and whoever comes before that waits behind them.
            await asyncio.sleep(0)
        self._passing = None


class _Progress:
    """What happened to a request on its way."""

    __slots__ = ("refused", "stashed", "waited")

    def __init__(self) -> None:
        self.refused = self.stashed = self.waited = 0


async def main(number: int, assigners: list[str]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Router(assigners, GROUP, f"router-{number}") as router:
        await router.wait_for(lambda router: router.may_route)
        print("ready", flush=True)
        words = (await reader.readline()).decode().split()
        if not words:
            return
        source = Source(router, number)
        gc.collect()
        gc.freeze()
        stop = asyncio.create_task(reader.readline(), name="stop")
        await source.make(int(words[1]), int(words[2]), float(words[3]), stop.done)
        stop.cancel()
        said = router.statistics()
    encode = msgspec.json.Encoder().encode
    for one in source.sent:
        print(encode(one).decode())
    print(
        f"done router-{number}: {said.held} held back, {said.acked} acks, {said.overdue_drains} overdue drains, "
        f"{said.lapses} lapses, {said.overflowed} overflows",
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2].split(",")))
