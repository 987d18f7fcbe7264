"""Watches on a real etcd: one stream for all, nothing leaked, nobody held up by a slow reader, whole revisions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from assigner.backends.etcd import channel, watches
from assigner.backends.etcd.store import EtcdStore
from assigner.backends.etcd.watch import Buffer
from assigner.errors import Compacted, WatchEnded
from assigner.store import Batch, Progress, Put, PutEvent, WatchItem
from assigner.testing.waiting import eventually
from tests.conftest import StartEtcd
from tests.support.network.tcp_proxy import proxied
from tests.support.servers.etcd import EtcdServer, RunningEtcd
from tests.support.servers.etcd_access import Gateway, events_of, gauge, opened

WATCHERS = "etcd_debugging_mvcc_watcher_total"
STREAMS = "etcd_debugging_mvcc_watch_stream_total"


@pytest.fixture
def own_etcd(start_etcd: StartEtcd) -> EtcdServer:
    """An etcd on which nobody else watches."""
    return start_etcd()


async def test_a_thousand_cancelled_watches_leave_none_behind(own_etcd: EtcdServer) -> None:
    async def watch(store: EtcdStore, number: int) -> None:
        async with store.watch(f"/{number}/", start_revision=1) as items:
            async for _ in items:
                pass

    async with opened(own_etcd.endpoints) as store:
        for round_ in range(10):
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(watch, store, number)
                # Each round is cancelled at another point of the creation.
                await anyio.sleep(round_ * 0.003)
                tasks.cancel_scope.cancel()
        assert store.statistics().watches == 0

        async def none_left() -> bool:
            return await gauge(own_etcd, WATCHERS) == 0

        await eventually(none_left)
        assert store.statistics().watch_streams == 1


async def test_many_watches_share_one_stream(own_etcd: EtcdServer) -> None:
    async with opened(own_etcd.endpoints) as store, anyio.create_task_group() as tasks:

        async def watch(number: int) -> None:
            async with store.watch(f"/{number}/", start_revision=1) as items:
                await events_of(items, 1)

        for number in range(500):
            tasks.start_soon(watch, number)

        async def all_created() -> bool:
            return await gauge(own_etcd, WATCHERS) == 500

        await eventually(all_created)
        assert await gauge(own_etcd, STREAMS) == 1
        for number in range(500):
            await store.put(f"/{number}/k", b"")


async def test_a_watch_cancelled_while_it_is_created_never_binds_another(own_etcd: EtcdServer) -> None:
    async with opened(own_etcd.endpoints) as store:
        start = (await store.put("/a/", b"")).revision + 1
        for number in range(100):
            async with store.watch("/a/", start_revision=start):
                # Leave the creation on its way at one of several points.
                for _ in range(number % 5):
                    await anyio.lowlevel.checkpoint()
            async with store.watch("/b/", start_revision=start) as items:
                await store.put("/a/", b"")
                start = (await store.put(f"/b/{number}", b"")).revision + 1
                (event,) = await events_of(items, 1)
            assert isinstance(event, PutEvent)
            assert event.entry.key == f"/b/{number}"


async def test_a_slow_reader_holds_up_nobody_and_still_gets_everything(own_etcd: EtcdServer) -> None:
    total = 3000
    async with opened(own_etcd.endpoints, buffer=Buffer(events=100, bytes=1_000_000)) as store:
        async with (
            store.watch("/", start_revision=2) as slow,
            store.watch("/", start_revision=2) as fast,
            anyio.create_task_group() as tasks,
        ):
            most = 0

            async def read_fast() -> None:
                await events_of(fast, total)

            async def write() -> None:
                for number in range(total // 10):
                    await store.transact([], [Put(f"/{number}/{part}", b"v") for part in range(10)])

            tasks.start_soon(write)
            tasks.start_soon(read_fast)
            await eventually(lambda: store.statistics().watch_pauses > 0)
            await eventually(lambda: store.statistics().requests.get("transaction", 0) == total // 10)
            most = slow._events  # type: ignore[attr-defined]
            events = await events_of(slow, total)
        assert most < 1200, "one response past the bound, no more"
    revisions = [event.entry.mod_revision for event in events if isinstance(event, PutEvent)]
    assert revisions == [revision for revision in range(2, 2 + total // 10) for _ in range(10)]


async def test_a_catch_up_of_ten_megabytes_arrives_whole(own_etcd: EtcdServer) -> None:
    async with opened(own_etcd.endpoints) as store:
        async with anyio.create_task_group() as tasks:

            async def write(writer: int) -> None:
                for number in range(125):
                    await store.put(f"/{writer}/{number}", b"v" * 10_000)

            for writer in range(8):
                tasks.start_soon(write, writer)
        async with store.watch("/", start_revision=2) as items:
            events = await events_of(items, 1000)
        assert [event.entry.mod_revision for event in events if isinstance(event, PutEvent)] == list(range(2, 1002))
        assert store.statistics().watch_streams == 1


async def test_responses_past_our_limit_are_asked_for_in_fragments_that_never_split_a_revision(
    start_etcd: StartEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit is above a fragment of this etcd (its request limit and some) and below the whole.
    server = start_etcd(extra_flags=["--max-request-bytes=150000"])
    monkeypatch.setattr(channel, "MAX_RESPONSE_BYTES", 800_000)
    async with opened(server.endpoints) as store:
        for number in range(15):
            await store.transact([], [Put(f"/{number}/{part:03}", b"v" * 1000) for part in range(100)])
        async with store.watch("/", start_revision=2) as items:
            await store.put("/end", b"")
            seen: list[int] = []
            with anyio.fail_after(30):
                while len(seen) < 16:
                    item = await anext(items)
                    assert isinstance(item, Batch)
                    revisions = [event.entry.mod_revision for event in item.events if isinstance(event, PutEvent)]
                    for revision in dict.fromkeys(revisions):
                        assert revisions.count(revision) == (100 if revision < 17 else 1)
                        seen.append(revision)
        assert seen == list(range(2, 18))
        assert store.statistics().watch_streams > 1


async def test_history_compacted_while_a_watch_was_cut_off_ends_it_with_an_error(own_etcd: EtcdServer) -> None:
    async with proxied(own_etcd.endpoint) as proxy, opened([proxy.endpoint], hang_timeout=0.6) as store:
        written = await store.put("/k", b"")
        async with store.watch("/", start_revision=written.revision) as items:
            await events_of(items, 1)
            await proxy.stop()
            await eventually(lambda: store.statistics().endpoint is None)
            async with opened(own_etcd.endpoints) as other:
                for _ in range(10):
                    await other.put("/k", b"")
            await Gateway(own_etcd).ask_async("kv/compaction", revision="12")
            await proxy.start(int(proxy.endpoint.partition(":")[2]))
            with anyio.fail_after(30), pytest.raises(Compacted) as error:
                await anext(items)
            assert error.value.compacted == 12
            with pytest.raises(Compacted):
                await anext(items)
        async with store.watch("/", start_revision=12) as items:
            await events_of(items, 1)


async def test_a_connection_cut_again_and_again_costs_a_watch_nothing(own_etcd: EtcdServer) -> None:
    seen: list[int] = []

    async def read(items: AsyncIterator[WatchItem]) -> None:
        while len(seen) < 600:
            if isinstance(item := await anext(items), Batch):
                seen.extend(event.entry.mod_revision for event in item.events if isinstance(event, PutEvent))

    async with (
        opened(own_etcd.endpoints) as direct,
        proxied(own_etcd.endpoint) as proxy,
        opened([proxy.endpoint]) as store,
        store.watch("/", start_revision=2) as items,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, items)
            for number in range(600):
                await direct.put("/k", b"")
                if number % 60 == 30:
                    proxy.cut()
        assert seen == list(range(2, 602))
        assert store.statistics().watch_streams > 3


async def test_a_quiet_watch_is_moved_along_so_that_compaction_does_not_overtake_it(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not watches.orders_progress(own_etcd.binary.version):
        pytest.skip("this etcd release may tell progress before the events it is about")
    monkeypatch.setattr(watches, "PROGRESS_SECONDS", 0.05)
    async with (
        opened(own_etcd.endpoints) as direct,
        proxied(own_etcd.endpoint) as proxy,
        opened([proxy.endpoint]) as store,
        store.watch("/quiet/", start_revision=1) as items,
    ):
        for _ in range(5):
            await direct.put("/loud", b"")
        with anyio.fail_after(30):
            while (item := await anext(items)).revision < 6:
                assert isinstance(item, Progress)
        await Gateway(own_etcd).ask_async("kv/compaction", revision="6")
        proxy.cut()
        await direct.put("/quiet/k", b"")
        await events_of(items, 1)


async def test_progress_never_overtakes_an_event(own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "PROGRESS_SECONDS", 0.001)
    monkeypatch.setattr(watches, "orders_progress", lambda version: version >= (3, 5, 8))
    total = 400
    async with opened(own_etcd.endpoints) as store, anyio.create_task_group() as tasks:

        async def write(writer: int) -> None:
            for _ in range(total // 4):
                await store.put(f"/{writer}", b"")

        async def read(prefix: str, count: int) -> None:
            told, events = 0, 0
            async with store.watch(prefix, start_revision=2) as items:
                while events < count:
                    item = await anext(items)
                    if isinstance(item, Batch):
                        first = item.events[0]
                        assert isinstance(first, PutEvent)
                        assert first.entry.mod_revision > told
                        events += len(item.events)
                    told = item.revision

        for writer in range(4):
            tasks.start_soon(write, writer)
            tasks.start_soon(read, f"/{writer}", total // 4)
        tasks.start_soon(read, "/", total)


async def test_closing_the_store_ends_its_watches(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    async def read(items: AsyncIterator[WatchItem]) -> None:
        with pytest.raises(WatchEnded, match="closed"):
            await events_of(items, 1)

    async with (
        opened(etcd_server.endpoints) as store,
        store.watch(etcd_prefix, start_revision=1) as items,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(read, items)
        await store.close()


async def test_sixty_four_writers_do_not_starve_a_watch(own_etcd: EtcdServer) -> None:
    seen = written = 0
    async with opened(own_etcd.endpoints) as store, store.watch("/", start_revision=2) as items:

        async def read() -> None:
            nonlocal seen
            async for item in items:
                seen += len(item.events) if isinstance(item, Batch) else 0

        async def write(writer: int) -> None:
            # How far a watch may fall behind depends on the machine. That it goes on at all while nobody stops writing
            # does not: each write is a request of the loop that also reads the watch.
            nonlocal written
            while seen < 2_000 and written < 40_000:
                await store.put(f"/{writer}", b"v" * 64)
                written += 1

        async with anyio.create_task_group() as reading:
            reading.start_soon(read)
            async with anyio.create_task_group() as writing:
                for writer in range(64):
                    writing.start_soon(write, writer)
            assert seen >= 2_000, f"the watch told {seen} of {written} events while they were written"
            await eventually(lambda: seen >= written, within=15)
            reading.cancel_scope.cancel()
