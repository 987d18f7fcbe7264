"""Clients of the upstream assigner's protocol, for tests: unmodified grpcio ones, in a process of their own.

    async with upstream_clients() as upstream:
        consumer = await upstream.register("127.0.0.1:50051", "c-1", topic="orders")
        await consumer.until(lambda: len(consumer.owned) == 8)

One process holds as many consumers as a test wants, each with its own connection.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

_PROTO = Path(__file__).parents[2] / "resources" / "upstream.proto"
_PROCESS = Path(__file__).with_name("upstream_client_process.py")
_REPLY_TIMEOUT = 60.0

Place = tuple[str, int]


class CallFailed(Exception):
    """A call got a status other than OK."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class UpstreamConsumer:
    """One consumer, as far as its stream has told."""

    def __init__(self, clients: UpstreamClients, name: str) -> None:
        self._clients = clients
        self.name = name
        self.events: list[dict[str, Any]] = []
        """Everything the stream brought, in order."""
        self.updates = 0
        self.owned: set[Place] = set()
        self.warms: list[Place] = []
        self.releases: list[Place] = []
        self.ended: tuple[str, str] | None = None
        """Status and text of the stream's end."""
        self.fatal: tuple[str, str] | None = None
        """An answer of ours was refused, and that ended the client as it would end the real one."""

    def take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        match event["event"]:
            case "assignment":
                self.updates += 1
                self.owned |= {_place(one) for one in event["assigned"]}
                self.owned -= {_place(one) for one in event["unassigned"]}
            case "warm":
                self.warms.append(_place(event["partition"]))
            case "release":
                self.releases.append(_place(event["partition"]))
                self.owned.discard(_place(event["partition"]))
            case "end":
                self.ended = event["status"], event["text"]
            case "fatal":
                self.fatal = event["status"], event["text"]

    async def until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        """Wait until the condition holds; it is looked at after each event of any consumer."""
        await self._clients.until(condition, within)

    async def ready(self, place: Place | None) -> None:
        """Raises `CallFailed`. Only needed if the consumer does not answer by itself."""
        await self._clients.order("PartitionReady", self.name, partition=place)

    async def released(self, place: Place | None) -> None:
        await self._clients.order("PartitionReleased", self.name, partition=place)

    async def deregister(self) -> str:
        return str(await self._clients.order("deregister", self.name))

    async def drop(self) -> None:
        """Cancel the stream and close the connection, without a word."""
        await self._clients.order("drop", self.name)


class UpstreamClients:
    """The process and its consumers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()
        self.consumers: dict[str, UpstreamConsumer] = {}

    async def register(
        self, address: str, name: str, *, topic: str = "", answers: bool = True, warm_delay: float = 0.0
    ) -> UpstreamConsumer:
        """Open a stream. With `answers` the consumer answers warms (after the delay) and releases by itself."""
        consumer = self.consumers[name] = UpstreamConsumer(self, name)
        await self.order("register", name, address=address, topic=topic, answers=answers, warm_delay=warm_delay)
        return consumer

    async def order(self, do: str, name: str, **details: Any) -> Any:
        number = next(self._ids)
        self._replies[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do, "name": name, **details}).encode() + b"\n")
        return await asyncio.wait_for(self._replies[number], _REPLY_TIMEOUT)

    async def until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def signal(self, which: signal.Signals) -> None:
        """SIGSTOP, SIGCONT or SIGKILL to all consumers at once."""
        self._process.send_signal(which)

    async def listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._take(json.loads(line))
            self._changed.set()

    def _take(self, line: dict[str, Any]) -> None:
        if "reply" in line:
            reply = self._replies.pop(line["reply"])
            if reply.done():
                return
            if "status" in line:
                reply.set_exception(CallFailed(line["status"], line["text"]))
            else:
                reply.set_result(line["result"])
        elif "event" in line:
            self.consumers[line["name"]].take(line)


@asynccontextmanager
async def upstream_clients() -> AsyncIterator[UpstreamClients]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_PROCESS),
        await asyncio.to_thread(_stubs),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=16 * 2**20,
    )
    clients = UpstreamClients(process)
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), _REPLY_TIMEOUT)
    listening = asyncio.create_task(clients.listen())
    try:
        yield clients
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await listening


@cache
def _stubs() -> str:
    """The folder with grpcio's stubs, made once per process."""
    folder = _folder().name
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={_PROTO.parent}"]
    command += [f"--python_out={folder}", f"--grpc_python_out={folder}", str(_PROTO)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="upstream-stubs-")


def _place(pair: list[Any]) -> Place:
    return str(pair[0]), int(pair[1])
