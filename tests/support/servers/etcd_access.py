"""What the etcd tests need: a store that must end cleanly, etcd's own numbers, its JSON gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread

from assigner.backend import StoreSettings
from assigner.backends.etcd.store import EtcdStore
from assigner.backends.etcd.watch import Buffer
from assigner.clock import SystemClock
from assigner.store import Batch, Event, WatchItem
from assigner.testing.waiting import eventually
from tests.support.servers.etcd import EtcdServer, RunningEtcd


@asynccontextmanager
async def opened(
    endpoints: Sequence[str],
    *,
    request_timeout: float = 5.0,
    hang_timeout: float = 1.0,
    buffer: Buffer | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_server_name: str | None = None,
) -> AsyncIterator[EtcdStore]:
    """A store that must leave no task behind."""
    before = asyncio.all_tasks()
    settings = StoreSettings(
        endpoints=tuple(endpoints),
        request_timeout=request_timeout,
        hang_timeout=hang_timeout,
        user=user,
        password=password,
        password_file=password_file,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_server_name=tls_server_name,
    )
    store = EtcdStore(settings, SystemClock(), buffer=buffer)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
    # grpc needs a moment to take note of calls that were cancelled at last.
    await eventually(
        lambda: not _of_the_store(asyncio.all_tasks() - before), within=30, what="a store without tasks left"
    )


def _of_the_store(tasks: Iterable[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    return [task for task in tasks if not task.done() and "TcpProxy" not in repr(task)]


async def events_of(items: AsyncIterator[WatchItem], count: int, *, within: float = 30.0) -> list[Event]:
    """The next `count` events."""
    events: list[Event] = []
    with anyio.fail_after(within):
        while len(events) < count:
            item = await anext(items)
            if isinstance(item, Batch):
                events.extend(item.events)
    return events


async def gauge(etcd: RunningEtcd, name: str) -> float:
    """One of etcd's own numbers."""

    def read() -> float:
        with urllib.request.urlopen(f"http://{etcd.endpoint}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        (value,) = [line.split()[1] for line in lines if line.split()[0] == name]
        return float(value)

    return await anyio.to_thread.run_sync(read)


class Gateway:
    """etcd's JSON gateway, for what an operator does and no Store needs to offer."""

    def __init__(self, server: EtcdServer) -> None:
        self._url = server.url
        self._token = ""

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        headers = {"Authorization": self._token} if self._token else {}
        request = urllib.request.Request(
            f"{self._url}/v3/{path}", data=json.dumps(fields).encode(), headers=headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    async def ask_async(self, path: str, **fields: Any) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(lambda: self.ask(path, **fields))

    def login(self, user: str, password: str) -> None:
        self._token = self.ask("auth/authenticate", name=user, password=password)["token"]

    def enable_auth(self, user: str, password: str, prefix: str) -> None:
        """Let root do all, and `user` what it likes under `prefix`."""
        self.ask("auth/user/add", name="root", password="root")
        self.ask("auth/role/add", name="root")
        self.ask("auth/user/grant", user="root", role="root")
        self.ask("auth/user/add", name=user, password=password)
        self.ask("auth/role/add", name="app")
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self.ask("auth/role/grant", name="app", perm={"permType": 2, "key": b64(prefix), "range_end": b64(end)})
        self.ask("auth/user/grant", user=user, role="app")
        self.ask("auth/enable")
        self.login("root", "root")


async def end_all_tokens(root: Gateway, *, password: str = "secret") -> None:
    """A password that is set again ends its user's tokens, at once."""
    await anyio.to_thread.run_sync(lambda: root.login("root", "root"))
    await root.ask_async("auth/user/changepw", name="app", password=password)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
