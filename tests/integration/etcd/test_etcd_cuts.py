"""A connection that is cut again and again, at any moment: every caller gets an answer or an error of ours, and once
the network is well the store goes on as if nothing had happened.

The proxy holds each piece back for 30 ms, so that a cut 20 to 350 ms after a connection was made falls between any two
steps: between the probe and the first request, between a login and what it is for, between a read that prepares a
stream and the stream."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from assigner.backends.etcd.store import EtcdStore
from assigner.errors import StoreError
from assigner.store import Batch, Event, PutEvent, Renewed
from assigner.testing.waiting import eventually
from tests.conftest import StartEtcd
from tests.support.network.tcp_proxy import TcpProxy, proxied
from tests.support.servers.etcd_access import Gateway, end_all_tokens, opened

pytestmark = pytest.mark.processes

CUTS = int(os.environ.get("ASSIGNER_TEST_CUTS", "40"))
"""About two a second: 120 make the course that lasts a minute."""
TTL = 60


class Users:
    """What an instance does with its store, all at once and for as long as it is let."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.seen: list[Event] = []
        self.renewals = 0
        self.writes = 0
        self.strange: list[BaseException] = []

    async def run(self) -> None:
        lease = (await self._store.grant(TTL)).lease
        async with anyio.create_task_group() as tasks:
            for work in (self._watch, partial(self._renew, lease), self._write):
                tasks.start_soon(self._again_and_again, work)

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except StoreError:
                await anyio.sleep(0.01)
            except Exception as error:
                # A caller knows what to do about the errors of the contract, and about no others.
                self.strange.append(error)
                raise

    async def _watch(self) -> None:
        async with self._store.watch("/app/", start_revision=1) as items:
            async for item in items:
                self.seen += item.events if isinstance(item, Batch) else ()

    async def _renew(self, lease: int) -> None:
        self.renewals += isinstance(await self._store.keep_alive(lease), Renewed)
        await anyio.sleep(0.02)

    async def _write(self) -> None:
        await self._store.put("/app/k", b"")
        self.writes += 1
        await anyio.sleep(0.02)


@asynccontextmanager
async def at_work(store: EtcdStore) -> AsyncIterator[Users]:
    users = Users(store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(users.run)
        await eventually(lambda: bool(users.seen) and bool(users.renewals), what="everybody served")
        yield users
        tasks.cancel_scope.cancel()


async def cut_again_and_again(proxy: TcpProxy, between: Callable[[], Awaitable[None]] | None = None) -> None:
    chance = random.Random(7)
    proxy.delay = 0.03
    for _ in range(CUTS):
        before = proxy.connections
        proxy.cut()
        await eventually(lambda before=before: proxy.connections > before, within=30, what="another connection")  # type: ignore[misc]
        if between is not None:
            await between()
        await anyio.sleep(chance.uniform(0.02, 0.35))
    proxy.delay = 0.0
    proxy.cut()


async def all_served(store: EtcdStore, users: Users) -> None:
    """Each kind of request is served from now on, by the same store."""
    renewals, writes = users.renewals, users.writes
    await eventually(lambda: users.writes > writes, within=30, what="a write that goes through")
    await eventually(lambda: users.renewals > renewals, within=30, what="a lease that is renewed")
    written = await store.put("/app/last", b"")

    def told() -> bool:
        return any(isinstance(event, PutEvent) and event.entry.mod_revision == written.revision for event in users.seen)

    await eventually(told, within=30, what="a watch that tells of the last write")
    assert not users.strange
    assert not store.problems()


async def test_a_store_outlives_cuts_at_any_moment(start_etcd: StartEtcd) -> None:
    async with proxied(start_etcd().endpoint) as proxy, opened([proxy.endpoint]) as store, at_work(store) as users:
        await cut_again_and_again(proxy)
        await all_served(store, users)
        assert store.statistics().connects > CUTS / 4


async def test_a_store_that_logs_in_outlives_cuts_at_any_moment(start_etcd: StartEtcd) -> None:
    etcd = start_etcd(extra_flags=["--auth-token=simple", "--bcrypt-cost=4"])
    root = Gateway(etcd)
    root.enable_auth("app", "secret", prefix="/app/")
    async with (
        proxied(etcd.endpoint) as proxy,
        opened([proxy.endpoint], user="app", password="secret") as store,
        at_work(store) as users,
    ):
        # Without a token every request has to log in first, on the connection that is about to be cut.
        await cut_again_and_again(proxy, between=lambda: end_all_tokens(root))
        await all_served(store, users)
        assert store.statistics().logins > 2
