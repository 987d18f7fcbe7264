"""A router process that is stopped for longer than its lease, and goes on: its first requests go to the new owners."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue

import anyio
import pytest

from assigner.client import AssignerConsumer, Handler
from assigner.embedded import EmbeddedAssigner
from tests.support.clients.recording_handler import QUICK

pytestmark = pytest.mark.processes
GROUP, TOPIC, COUNT = "billing", "orders", 2
PATIENCE = 60.0
TTL = 3.0

PROGRAM = """
import asyncio, os, sys
from assigner.routing import Router


async def main() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)

    async def send(router, partition):
        async with router.route_partition("orders", partition) as target:
            os.write(1, f"{target.partition} {target.owner} {target.epoch}\\n".encode())

    async with Router([sys.argv[1]], "billing", "router-1") as router, asyncio.TaskGroup() as tasks:
        os.write(1, b"ready\\n")
        while line := await orders.readline():
            tasks.create_task(send(router, int(line)))


asyncio.run(main())
"""


class RouterProcess:
    """A router in a process of its own, that sends a request whenever it is asked to."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def ask(self, partition: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{partition}\n")
        self.process.stdin.flush()

    def says(self, within: float = PATIENCE) -> str:
        return self._lines.get(timeout=within)

    def close(self) -> None:
        self.process.kill()
        self._reader.join()
        with self.process:
            # Leaving waits for it, and closes its pipes.
            pass

    @property
    def is_quiet(self) -> bool:
        try:
            self.says(0.5)
        except Empty:
            return True
        return False


@contextmanager
def router_at(address: str) -> Iterator[RouterProcess]:
    router = RouterProcess(address)
    try:
        assert router.says() == "ready"
        yield router
        assert router.process.stdin is not None
        router.process.stdin.close()
        assert router.process.wait(PATIENCE) == 0
    finally:
        router.close()


def consumer(assigner: EmbeddedAssigner, name: str) -> AssignerConsumer:
    return AssignerConsumer(assigner.address, GROUP, name, [TOPIC], Handler(), timing=QUICK)


@pytest.mark.embedded_assigner(topics={GROUP: {TOPIC: COUNT}}, consumer_ttl=TTL)
async def test_a_router_process_that_was_stopped_sends_nothing_to_a_stale_owner(
    embedded_assigner: EmbeddedAssigner,
) -> None:
    with anyio.fail_after(4 * PATIENCE), router_at(embedded_assigner.address) as router:
        async with consumer(embedded_assigner, "a") as a, consumer(embedded_assigner, "b") as b:
            await a.wait_for(lambda one: len(one.partitions) == 1)
            await b.wait_for(lambda one: len(one.partitions) == 1)
            ((moving, epoch),) = b.partitions.items()
            router.ask(moving.partition)
            assert router.says() == f"{moving.partition} b {epoch}"
            router.process.send_signal(signal.SIGSTOP)
            try:
                for _ in range(20):
                    router.ask(moving.partition)
                stopped_at = time.monotonic()
                # The move freezes the partition, and goes on without the stopped router when its lease is over.
                await b.drain(PATIENCE)
                await a.wait_for(lambda one: moving in one.partitions)
                assert time.monotonic() - stopped_at > 2 * TTL / 3
                assert router.is_quiet
            finally:
                router.process.send_signal(signal.SIGCONT)
            now = a.partitions[moving]
            assert now > epoch
            for _ in range(20):
                assert router.says() == f"{moving.partition} a {now}"
