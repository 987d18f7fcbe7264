"""etcd with users: tokens end and are renewed for all at once; what is denied is said, and no watch goes deaf."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from assigner.backends.etcd.store import EtcdStore
from assigner.errors import StoreRefused, WatchEnded
from assigner.store import Found, Missing, Renewed, Written
from assigner.testing.waiting import eventually
from tests.conftest import StartEtcd
from tests.support.servers.etcd import EtcdServer, RunningEtcd
from tests.support.servers.etcd_access import Gateway, b64, end_all_tokens, events_of, opened


def as_app(etcd: RunningEtcd, *, hang_timeout: float = 1.0) -> AbstractAsyncContextManager[EtcdStore]:
    return opened(etcd.endpoints, hang_timeout=hang_timeout, user="app", password="secret")


@pytest.fixture
def own_etcd(start_etcd: StartEtcd) -> EtcdServer:
    return start_etcd(extra_flags=["--auth-token=simple", "--auth-token-ttl=1"])


@pytest.fixture
def root(own_etcd: EtcdServer) -> Gateway:
    gateway = Gateway(own_etcd)
    gateway.enable_auth("app", "secret", prefix="/app/")
    return gateway


async def test_a_wrong_password_is_refused_at_the_opening(own_etcd: EtcdServer, root: Gateway) -> None:
    with pytest.raises(StoreRefused, match="check user and password"):
        async with opened(own_etcd.endpoints, user="app", password="wrong"):
            pass


async def test_a_password_is_read_anew_from_its_file_at_each_login(
    own_etcd: EtcdServer, root: Gateway, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    async with opened(own_etcd.endpoints, user="app", password_file=str(path)) as store:
        await store.put("/app/k", b"")
        path.write_text("rotated\n")
        await end_all_tokens(root, password="rotated")
        assert isinstance(await store.get("/app/k"), Found)
        assert store.statistics().logins == 2


async def test_no_user_where_one_is_wanted_is_refused(own_etcd: EtcdServer, root: Gateway) -> None:
    async with opened(own_etcd.endpoints) as store:
        with pytest.raises(StoreRefused, match="set user and password"):
            await store.get("/app/k")


async def test_a_user_where_none_is_wanted_is_fine(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    async with as_app(etcd_server) as store:
        assert isinstance(await store.put(f"{etcd_prefix}k", b""), Written)


async def test_what_the_user_may_not_do_is_refused(own_etcd: EtcdServer, root: Gateway) -> None:
    async with as_app(own_etcd) as store:
        assert isinstance(await store.put("/app/k", b""), Written)
        with pytest.raises(StoreRefused, match="denie"):
            await store.put("/other/k", b"")
        with pytest.raises(StoreRefused):
            await store.list("/")
        assert store.statistics().logins == 1


async def test_ended_tokens_are_renewed_once_for_all(own_etcd: EtcdServer, root: Gateway) -> None:
    async with as_app(own_etcd) as store:
        await store.put("/app/k", b"")
        await end_all_tokens(root)
        found = []

        async def read() -> None:
            found.append(await store.get("/app/k"))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(read)
        assert len(found) == 50
        assert all(isinstance(result, Found) for result in found)
        assert store.statistics().logins == 2


async def test_a_token_that_ended_by_time_is_renewed(own_etcd: EtcdServer, root: Gateway) -> None:
    # Every use prolongs a token, so let the store be slow to ask how etcd is.
    async with as_app(own_etcd, hang_timeout=30) as store:
        assert isinstance(await store.get("/app/k"), Missing)
        # Nothing but time ends it: 1 s, and etcd looks every second.
        await anyio.sleep(2.2)
        assert isinstance(await store.put("/app/k", b""), Written)
        assert store.statistics().logins == 2


async def test_a_watch_opened_with_an_expired_token_gets_events(own_etcd: EtcdServer, root: Gateway) -> None:
    async with as_app(own_etcd) as store:
        async with store.watch("/app/", start_revision=1) as before:
            await store.put("/app/1", b"")
            await events_of(before, 1)
            await end_all_tokens(root)
            async with store.watch("/app/", start_revision=1) as after:
                await events_of(after, 1)
                await store.put("/app/2", b"")
                await events_of(after, 1)
                await events_of(before, 1)
        assert store.statistics().logins == 2


async def test_a_watch_without_permission_raises(own_etcd: EtcdServer, root: Gateway) -> None:
    async with as_app(own_etcd) as store:
        async with store.watch("/app/", start_revision=1) as allowed, store.watch("/", start_revision=1) as denied:
            with anyio.fail_after(30), pytest.raises(WatchEnded, match="permission denied"):
                await anext(denied)
            await store.put("/app/k", b"")
            await events_of(allowed, 1)
        assert store.statistics().logins == 1


async def test_permission_taken_from_a_watch_that_resumes_is_an_error(own_etcd: EtcdServer, root: Gateway) -> None:
    async with as_app(own_etcd) as store, store.watch("/app/", start_revision=1) as items:
        await store.put("/app/k", b"")
        await events_of(items, 1)
        await anyio.to_thread.run_sync(lambda: root.login("root", "root"))
        await root.ask_async("auth/role/revoke", role="app", key=b64("/app/"), range_end=b64("/app0"))
        await anyio.to_thread.run_sync(own_etcd.restart)
        with anyio.fail_after(30), pytest.raises(WatchEnded):
            await anext(items)


async def test_leases_are_kept_alive_over_ended_tokens(own_etcd: EtcdServer, root: Gateway) -> None:
    async with as_app(own_etcd) as store:
        lease = (await store.grant(30)).lease
        assert isinstance(await store.keep_alive(lease), Renewed)
        await end_all_tokens(root)
        assert isinstance(await store.keep_alive(lease), Renewed)
        await anyio.to_thread.run_sync(own_etcd.restart)
        assert isinstance(await store.keep_alive(lease), Renewed)


async def test_users_switched_on_under_a_running_store_are_met_with_a_login(own_etcd: EtcdServer) -> None:
    async with as_app(own_etcd) as store:
        await store.put("/app/k", b"")
        assert store.statistics().logins == 0
        gateway = Gateway(own_etcd)
        await anyio.to_thread.run_sync(lambda: gateway.enable_auth("app", "secret", prefix="/app/"))

        async def reads() -> bool:
            return isinstance(await store.get("/app/k"), Found)

        await eventually(reads)
        assert store.statistics().logins == 1
