"""The life of a store: its id stays as long as its data does, and an instance that outlives the data stops."""

from __future__ import annotations

import anyio
import pytest

from assigner.core.client.messages import CallAssigned, CallRevoked, StaleGrant
from assigner.errors import StoreReplaced
from assigner.model.commands import Opening
from assigner.model.records import StoreLife, encode
from assigner.storage.incarnation import CHECK_SECONDS, Incarnation
from assigner.store import Found, Store
from assigner.testing.counting import CountingStore
from assigner.testing.faults import FaultyStore, Refuse
from assigner.testing.waiting import eventually
from tests.support.clients.state_driver import NOW, A, B, StateDriver, owned, release
from tests.support.cluster import Cluster, cluster_on


def life(cluster: Cluster) -> Incarnation:
    return Incarnation(cluster.store, cluster.keys, cluster.clock)


async def test_every_instance_on_a_store_sends_the_same_id_also_after_a_restart(any_cluster: Cluster) -> None:
    cluster = any_cluster
    first = await (await cluster.start_instance("i1")).incarnation.id()
    assert first == await (await cluster.start_instance("i2")).incarnation.id()
    await cluster.stop_instance("i1")
    await cluster.stop_instance("i2")
    assert first == await (await cluster.start_instance("i3")).incarnation.id()
    assert first == await life(cluster).id()


async def test_of_many_that_write_the_first_id_at_once_all_return_the_same(any_cluster: Cluster) -> None:
    told: list[str] = []

    async def ask() -> None:
        told.append(await life(any_cluster).id())

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
    assert len(told) == 20
    assert len(set(told)) == 1


async def test_another_store_has_another_id(cluster: Cluster) -> None:
    async with cluster_on("memory") as other:
        assert await life(cluster).id() != await life(other).id()


@pytest.mark.virtual_time
async def test_a_store_that_stays_is_never_taken_for_another_one(cluster: Cluster) -> None:
    with anyio.move_on_after(100 * CHECK_SECONDS) as waited:
        await life(cluster).replaced()
    assert waited.cancelled_caught


@pytest.mark.virtual_time
async def test_an_outage_of_the_store_is_no_new_life(cluster: Cluster) -> None:
    store = FaultyStore(cluster.store)
    store.inject(Refuse(), kinds=["get"], times=None)
    with anyio.move_on_after(100 * CHECK_SECONDS) as waited:
        await Incarnation(store, cluster.keys, cluster.clock).replaced()
    assert waited.cancelled_caught


@pytest.mark.virtual_time
async def test_an_instance_whose_store_lost_its_data_says_so_and_stops_leading(cluster: Cluster) -> None:
    instance = await cluster.start_instance("i1", leads=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_lose_the_id, cluster)
        with pytest.raises(StoreReplaced, match=r"is gone; .* has to be started anew"):
            await instance.lead("i1:1")


async def _lose_the_id(cluster: Cluster) -> None:
    async def is_there() -> bool:
        return isinstance(await cluster.store.get(cluster.keys.incarnation), Found)

    await eventually(is_there)
    await anyio.sleep(2 * CHECK_SECONDS)
    await cluster.store.delete(cluster.keys.incarnation)


@pytest.mark.virtual_time
async def test_a_restored_backup_shows_by_its_revision_and_gets_an_id_of_its_own(cluster: Cluster) -> None:
    """The backup has the old id. The instance that first finds that the revision went back writes another one, which
    every client sees."""
    store = SwitchedStore(cluster.store)
    one, two = (Incarnation(store, cluster.keys, cluster.clock) for _ in range(2))
    before = await one.id()
    async with cluster_on("memory") as backup:
        await backup.store.put(cluster.keys.incarnation, encode(StoreLife(incarnation=before)))
        async with anyio.create_task_group() as tasks:
            for index in range(20):
                await cluster.store.put(f"/test/{index}", b"")
            found: list[str] = []

            async def watch(incarnation: Incarnation) -> None:
                found.append(str(await incarnation.replaced()))

            tasks.start_soon(watch, one)
            tasks.start_soon(watch, two)
            await anyio.sleep(2 * CHECK_SECONDS)
            store.switch(backup.store)
        after = await Incarnation(store, cluster.keys, cluster.clock).id()
        entry = await store.get(cluster.keys.incarnation)
    assert after != before
    assert len(found) == 2
    assert "revision went back" in found[0]
    assert isinstance(entry, Found)
    assert entry.entry.version == 2, "only one of the two wrote an id"


class SwitchedStore(CountingStore):
    """Asks another store from one moment on, as when a backup takes the place of what was there."""

    def switch(self, store: Store) -> None:
        self.inner = store


# --- what a client makes of it ---------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_grants_of_a_new_life_are_taken_whatever_epochs_the_last_one_had() -> None:
    client = StateDriver()
    client.receive(full=True, opening=Opening(incarnation="first"), assigned=((A, 5), (B, 5)))
    client.end(A)
    client.end(B)
    client.receive(releases=(release(B, 5),))
    client.end(B)
    client.receive(full=True, opening=Opening(incarnation="second"), assigned=((A, 1), (B, 1)))
    assert not client.is_open(A)
    assert isinstance(client.end(A), CallRevoked)
    client.take(client.state.renewed(NOW, 30.0))
    assert [client.end(A), client.end(B)] == [CallAssigned(owned(A, 1)), CallAssigned(owned(B, 1))]
    assert client.is_open(A)
    assert client.is_open(B)
    assert client.state.counts.stale == 0


@pytest.mark.virtual_time
async def test_rule_7_the_same_epoch_in_a_new_life_is_another_ownership() -> None:
    client = StateDriver()
    client.receive(full=True, opening=Opening(incarnation="first"), assigned=((A, 1),))
    client.end(A)
    client.receive(full=True, opening=Opening(incarnation="second"), assigned=((A, 1),))
    client.take(client.state.renewed(NOW, 30.0))
    assert A in client.running, "the handler goes on as if nothing had happened"
    revoked = client.end(A)
    assert isinstance(revoked, CallRevoked)
    assert "second, before first" in revoked.reason
    assert client.end(A) == CallAssigned(owned(A, 1))


@pytest.mark.virtual_time
async def test_in_the_same_life_a_lower_epoch_stays_stale_after_a_reconnect() -> None:
    client = StateDriver()
    client.receive(full=True, opening=Opening(incarnation="first"), assigned=((A, 5),))
    client.end(A)
    client.receive(full=True, opening=Opening(incarnation="first"), assigned=((A, 4),))
    assert client.state.counts.stale == 1
    assert client.state.last_stale == StaleGrant(A, 4, 5)
