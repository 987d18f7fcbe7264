"""etcd killed, frozen, cut off, wiped: every call ends, no read lies, no write is repeated, no event is lost."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import anyio
import anyio.to_thread
import pytest

from assigner.backends.etcd import watches
from assigner.backends.etcd.store import EtcdStore
from assigner.errors import OutcomeUnknown, StoreError, StoreUnavailable, WatchEnded
from assigner.store import (
    Absent,
    Batch,
    Entry,
    Event,
    Found,
    LeaseGone,
    Missing,
    Put,
    PutEvent,
    Renewed,
    WatchItem,
    Written,
)
from assigner.testing.waiting import eventually
from tests.conftest import StartEtcd, StartEtcdCluster
from tests.support.network.tcp_proxy import TcpProxy, proxied
from tests.support.servers.etcd import EtcdCluster, EtcdServer, RunningEtcd
from tests.support.servers.etcd_access import events_of, gauge, opened
from tests.support.servers.ports import free_port

pytestmark = pytest.mark.processes


@pytest.fixture
def own_etcd(start_etcd: StartEtcd) -> EtcdServer:
    return start_etcd(killed=True)


@pytest.fixture
def frozen_etcd(start_etcd: StartEtcd) -> EtcdServer:
    """An etcd that the test may freeze; it loses nothing by that."""
    return start_etcd()


@pytest.fixture
def second_etcd(start_etcd: StartEtcd) -> EtcdServer:
    return start_etcd()


@pytest.fixture
def cluster(start_etcd_cluster: StartEtcdCluster) -> EtcdCluster:
    return start_etcd_cluster(3, killed=True)


@pytest.fixture
async def proxy(etcd_server: RunningEtcd) -> AsyncIterator[TcpProxy]:
    async with proxied(etcd_server.endpoint) as proxy:
        yield proxy


async def in_thread(action: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(action)


def member_in_use(cluster: EtcdCluster, store: EtcdStore) -> EtcdServer:
    (member,) = [member for member in cluster.members if member.endpoint == store.statistics().endpoint]
    return member


# -- lost answers ---------------------------------------------------------------------------------------------------


async def test_a_write_whose_answer_is_lost_is_unknown_and_not_repeated(
    proxy: TcpProxy, etcd_server: RunningEtcd, etcd_prefix: str
) -> None:
    entries: tuple[Entry, ...] = ()
    writes: list[Callable[[EtcdStore], Awaitable[object]]] = [
        lambda store: store.put(f"{etcd_prefix}put", b"v"),
        lambda store: store.transact([], [Put(f"{etcd_prefix}transaction", b"v")]),
    ]
    for write in writes:
        async with opened([proxy.endpoint, etcd_server.endpoint], hang_timeout=0.6) as store:
            await store.get(f"{etcd_prefix}k")
            proxy.swallows_answers = True
            with pytest.raises(OutcomeUnknown, match="read again"):
                await write(store)
            proxy.swallows_answers = False
            entries = (await store.list(etcd_prefix)).entries
            assert entries[-1].version == 1
            assert store.statistics().endpoint == etcd_server.endpoint
    assert len(entries) == 2


async def test_reads_grants_and_revokes_are_repeated_on_another_member(
    proxy: TcpProxy, etcd_server: RunningEtcd, etcd_prefix: str
) -> None:
    async def read(store: EtcdStore) -> None:
        assert isinstance(await store.get(f"{etcd_prefix}k"), Missing)

    async def grant_and_revoke(store: EtcdStore) -> None:
        granted = await store.grant(5)
        proxy.swallows_answers = store.statistics().endpoint == proxy.endpoint
        await store.revoke(granted.lease)
        assert isinstance(await store.remaining(granted.lease), LeaseGone)

    for use in (read, grant_and_revoke):
        async with opened([proxy.endpoint, etcd_server.endpoint], hang_timeout=0.6) as store:
            proxy.swallows_answers = True
            await use(store)
            proxy.swallows_answers = False
            assert store.statistics().endpoint == etcd_server.endpoint


async def test_a_keep_alive_is_answered_only_for_a_renewal_sent_after_it_was_asked_for(
    proxy: TcpProxy, etcd_prefix: str
) -> None:
    async with opened([proxy.endpoint], request_timeout=1.0, hang_timeout=0.6) as store:
        lease = (await store.grant(30)).lease
        assert isinstance(await store.keep_alive(lease), Renewed)
        proxy.swallows_answers = True
        with anyio.fail_after(30), pytest.raises(StoreUnavailable, match="renew"):
            await store.keep_alive(lease)
        proxy.swallows_answers = False
        await eventually(lambda: store.statistics().endpoint is not None)
        assert isinstance(await store.keep_alive(lease), Renewed)
        assert store.statistics().keep_alives_pending == 0


async def test_the_connection_cut_under_keep_alives_fails_none_of_them(proxy: TcpProxy) -> None:
    async with opened([proxy.endpoint]) as store:
        leases = [(await store.grant(30)).lease for _ in range(20)]
        renewed = 0

        async def renew(lease: int) -> None:
            nonlocal renewed
            for _ in range(30):
                assert isinstance(await store.keep_alive(lease), Renewed)
                renewed += 1

        def has_renewed(count: int) -> bool:
            return renewed >= count

        async with anyio.create_task_group() as tasks:
            for lease in leases:
                tasks.start_soon(renew, lease)
            for share in (100, 300, 500):
                await eventually(partial(has_renewed, share), every=0.001)
                proxy.cut()
        assert renewed == 600


async def test_a_request_that_could_not_be_sent_goes_to_the_next_endpoint(
    etcd_server: RunningEtcd, etcd_prefix: str
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with opened([nobody, etcd_server.endpoint]) as store:
        assert isinstance(await store.put(f"{etcd_prefix}k", b""), Written)
    async with proxied(etcd_server.endpoint) as proxy, opened([proxy.endpoint, etcd_server.endpoint]) as store:
        await store.get(f"{etcd_prefix}k")
        await proxy.stop()
        await eventually(lambda: store.statistics().endpoint == etcd_server.endpoint)
        assert isinstance(await store.put(f"{etcd_prefix}k", b""), Written)


async def test_an_endpoint_that_accepts_and_says_nothing_is_passed_over(
    proxy: TcpProxy, etcd_server: RunningEtcd, etcd_prefix: str
) -> None:
    proxy.swallows_answers = True
    async with opened([proxy.endpoint, etcd_server.endpoint], hang_timeout=0.6) as store:
        assert isinstance(await store.get(f"{etcd_prefix}k"), Missing)


# -- a hung server ----------------------------------------------------------------------------------------------------


async def test_a_frozen_server_is_noticed_in_time_and_every_call_ends(frozen_etcd: EtcdServer) -> None:
    calls: dict[str, Callable[[EtcdStore], Awaitable[object]]] = {
        "get": lambda store: store.get("/k"),
        "list": lambda store: store.list("/"),
        "put": lambda store: store.put("/k", b"2"),
        "delete": lambda store: store.delete("/other"),
        "transact": lambda store: store.transact([Absent("/k")], [Put("/k", b"3")]),
        "grant": lambda store: store.grant(5),
        "keep_alive": lambda store: store.keep_alive(1),
        "revoke": lambda store: store.revoke(1),
        "remaining": lambda store: store.remaining(1),
    }
    ended: dict[str, type[BaseException]] = {}

    async def call(name: str) -> None:
        try:
            await calls[name](store)
        except StoreError as error:
            ended[name] = type(error)

    async with opened(frozen_etcd.endpoints, request_timeout=2.0, hang_timeout=1.0) as store:
        written = await store.put("/k", b"1")
        async with store.watch("/", start_revision=written.revision) as items:
            await events_of(items, 1)
            frozen_etcd.freeze()
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    for name in calls:
                        tasks.start_soon(call, name)
                    await eventually(lambda: store.statistics().endpoint is None, within=15)
            frozen_etcd.thaw()
            after = await eventually_written(store, "/after")
            seen: list[Event] = []
            while PutEvent(after.entry) not in seen:
                seen += await events_of(items, 1)
    writes = {"put", "delete", "transact"}
    assert {name for name, error in ended.items() if error is StoreUnavailable} == set(calls) - writes - {"revoke"}
    assert {name for name, error in ended.items() if error is OutcomeUnknown} == writes | {"revoke"}


async def eventually_written(store: EtcdStore, key: str) -> Found:
    async def is_written() -> bool:
        try:
            await store.put(key, b"")
        except StoreError:
            return False
        return True

    await eventually(is_written, within=20)
    found = await store.get(key)
    assert isinstance(found, Found)
    return found


async def test_a_frozen_server_is_noticed_by_an_idle_watcher(frozen_etcd: EtcdServer) -> None:
    async with opened(frozen_etcd.endpoints, hang_timeout=0.8) as store, store.watch("/", start_revision=1) as items:
        await store.put("/k", b"")
        await events_of(items, 1)
        frozen_etcd.freeze()
        # Far below the minute that the transport waits when it is not told otherwise.
        await eventually(lambda: store.statistics().endpoint is None, within=15)
        frozen_etcd.thaw()
        await eventually_written(store, "/k")
        await events_of(items, 1)


async def test_pings_are_not_so_many_that_etcd_hangs_up(
    etcd_server: RunningEtcd, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By its defaults etcd ends a connection on the fourth ping within 5 s of the one before; grpc sends one a second.
    monkeypatch.setattr(watches, "PROGRESS_SECONDS", 60)
    async with opened(etcd_server.endpoints, hang_timeout=0.4) as store:
        async with store.watch(etcd_prefix, start_revision=1):
            await anyio.sleep(5.5)
        assert store.statistics().connects == 1
        assert store.statistics().watch_streams == 1


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_no_event_is_missed_or_doubled_over_crashes_under_eight_writers(own_etcd: EtcdServer) -> None:
    confirmed: set[int] = set()
    unknown: set[str] = set()
    batches: list[Batch] = []
    stop = False

    async def write(writer: int) -> None:
        number = 0
        while not stop:
            number += 1
            value = f"{writer}.{number}"
            try:
                confirmed.add((await store.put(f"/{writer}", value.encode())).revision)
            except OutcomeUnknown:
                unknown.add(value)
            except StoreUnavailable:
                continue

    async def read(items: AsyncIterator[WatchItem]) -> None:
        while True:
            if isinstance(item := await anext(items), Batch):
                batches.append(item)

    def has_confirmed(count: int) -> bool:
        return len(confirmed) > count

    async with opened(own_etcd.endpoints, request_timeout=3.0) as store:
        async with store.watch("/", start_revision=2) as items, anyio.create_task_group() as reading:
            reading.start_soon(read, items)
            async with anyio.create_task_group() as writing:
                for writer in range(8):
                    writing.start_soon(write, writer)
                for crash in range(5):
                    await eventually(partial(has_confirmed, 150 * (crash + 1)), every=0.003)
                    await in_thread(own_etcd.restart)
                await eventually(partial(has_confirmed, len(confirmed) + 50))
                stop = True
            last = (await store.get("/0")).revision
            await eventually(lambda: bool(batches) and batches[-1].revision == last)
            reading.cancel_scope.cancel()
        assert store.statistics().connects >= 6
    events = [event for batch in batches for event in batch.events]
    revisions = [event.entry.mod_revision for event in events if isinstance(event, PutEvent)]
    assert revisions == list(range(2, last + 1)), "each revision is a put, seen once and in order"
    assert confirmed <= set(revisions)
    values = {event.entry.value.decode() for event in events if isinstance(event, PutEvent)}
    assert len(revisions) - len(confirmed) == len(values & unknown)


async def test_a_wiped_etcd_is_not_mistaken_for_the_one_before(own_etcd: EtcdServer) -> None:
    async with opened(own_etcd.endpoints, request_timeout=3.0) as store:
        for _ in range(5):
            await store.put("/k", b"")
        async with store.watch("/", start_revision=6) as items:
            await events_of(items, 1)
            await in_thread(lambda: _wipe(own_etcd))
            with anyio.fail_after(30), pytest.raises(WatchEnded, match="went back from revision 6 to 1"):
                await anext(items)
        with pytest.raises(StoreUnavailable, match="restored from a backup"):
            await store.get("/k")


def _wipe(server: EtcdServer) -> None:
    server.kill()
    shutil.rmtree(server.log.parent / f"{server.name}.data")
    server.start()


async def test_another_cluster_behind_an_endpoint_is_refused(own_etcd: EtcdServer, second_etcd: EtcdServer) -> None:
    async with opened([own_etcd.endpoint, second_etcd.endpoint], request_timeout=1.0) as store:
        await store.put("/k", b"")
        await in_thread(own_etcd.kill)
        with pytest.raises(StoreUnavailable, match="belongs to the etcd cluster"):
            await store.get("/k")
        await in_thread(own_etcd.start)
        assert isinstance(await store.get("/k"), Found)


# -- a cluster --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_member_lost_costs_no_read_and_no_event(cluster: EtcdCluster, fault: str) -> None:
    async with opened(cluster.endpoints, request_timeout=8.0, hang_timeout=1.0) as store:
        written = await store.put("/k", b"1")
        lease = (await store.grant(30)).lease
        async with store.watch("/", start_revision=written.revision) as items:
            await events_of(items, 1)
            member = member_in_use(cluster, store)
            await in_thread(getattr(member, fault))
            read = await store.get("/k")
            assert isinstance(read, Found)
            assert read.entry.value == b"1"
            assert store.statistics().endpoint != member.endpoint
            assert isinstance(await store.keep_alive(lease), Renewed)
            second = await store.put("/k", b"2")
            (event,) = await events_of(items, 1)
            assert isinstance(event, PutEvent)
            assert event.entry.mod_revision == second.revision
            if fault == "freeze":
                member.thaw()


async def test_without_quorum_calls_end_and_watches_go_on_once_it_is_back(cluster: EtcdCluster) -> None:
    async with opened(cluster.endpoints, request_timeout=2.0, hang_timeout=1.0) as store:
        written = await store.put("/k", b"1")
        async with store.watch("/", start_revision=written.revision) as items:
            await events_of(items, 1)
            staying = member_in_use(cluster, store)
            lost = [member for member in cluster.members if member is not staying]
            for member in lost:
                await in_thread(member.kill)
            # The member in use is alive and answers: only its missing leader tells that it must not be believed.
            await eventually(lambda: store.statistics().endpoint is None)
            with anyio.fail_after(30), pytest.raises(StoreUnavailable, match="no leader"):
                await store.get("/k")
            with anyio.fail_after(30), pytest.raises(StoreUnavailable):
                await store.put("/k", b"2")
            for member in lost:
                await in_thread(partial(member.start, wait=False))
            await eventually_written(store, "/after")
            (event,) = await events_of(items, 1)
            assert isinstance(event, PutEvent)
            assert event.entry.key == "/after", "the refused put had no effect"


async def test_watches_of_a_lost_member_leave_nothing_on_the_others(cluster: EtcdCluster) -> None:
    async with opened(cluster.endpoints, request_timeout=1.5, hang_timeout=1.0) as store:
        async with store.watch("/a/", start_revision=1), store.watch("/b/", start_revision=1) as items:
            await store.put("/b/1", b"")
            await events_of(items, 1)
            await in_thread(member_in_use(cluster, store).kill)
            await eventually_written(store, "/b/2")
            await events_of(items, 1)
            used = member_in_use(cluster, store)
            assert await gauge(used, "etcd_debugging_mvcc_watcher_total") == 2
        await eventually(lambda: _no_watchers(used))


async def _no_watchers(member: EtcdServer) -> bool:
    return await gauge(member, "etcd_debugging_mvcc_watcher_total") == 0
