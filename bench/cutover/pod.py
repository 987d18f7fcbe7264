"""A pod: a process with a consumer of the group that serves requests behind the gates of its partitions.

    python -m bench.cutover.pod NAME ASSIGNERS JOURNAL

Each request takes a while; then its effect is a line of the journal, checked at the gate once more, and it is answered.
SIGTERM drains the pod; it ends when everything is handed over.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

from assigner.client import AssignerConsumer, GateClosed, Handler, StaleEpoch
from bench.cutover.course import GROUP, TOPIC
from bench.cutover.recording import Journal, Served
from bench.cutover.wire import Request, Requests, Verdict

WORK = 0.002
"""Seconds that a request takes, so that some are in flight at any moment."""


class Pod:
    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self._tasks: set[asyncio.Task[None]] = set()
        self.consumer: AssignerConsumer | None = None

    def handle(self, request: Request, answer: Callable[[Verdict], None]) -> None:
        task = asyncio.create_task(self._serve(request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: Request, answer: Callable[[Verdict], None]) -> None:
        assert self.consumer is not None
        try:
            async with self.consumer.entering(TOPIC, request.partition, request.epoch) as epoch:
                began = time.monotonic_ns()
                await asyncio.sleep(WORK)
                self.consumer.gate(TOPIC, request.partition).check(epoch)
                ended = time.monotonic_ns()
                self._journal.add(
                    Served(request.partition, epoch, self._name, request.key, request.sequence, began, ended)
                )
        except StaleEpoch:
            answer(Verdict.STALE)
        except GateClosed as refusal:
            answer(Verdict.NOT_YET if refusal.is_passing else Verdict.STALE)
        else:
            answer(Verdict.DONE)

    async def finish(self) -> None:
        """Answer what has come."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        # Answers that were written in the last turn of the loop.
        await asyncio.sleep(0)


async def run(name: str, assigners: list[str], journal: Path) -> None:
    pod = Pod(name, Journal(journal))
    server = await asyncio.get_running_loop().create_server(lambda: Requests(pod.handle), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    pod.consumer = AssignerConsumer(
        assigners, GROUP, name, [TOPIC], Handler(), advertised_address=address, warm_concurrency=100
    )
    await pod.consumer.run_until_signal()
    await pod.finish()
    server.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2].split(","), Path(sys.argv[3])))
