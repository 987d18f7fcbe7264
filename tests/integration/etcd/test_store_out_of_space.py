"""An etcd that is out of space: said in words at every door, survived by who is at work, over when it is over."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from aiohttp import ClientSession

from assigner.api import Registration
from assigner.backend import StoreSettings
from assigner.backends.etcd.store import EtcdStore
from assigner.clock import SystemClock
from assigner.errors import StoreReadOnly
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings, StoreSection
from assigner.testing.waiting import eventually
from tests.conftest import StartEtcd
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.etcd_access import Gateway

pytestmark = pytest.mark.etcd


@pytest.fixture
def small_etcd(start_etcd: StartEtcd) -> EtcdServer:
    return start_etcd(extra_flags=["--quota-backend-bytes=1500000"])


@asynccontextmanager
async def beside(etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    """A store of the test's own, beside the service's."""
    store = EtcdStore(StoreSettings(endpoints=tuple(etcd.endpoints)), SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(etcd: EtcdServer) -> None:
    async with beside(etcd) as store:
        with anyio.fail_after(60), suppress(StoreReadOnly):
            for number in itertools.count():
                await store.put(f"/filler/{number % 3}", b"v" * 50_000)
                await anyio.sleep(0.01)


async def make_space(etcd: EtcdServer) -> None:
    """What an operator does about it."""
    gateway = Gateway(etcd)
    async with beside(etcd) as store:
        for number in range(3):
            await store.delete(f"/filler/{number}")
        revision = (await store.get("/filler")).revision
    await gateway.ask_async("kv/compaction", revision=str(revision), physical=True)
    await gateway.ask_async("maintenance/defragment")
    for alarm in (await gateway.ask_async("maintenance/alarm", action="GET")).get("alarms", []):
        await gateway.ask_async(
            "maintenance/alarm", action="DEACTIVATE", alarm="NOSPACE", memberID=alarm.get("memberID", 0)
        )


async def page(service: Service, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{service.web.port}{path}"
    async with ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_an_etcd_out_of_space_is_reported_with_the_remedy_and_recovers_by_itself(small_etcd: EtcdServer) -> None:
    settings = Settings(
        store=StoreSection(backend="etcd", endpoints=tuple(small_etcd.endpoints), root="/a/"),
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        topics={"g": {"t": 2}},
    )
    async with Service(settings) as service:
        await service.wait_ready()
        members = service.instance.members
        registration = Registration(group="g", name="a", session="s", renews=True)
        stream = await members.register(registration, lambda: 0.0)
        assert await page(service, "/readyz") == (200, "ok\n")

        await fill(small_etcd)
        with pytest.raises(StoreReadOnly):
            await service.instance.operations.set_topic("g", "another", 1)

        async def told() -> bool:
            status, text = await page(service, "/readyz")
            assert status == 200, "those who are at work renew still: they must not lose their way here"
            return "out of space" in text and "defragment" in text and "disarm" in text

        await eventually(told, within=30)
        assert "assigner_store_read_only 1.0" in (await page(service, "/metrics"))[1]
        assert await members.renew("g", "a", "s") > 0

        await make_space(small_etcd)

        async def over() -> bool:
            return await page(service, "/readyz") == (200, "ok\n")

        await eventually(over, within=60)
        assert "assigner_store_read_only 0.0" in (await page(service, "/metrics"))[1]
        await service.instance.operations.set_topic("g", "another", 1)
        await stream.leave()
