"""The sharded service of the docs, as processes: pods come and go under load, and clients do not notice.

The programs and commands are those of `docs/how-to/shard-a-service.md`. Each client has a key of its own, writes the
next number and reads it back, and waits for each answer. So every answer can be checked, and the logs of the shards
show what was written under which epoch, in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from assigner.client import Ownership
from assigner.embedded import EmbeddedAssigner
from assigner.model.records import HandoffMode
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, Settings
from assigner.testing.waiting import eventually
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess
from tests.support.service_processes import until
from tests.support.typed_page import TypedPage
from tests.unit.project.test_docs import blocks

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "shard-a-service.md"
GROUP, SHARDS, CLIENTS = "kv", 16, 12
PATIENCE = 60.0


class Example:
    """The programs of the page, and the service that they belong to."""

    def __init__(self, assigner: EmbeddedAssigner, directory: Path) -> None:
        pod, router, *_ = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        for name, text in (("pod", pod), ("router", router)):
            assert "127.0.0.1:50051" in text
            (directory / f"{name}.py").write_text(text.replace("127.0.0.1:50051", assigner.address))
        self.assigner = assigner
        self.directory = directory
        self.running: dict[str, ServerProcess] = {}

    def start(self, program: str, name: str) -> int:
        """Start a pod or a router, and return its port."""
        port = free_port()
        # The programs keep their data where they are started.
        command = f'cd "{self.directory}" && exec "{sys.executable}" {program}.py {name} {port}'
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.running[name] = ServerProcess(["/bin/sh", "-c", command], self._log(name), environment)
        return port

    async def stop(self, name: str) -> None:
        """Ask a program to end, and wait until it has."""
        process = self.running.pop(name)
        status = await anyio.to_thread.run_sync(process.terminate, PATIENCE)
        assert status == 0, self._log(name).read_text()

    async def kill(self, name: str) -> None:
        """End a program without a word."""
        await anyio.to_thread.run_sync(self.running.pop(name).kill)

    async def shards_are_at(self, *pods: str) -> None:
        """Wait until these pods own all shards, in equal numbers, and nothing moves."""

        async def settled() -> bool:
            for name, process in self.running.items():
                assert process.is_running, self._log(name).read_text()
            described = await anyio.to_thread.run_sync(
                self.assigner.call, lambda service: service.instance.operations.describe(GROUP)
            )
            owned = Counter(one.owner for one in described.ownership)
            is_even = owned.keys() == set(pods) and max(owned.values()) - min(owned.values()) <= 1
            return is_even and owned.total() == SHARDS and not described.handoffs

        await eventually(settled, within=PATIENCE, every=0.1, what=f"shards are at {pods}")

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.out"

    def shard_logs(self) -> dict[int, list[tuple[int, str, str]]]:
        """What was written to each shard: epoch, key and value, in order."""
        files = (self.directory / "data").glob("*.log")
        return {int(file.stem): [tuple(json.loads(line)) for line in file.read_text().splitlines()] for file in files}


class Client:
    """Writes the next number under its key, by any router, and reads it back."""

    def __init__(self, key: str, routers: Sequence[int]) -> None:
        self.key = key
        self.written = 0
        self._routers = routers

    def _url(self, turn: int) -> str:
        return f"http://127.0.0.1:{self._routers[turn % len(self._routers)]}/{self.key}"

    async def run(self, session: aiohttp.ClientSession, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.written += 1
            async with session.put(self._url(self.written), data=str(self.written)) as response:
                assert response.status == 200, await response.text()
            async with session.get(self._url(self.written + 1)) as response:
                assert (response.status, await response.text()) == (200, str(self.written))


class ClientOfDyingPods(Client):
    """Knows that a write which is answered 504 may have been done, and that others were."""

    async def run(self, session: aiohttp.ClientSession, is_over: Callable[[], bool]) -> None:
        possible: set[str] = set()
        while not is_over():
            self.written += 1
            async with session.put(self._url(self.written), data=str(self.written)) as response:
                assert response.status in (200, 504), await response.text()
                possible = {str(self.written)} | (possible if response.status == 504 else set())
            async with session.get(self._url(self.written + 1)) as response:
                read = await response.text()
                assert response.status == 200 or (response.status, self.written) == (404, 1), read
                assert response.status == 404 or read in possible


@pytest.fixture
async def example(tmp_path: Path) -> AsyncIterator[Example]:
    settings = Settings(grpc=ServerSettings(port=0), http=HttpSettings(port=0), consumer_ttl=3.0)
    assigner = EmbeddedAssigner(settings, topics={GROUP: {"keys": SHARDS}})
    await anyio.to_thread.run_sync(assigner.__enter__)
    example = Example(assigner, tmp_path)
    try:
        changes = {"handoff_mode": HandoffMode.EXCLUSIVE, "debounce": 0.1}
        await anyio.to_thread.run_sync(
            assigner.call, lambda service: service.instance.operations.set_options(GROUP, changes)
        )
        yield example
    finally:
        for process in example.running.values():
            await anyio.to_thread.run_sync(process.kill)
        await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)


@asynccontextmanager
async def load(routers: Sequence[int], kind: type[Client] = Client) -> AsyncIterator[list[Client]]:
    """Clients that write and read until the block ends."""
    clients, stopping = [kind(f"key-{number}", routers) for number in range(CLIENTS)], anyio.Event()
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.run(session, stopping.is_set))
        yield clients
        stopping.set()


async def test_pods_come_and_go_under_load_and_no_request_is_lost_stale_or_out_of_order(example: Example) -> None:
    example.start("pod", "pod-1")
    example.start("pod", "pod-2")
    routers = [example.start("router", "router-1"), example.start("router", "router-2")]
    await example.shards_are_at("pod-1", "pod-2")
    for port in routers:
        await eventually(partial(answers, port), within=PATIENCE, what="a router answers")

    async with load(routers) as clients:
        await all_write(clients)
        example.start("pod", "pod-3")
        await example.shards_are_at("pod-1", "pod-2", "pod-3")
        await all_write(clients)
        await example.stop("pod-1")
        await example.shards_are_at("pod-2", "pod-3")
        await all_write(clients)
        example.start("pod", "pod-4")
        await example.stop("pod-2")
        await example.shards_are_at("pod-3", "pod-4")
        await all_write(clients)

    logs, values = example.shard_logs(), defaultdict(list)
    for shard, lines in logs.items():
        epochs = [epoch for epoch, _, _ in lines]
        assert epochs == sorted(epochs), f"a stale owner wrote to shard {shard}"
        for _, key, value in lines:
            if key:  # the others are those by which an owner begins
                values[key].append(int(value))
    # Each number once, in order: nothing was lost, done twice or overtaken.
    assert values == {client.key: list(range(1, client.written + 1)) for client in clients}
    assert any(len({epoch for epoch, _, _ in lines}) > 1 for lines in logs.values()), "no shard that was written moved"
    for name in list(example.running):
        await example.stop(name)


async def test_pods_that_are_killed_lose_no_write_that_was_answered(example: Example) -> None:
    for name in ("pod-1", "pod-2", "pod-3"):
        example.start("pod", name)
    routers = [example.start("router", "router-1"), example.start("router", "router-2")]
    await example.shards_are_at("pod-1", "pod-2", "pod-3")
    for port in routers:
        await eventually(partial(answers, port), within=PATIENCE, what="a router answers")

    async with load(routers, ClientOfDyingPods) as clients:
        await all_write(clients)
        await example.kill("pod-1")
        await example.shards_are_at("pod-2", "pod-3")
        await all_write(clients)
        await example.kill("pod-2")
        await example.shards_are_at("pod-3")
        await all_write(clients)


async def all_write(clients: Sequence[Client]) -> None:
    """Wait until each client has written a few more times."""
    goals = {client.key: client.written + 3 for client in clients}
    await eventually(lambda: all(client.written >= goals[client.key] for client in clients), within=PATIENCE)


async def test_what_a_stale_pod_writes_after_the_next_owner_has_begun_never_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _, start = next(blocks(PAGE, "python")).rpartition("asyncio.run(")
    assert start.startswith("main(")
    names: dict[str, Any] = {}
    exec(program, names)
    monkeypatch.chdir(tmp_path)
    names["DATA"].mkdir()
    append, key = names["append"], "cart-7"

    async def begins(epoch: int) -> str:
        """The value that the owner of this epoch reads when it begins."""
        shards = names["Shards"]()
        await shards.assigned(Ownership("keys", 3, epoch))
        value: str = shards.values[3][key]
        return value

    append(3, 1, key, "of the first")
    assert await begins(2) == "of the first"
    append(3, 1, key, "late")
    assert await begins(3) == "of the first"
    append(3, 3, key, "of the third")
    assert await begins(4) == "of the third"


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    page = TypedPage(PAGE, tmp_path, 9001, 9002, 9003, 8001, 8002)
    page.save(0, "pod.py")
    page.save(1, "router.py")
    serve, pod_1, pod_2, router_1, router_2, put, get, many, pod_3, describe = page.typed()
    with ExitStack() as stack:
        for command in (serve, pod_1, pod_2, router_1, router_2):
            stack.enter_context(page.running(command))
        until(lambda: page.prints(describe, "router-2"), PATIENCE, "all have joined")
        until(lambda: page.run(put).returncode == 0, PATIENCE, "a router answers")
        until(lambda: page.run(get).stdout == "1", PATIENCE, "the other router finds the value")
        writing = stack.enter_context(page.started(many))
        stack.enter_context(page.running(pod_3))
        until(lambda: owned_by_each(page.run(describe).stdout) == [5, 5, 6], PATIENCE, "the third pod has its share")
        printed, _ = writing.communicate(timeout=5 * PATIENCE)
        assert printed == "1000\n"


def owned_by_each(described: str) -> list[int]:
    """How many shards the pods have, by the table of consumers that `assigner describe` prints."""
    return sorted(int(count) for count in re.findall(r"^pod-\d +Ready +\d+ s ago +(\d+)", described, re.MULTILINE))


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
