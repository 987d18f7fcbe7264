"""Our own contestant: a service on a real etcd, two routers and some pods, each a process, which go through the course.

In the order of what happens: etcd and the service start, four pods share the partitions, two routers get the table, and
then requests are made while pods come and go. etcd syncs its log to the disk, as it does in production.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from assigner.client import AdminClient
from assigner.proto.kafka_assigner import v1
from assigner.testing.waiting import eventually
from bench.cutover.course import FIRST_PODS, GROUP, PARTITIONS, ROUTERS, SECOND, TOPIC, Action, Effort, Step
from bench.cutover.recording import Happened, Recording, Sent, served_in
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess, answers

UP_WITHIN = 60.0
ENDED_WITHIN = 60.0
LONGEST = 600.0
"""Seconds of requests that are told when to end."""
LINE_LIMIT = 2**20


class Instance:
    """One `assigner serve`."""

    def __init__(self, name: str, etcd: EtcdServer, effort: Effort, directory: Path) -> None:
        port, self._http_port = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        settings = {
            "instance.name": name,
            "store.backend": "etcd",
            "store.endpoints": etcd.endpoint,
            "grpc.port": port,
            "http.port": self._http_port,
            "log.format": "json",
            "consumer_ttl": effort.ttl,
        }
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.process = ServerProcess([sys.executable, "-m", "assigner.cli", "serve", *flags], directory / f"{name}.log")

    def wait_ready(self) -> None:
        self.process.wait_until(lambda: answers(f"http://127.0.0.1:{self._http_port}/readyz"), UP_WITHIN)


class Pods:
    """The pods' processes."""

    def __init__(self, addresses: str, directory: Path) -> None:
        self._addresses = addresses
        self._directory = directory
        self._running: dict[str, ServerProcess] = {}
        self.journal = directory / "served.jsonl"
        self.happened: list[Happened] = []

    def do(self, step: Step) -> None:
        self.happened.append(Happened(time.monotonic_ns(), step.action, step.pod))
        match step.action:
            case Action.JOIN:
                arguments = [step.pod, self._addresses, str(self.journal)]
                command = [sys.executable, "-m", "bench.cutover.pod", *arguments]
                self._running[step.pod] = ServerProcess(command, self._directory / f"{step.pod}.log")
            case Action.DRAIN:
                os.kill(self._running[step.pod].pid, signal.SIGTERM)
            case Action.KILL:
                self._running[step.pod].kill()

    def close(self) -> None:
        for process in self._running.values():
            process.kill()


class RouterProcess:
    """A router, told when to begin."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, number: int, addresses: str, directory: Path) -> RouterProcess:
        with (directory / f"router-{number}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.cutover.router", str(number), addresses),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_LIMIT,
                start_new_session=True,
            )
        return cls(process)

    async def line(self, within: float) -> str:
        assert self._process.stdout
        line = (await asyncio.wait_for(self._process.stdout.readline(), within)).decode()
        if not line:
            raise RuntimeError("a router ended before its time; see its log with --keep")
        return line.strip()

    def go(self, start_at: int, rate: int, seconds: float) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"go {start_at} {rate} {seconds}\n".encode())

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"stop\n")

    async def sent(self, within: float) -> tuple[list[Sent], str]:
        """All requests, once they have ended, and the router's own statistics."""
        found: list[Sent] = []
        decode = msgspec.json.Decoder(Sent).decode
        while not (line := await self.line(within)).startswith("done"):
            found.append(decode(line))
        return found, line.removeprefix("done ")

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def run(
    contestant: str, effort: Effort, directory: Path, *, mode: str, instances: int, tell: Callable[[str], None]
) -> Recording:
    before = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(EtcdServer(directory, fsync=True))
        addresses = await stack.enter_async_context(serving(etcd, effort, directory, instances))
        admin = await stack.enter_async_context(AdminClient(addresses))
        await admin.set_topic(GROUP, TOPIC, PARTITIONS, create=True)
        await admin.set_group_options(GROUP, v1.GroupOptions(handoff_mode=mode))
        pods = Pods(",".join(addresses), directory)
        stack.callback(pods.close)
        tell(f"{contestant}: {', '.join(FIRST_PODS)} join")
        for pod in FIRST_PODS:
            pods.do(Step(0.0, Action.JOIN, pod))
        await eventually(partial(is_even, admin, FIRST_PODS), within=UP_WITHIN, every=0.2, what="the group is even")
        pods.happened.clear()
        routers = [await RouterProcess.start(number, ",".join(addresses), directory) for number in range(ROUTERS)]
        for router in routers:
            stack.push_async_callback(router.close)
        for router in routers:
            await router.line(UP_WITHIN)
        seconds = effort.lasting(effort.ttl)
        start_at = time.monotonic_ns() + SECOND
        for router in routers:
            router.go(start_at, effort.rate, LONGEST if effort.in_turn else seconds)
        for number, step in enumerate(effort.steps, 1):
            await asyncio.sleep((start_at - time.monotonic_ns()) / SECOND + step.at)
            tell(f"{contestant}: {step.at:4.1f} s, {step.action.value} {step.pod}")
            pods.do(step)
            if effort.in_turn:
                moved = partial(is_even, admin, effort.pods(number))
                await eventually(moved, within=UP_WITHIN, every=0.2, what=f"the moves of {step.pod} have ended")
        if effort.in_turn:
            for router in routers:
                router.stop()
        sent: list[Sent] = []
        for router in routers:
            found, statistics = await router.sent(seconds + ENDED_WITHIN)
            sent += found
            tell(f"{contestant}: {statistics}")
    return Recording(
        contestant=contestant,
        load=(before, os.getloadavg()[0]),
        sent=sent,
        served=served_in(pods.journal),
        happened=pods.happened,
    )


@asynccontextmanager
async def serving(etcd: EtcdServer, effort: Effort, directory: Path, instances: int) -> AsyncIterator[Sequence[str]]:
    """The addresses of so many instances."""
    running = [Instance(f"instance-{number}", etcd, effort, directory) for number in range(1, instances + 1)]
    try:
        for instance in running:
            instance.wait_ready()
        yield [instance.address for instance in running]
    finally:
        for instance in running:
            instance.process.terminate(10)


async def is_even(admin: AdminClient, pods: Iterable[str]) -> bool:
    described = await admin.describe_group(GROUP)
    owned = {one.name: one.owned for one in described.consumers}
    shares = [owned.get(pod, 0) for pod in pods]
    return sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1 and not described.handoffs
