"""Every group in the store is known by one index key, wherever its data came from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from assigner.errors import FailedPrecondition, InvalidName, OutcomeUnknown, UnreadableRecord
from assigner.model.keys import Keys, TopicPartition
from assigner.storage.groups import discover, known_groups, make_known, names_of
from assigner.store import Store, read_all
from assigner.testing.counting import CountingStore
from assigner.testing.faults import FaultyStore, LoseAnswer
from assigner.testing.waiting import eventually
from tests.support.election_cluster import ON_BOTH_STORES, ElectionCluster, election_cluster

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=ON_BOTH_STORES)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[ElectionCluster]:
    async with election_cluster(request.param, request) as opened:
        yield opened


async def indexed(store: Store, keys: Keys) -> set[str]:
    page = await read_all(store, keys.groups)
    return {entry.key[len(keys.groups) :] for entry in page.entries}


async def put_assignment(store: Store, keys: Keys, group: str) -> None:
    await store.put(keys.group(group).assignment(TopicPartition("t", 0)), b"{}")


# --- making known ------------------------------------------------------------------------------------------------


async def test_a_group_is_entered_once_and_for_good(cluster: ElectionCluster) -> None:
    for _ in range(2):
        await make_known(cluster.store, cluster.keys, "orders")
    assert await indexed(cluster.store, cluster.keys) == {"orders"}


async def test_a_group_of_another_kind_is_refused(cluster: ElectionCluster) -> None:
    await make_known(cluster.store, cluster.keys, "orders", "kafka")
    with pytest.raises(FailedPrecondition, match="of kind 'kafka' and can't be used as 'assigner'"):
        await make_known(cluster.store, cluster.keys, "orders")


@pytest.mark.parametrize("name", ["", "..", "consumers", "a\nb", "x" * 300])
async def test_a_name_that_breaks_the_rules_is_refused(memory: ElectionCluster, name: str) -> None:
    with pytest.raises(InvalidName):
        await make_known(memory.store, memory.keys, name)


async def test_an_index_key_whose_response_was_lost_is_created_all_the_same(memory: ElectionCluster) -> None:
    store = FaultyStore(memory.store)
    for applied in (True, False):
        store.inject(LoseAnswer(applied=applied))
    await make_known(store, memory.keys, "orders")
    store.inject(LoseAnswer(), times=None)
    with pytest.raises(OutcomeUnknown):
        await make_known(store, memory.keys, "payments")


async def test_an_unreadable_entry_is_reported(memory: ElectionCluster) -> None:
    await memory.store.put(memory.keys.group_index("orders"), b"garbage")
    with pytest.raises(UnreadableRecord):
        await make_known(memory.store, memory.keys, "orders")


# --- discovering -------------------------------------------------------------------------------------------------


async def test_groups_without_an_entry_are_found_by_one_read_each(cluster: ElectionCluster) -> None:
    groups = {"a", "a-b", "a.b", "a0", "a/b", "~odd", "zz", "ünïcode"}
    for group in groups:
        await put_assignment(cluster.store, cluster.keys, group)
        await cluster.store.put(cluster.keys.group(group).plan, b"{}")
    await cluster.store.put(cluster.keys.offset("ghost", TopicPartition("t", 0)), b"7")
    counted = CountingStore(cluster.store)
    assert set(await discover(counted, cluster.keys)) == groups
    # One per group and one past the last; three look for the default group.
    assert counted.requests["list"] == len(groups) + 1 + 3
    view = known_groups(cluster.store, cluster.keys, lambda: None)
    task = asyncio.create_task(view.run())
    await eventually(view.listed.is_set)
    assert names_of(view) == groups
    task.cancel()


async def test_discovering_again_changes_nothing(memory: ElectionCluster) -> None:
    await put_assignment(memory.store, memory.keys, "orders")
    await discover(memory.store, memory.keys)
    before = await read_all(memory.store, memory.keys.root)
    await discover(memory.store, memory.keys)
    assert (await read_all(memory.store, memory.keys.root)).entries == before.entries


async def test_upstreams_groupless_keys_at_the_root_are_the_default_group(memory: ElectionCluster) -> None:
    keys = Keys(default_group="main", default_prefix="/kafka-assigner/")
    await memory.store.put("/kafka-assigner/config/topics/clicks", b'{"topic":"clicks","partition_count":8}')
    await memory.store.put("/kafka-assigner/consumers/c-0", b"{}")
    await put_assignment(memory.store, keys, "other")
    assert set(await discover(memory.store, keys)) == {"main", "other"}


async def test_upstreams_prefix_below_the_root_is_the_default_group_and_no_other(memory: ElectionCluster) -> None:
    keys = Keys(default_group="main", default_prefix="/kafka-assigner/clicks/")
    await memory.store.put("/kafka-assigner/clicks/config/topics/clicks", b"{}")
    assert await discover(memory.store, keys) == ["main"]


async def test_upstreams_prefix_elsewhere_is_the_default_group(memory: ElectionCluster) -> None:
    keys = Keys(default_group="main", default_prefix="/other/place/")
    await memory.store.put("/other/place/assignments/clicks/0", b"{}")
    assert await discover(memory.store, keys) == ["main"]


async def test_foreign_keys_are_neither_taken_for_groups_nor_in_the_way_of_one(memory: ElectionCluster) -> None:
    for key in ("stray", "notes/readme", "a b/assignments/t/0", "orders/AAA", "consumers/upstream"):
        await memory.store.put(memory.keys.root + key, b"?")
    await put_assignment(memory.store, memory.keys, "orders")
    assert await discover(memory.store, memory.keys) == ["orders"]


async def test_a_group_known_as_another_kind_does_not_stop_the_discovery(memory: ElectionCluster) -> None:
    await make_known(memory.store, memory.keys, "alpha", "kafka")
    for group in ("alpha", "beta"):
        await put_assignment(memory.store, memory.keys, group)
    assert await discover(memory.store, memory.keys) == ["beta"]


# --- following ---------------------------------------------------------------------------------------------------


async def test_the_live_set_follows_what_comes_and_goes_through_broken_watches(cluster: ElectionCluster) -> None:
    store = FaultyStore(cluster.store)
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    view = known_groups(store, cluster.keys, changed)
    task = asyncio.create_task(view.run())
    await eventually(view.listed.is_set)
    await make_known(cluster.store, cluster.keys, "one")
    await eventually(lambda: names_of(view) == {"one"})
    store.end_watches()
    await make_known(cluster.store, cluster.keys, "two")
    await eventually(lambda: names_of(view) == {"one", "two"})
    store.compact_watches(1)
    await cluster.store.delete(cluster.keys.group_index("one"))
    await eventually(lambda: names_of(view) == {"two"})
    await cluster.store.put(cluster.keys.group_index("bad"), b"garbage")
    await make_known(cluster.store, cluster.keys, "three", "kafka")
    await eventually(lambda: names_of(view, "kafka") == {"three"})
    assert names_of(view) == {"two"}
    assert changes >= 5
    task.cancel()


async def test_more_records_than_the_limit_are_left_out(memory: ElectionCluster) -> None:
    for number in range(5):
        await make_known(memory.store, memory.keys, f"group-{number}")
    view = known_groups(memory.store, memory.keys, lambda: None, limit=3)
    task = asyncio.create_task(view.run())
    await eventually(view.listed.is_set)
    assert names_of(view) == {"group-0", "group-1", "group-2"}
    task.cancel()
