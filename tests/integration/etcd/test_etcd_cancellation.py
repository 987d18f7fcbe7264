"""A request to etcd that is cancelled ends in the scope that was cancelled, and nowhere else.

grpc raises a CancelledError of its own for a cancelled call. If it came through, the task around it would end in
silence: the renewal of an instance's lease, or the store itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from assigner.backends.etcd import rpc
from assigner.backends.etcd.connection import Connection
from assigner.backends.etcd.streams import run_stream
from assigner.errors import StoreError
from assigner.store import Absent, Put, Store
from tests.conftest import StartEtcd
from tests.support.servers.etcd_access import opened

_REQUESTS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "get": lambda store: store.get("/a"),
    "list": lambda store: store.list("/"),
    "put": lambda store: store.put("/a", b""),
    "delete": lambda store: store.delete("/a"),
    "transact": lambda store: store.transact([Absent("/a")], [Put("/a", b"")]),
    "grant": lambda store: store.grant(5),
    "keep_alive": lambda store: store.keep_alive(1),
    "revoke": lambda store: store.revoke(1),
    "remaining": lambda store: store.remaining(1),
}


async def test_a_request_to_a_hung_etcd_is_cancelled_by_its_scope_alone(start_etcd: StartEtcd) -> None:
    etcd = start_etcd()
    async with opened(etcd.endpoints, hang_timeout=30) as store:
        await store.get("/a")
        etcd.freeze()
        for name, request in _REQUESTS.items():
            with anyio.move_on_after(0.1) as scope:
                await request(store)
            assert scope.cancelled_caught, name
        etcd.thaw()
        await store.get("/a")


async def test_a_store_outlives_a_hung_etcd_however_its_streams_end(start_etcd: StartEtcd) -> None:
    etcd = start_etcd()
    async with opened(etcd.endpoints, request_timeout=0.5, hang_timeout=0.4) as store:
        lease = (await store.grant(60)).lease
        async with store.watch("/", start_revision=1):
            for _ in range(3):
                etcd.freeze()
                for _ in range(4):
                    with pytest.raises(StoreError):
                        await store.keep_alive(lease)
                etcd.thaw()
                with anyio.fail_after(30):
                    await _renewed(store, lease)


async def _renewed(store: Store, lease: int) -> None:
    while True:
        try:
            await store.keep_alive(lease)
            return
        except StoreError:
            await anyio.sleep(0.05)


class _CancelledByItsWriter:
    """grpc's stream, at the moment when the cancelled writer has ended the call and the reader hears of it first."""

    def __init__(self) -> None:
        self._over = anyio.Event()

    async def write(self, request: object) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._over.set()

    async def read(self) -> object:
        with anyio.CancelScope(shield=True):
            await self._over.wait()
        raise anyio.get_cancelled_exc_class()

    def cancel(self) -> bool:
        return True


async def test_a_conversation_that_is_stopped_stops_nobody_else() -> None:
    connection, stop = _connection(), anyio.Event()

    async def nothing() -> object:
        return rpc.LeaseKeepAliveRequest()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_after_a_moment, stop)
        ended = await run_stream(
            connection, _CancelledByItsWriter, next_request=nothing, receive=lambda _answer: None, stop=stop
        )
    assert ended is None


async def _after_a_moment(stop: anyio.Event) -> None:
    await anyio.sleep(0.02)
    stop.set()


def _connection() -> Connection:
    connection = Connection.__new__(Connection)
    connection.failed = anyio.Event()
    connection._users = 0
    return connection
