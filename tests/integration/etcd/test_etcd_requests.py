"""Requests to a real etcd that has nothing wrong with it: what is refused and how, and that sizes stay in bounds."""

from __future__ import annotations

import itertools

import anyio
import pytest

from assigner.backends.etcd import calls, channel, watches
from assigner.backends.etcd.store import EtcdStore
from assigner.errors import (
    Compacted,
    InvalidInput,
    LeaseNotFound,
    LimitReached,
    StoreReadOnly,
    StoreUnavailable,
    TransactionTooLarge,
)
from assigner.store import Absent, Committed, Delete, Found, Missing, Put, Written, read_all
from tests.conftest import StartEtcd
from tests.support.servers.etcd import EtcdServer, RunningEtcd
from tests.support.servers.etcd_access import Gateway, opened
from tests.support.servers.ports import free_port


@pytest.fixture
def tight_etcd(start_etcd: StartEtcd) -> EtcdServer:
    """An etcd that takes less than our own limits let through."""
    return start_etcd(extra_flags=["--max-txn-ops=4", "--max-request-bytes=2000"])


@pytest.fixture
def small_etcd(start_etcd: StartEtcd) -> EtcdServer:
    return start_etcd(extra_flags=["--quota-backend-bytes=300000"])


async def test_limits_of_the_server_below_ours_are_reported_as_too_large(tight_etcd: EtcdServer) -> None:
    async with opened(tight_etcd.endpoints) as store:
        with pytest.raises(TransactionTooLarge, match="too many operations"):
            await store.transact([], [Put(f"/{number}", b"") for number in range(5)])
        with pytest.raises(TransactionTooLarge, match="too large"):
            await store.put("/k", b"v" * 3000)
        with pytest.raises(TransactionTooLarge, match="larger than max"):
            await store.put("/k", b"v" * 900_000)
        assert isinstance(await store.put("/k", b"v"), Written)


async def test_a_transaction_past_our_limits_is_not_sent(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    async with opened(etcd_server.endpoints) as store:
        puts = [Put(f"{etcd_prefix}{number}", b"") for number in range(129)]
        with pytest.raises(TransactionTooLarge, match="129 operations"):
            await store.transact([], puts)
        with pytest.raises(TransactionTooLarge, match="129 compares"):
            await store.transact([Absent(put.key) for put in puts], [])
        with pytest.raises(TransactionTooLarge, match="1000001 bytes"):
            await store.transact([], [Put(f"{etcd_prefix}k", b"v" * 1_000_001)])
        with pytest.raises(InvalidInput, match="write a key once"):
            await store.transact([], [Put(f"{etcd_prefix}k", b""), Delete(f"{etcd_prefix}k")])
        assert store.statistics().requests == {}
        assert isinstance(await store.transact([], puts[:128]), Committed)


async def test_a_lease_that_ended_is_refused_by_name(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    async with opened(etcd_server.endpoints) as store:
        granted = await store.grant(10)
        await store.revoke(granted.lease)
        await store.revoke(granted.lease)
        with pytest.raises(LeaseNotFound):
            await store.put(f"{etcd_prefix}k", b"", lease=granted.lease)
        with pytest.raises(LeaseNotFound):
            await store.transact([], [Put(f"{etcd_prefix}k", b"", lease=granted.lease)])


async def test_malformed_requests_are_invalid_input(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    async with opened(etcd_server.endpoints) as store:
        for request in (
            store.get(""),
            store.put("", b""),
            store.list(etcd_prefix, limit=0),
            store.list(etcd_prefix, revision=10**9),
            store.grant(0),
            store.grant(float("nan")),
        ):
            with pytest.raises(InvalidInput):
                await request


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"endpoints": ()}, "1 to 32 endpoints"),
        ({"endpoints": ("nowhere",)}, "'nowhere' is not host:port"),
        ({"endpoints": ("h:99999",)}, "not host:port"),
        ({"endpoints": ("h:1",), "request_timeout": 0.0}, "above 0"),
        ({"endpoints": ("h:1",), "tls_cert": "/c"}, "both tls_cert and tls_key"),
    ],
)
async def test_settings_that_cannot_work_are_refused_at_once(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        async with opened(**settings):  # type: ignore[arg-type]
            pass


async def test_nobody_listening_is_said_with_the_address_and_within_the_deadline() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    with anyio.fail_after(30), pytest.raises(StoreUnavailable, match=endpoint):
        async with opened([endpoint], request_timeout=0.5):
            pass


async def test_keys_that_are_not_text_survive_the_way_there_and_back(
    etcd_server: RunningEtcd, etcd_prefix: str
) -> None:
    async with opened(etcd_server.endpoints) as store:
        # As bytes: a, a 0xff, a 0xff 0xff and b. The prefix `a 0xff` holds the middle two.
        keys = [etcd_prefix + tail for tail in ("a", "a\udcff", "a\udcff\udcff", "b")]
        for key in keys:
            await store.put(key, b"v")
        page = await store.list(f"{etcd_prefix}a\udcff")
        assert [entry.key for entry in page.entries] == keys[1:3]
        assert isinstance(await store.get(keys[2]), Found)


async def test_the_empty_prefix_means_every_key(small_etcd: EtcdServer) -> None:
    async with opened(small_etcd.endpoints) as store:
        for key in ("\x01", "b", "\udcff\udcff"):
            await store.put(key, b"")
        assert [entry.key for entry in (await read_all(store, "", page_size=2)).entries] == [
            "\x01",
            "b",
            "\udcff\udcff",
        ]


async def test_a_page_too_large_for_one_answer_is_cut(
    etcd_server: RunningEtcd, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_RESPONSE_BYTES", 500_000)
    async with opened(etcd_server.endpoints) as store:
        for number in range(20):
            await store.put(f"{etcd_prefix}{number:02}", b"v" * 100_000)
        page = await store.list(etcd_prefix)
        assert page.more
        assert 1 <= len(page.entries) < 5
        assert len((await read_all(store, etcd_prefix)).entries) == 20


async def test_a_revision_compacted_between_two_pages_is_an_error(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    if not isinstance(etcd_server, EtcdServer):
        pytest.skip("needs an etcd of the tests' own to compact")
    async with opened(etcd_server.endpoints) as store:
        for number in range(4):
            await store.put(f"{etcd_prefix}{number}", b"")
        page = await store.list(etcd_prefix, limit=2)
        written = await store.put(f"{etcd_prefix}9", b"")
        await Gateway(etcd_server).ask_async("kv/compaction", revision=str(written.revision))
        with pytest.raises(Compacted) as error:
            await store.list(etcd_prefix, after=page.entries[-1].key, revision=page.revision)
        assert error.value.compacted == page.revision


async def test_a_full_etcd_is_read_only_and_still_read(small_etcd: EtcdServer) -> None:
    async with opened(small_etcd.endpoints) as store:
        await store.put("/kept", b"v")

        async def fill() -> None:
            # etcd counts its size when it commits to its file, several times a second.
            for number in itertools.count():
                await store.put(f"/{number}", b"v" * 50_000)
                await anyio.sleep(0.01)

        with anyio.fail_after(30), pytest.raises(StoreReadOnly, match="out of space"):
            await fill()
        with pytest.raises(StoreReadOnly):
            await store.transact([], [Put("/other", b"v" * 1000)])
        assert isinstance(await store.get("/kept"), Found)


async def test_more_requests_at_once_than_allowed_wait_for_their_turn(
    etcd_server: RunningEtcd, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_IN_FLIGHT", 8)
    most = 0
    answered = 0

    async with opened(etcd_server.endpoints) as store:

        async def read() -> None:
            nonlocal most, answered
            assert isinstance(await store.get(f"{etcd_prefix}k"), Missing)
            most = max(most, store.statistics().in_flight)
            answered += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(read)
    assert answered == 500
    assert most <= 8


async def test_more_watches_than_allowed_are_refused(
    etcd_server: RunningEtcd, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHES", 1)
    async with opened(etcd_server.endpoints) as store, store.watch(etcd_prefix, start_revision=1):
        with pytest.raises(LimitReached):
            async with store.watch(etcd_prefix, start_revision=1):
                pass


async def test_every_request_is_shown_to_the_observer(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    seen: list[tuple[str, str]] = []

    def observe(kind: str, seconds: float, outcome: str) -> None:
        assert 0 <= seconds < 5
        seen.append((kind, outcome))

    async with opened(etcd_server.endpoints) as store:
        store.observe = observe
        lease = (await store.grant(5)).lease
        await store.put(f"{etcd_prefix}k", b"", lease=lease)
        await store.keep_alive(lease)
        await store.revoke(lease)
        with pytest.raises(LeaseNotFound):
            await store.put(f"{etcd_prefix}k", b"", lease=lease)
        statistics = store.statistics()
    assert seen == [
        ("grant", "ok"),
        ("put", "ok"),
        ("keep_alive", "ok"),
        ("revoke", "ok"),
        ("put", "LeaseNotFound"),
    ]
    assert statistics.requests == {"grant": 1, "put": 2, "keep_alive": 1, "revoke": 1}
    assert statistics.failures == {"LeaseNotFound": 1}


async def test_a_closed_store_refuses_and_closing_twice_is_fine(etcd_server: RunningEtcd) -> None:
    async with opened(etcd_server.endpoints) as store:
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get("/k")
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.keep_alive(1)
        with pytest.raises(StoreUnavailable, match="closed"):
            async with store.watch("/", start_revision=1):
                pass


async def test_cancelled_requests_leave_the_store_in_order(etcd_server: RunningEtcd, etcd_prefix: str) -> None:
    async def churn(store: EtcdStore, lease: int) -> None:
        while True:
            await store.put(f"{etcd_prefix}k", b"")
            await store.keep_alive(lease)

    async with opened(etcd_server.endpoints) as store:
        lease = (await store.grant(30)).lease
        for _ in range(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(churn, store, lease)
                await anyio.sleep(0.003)
                tasks.cancel_scope.cancel()
        assert isinstance(await store.put(f"{etcd_prefix}k", b""), Written)
        await store.keep_alive(lease)
        statistics = store.statistics()
        assert (statistics.in_flight, statistics.keep_alives_pending, statistics.connects) == (0, 0, 1)
