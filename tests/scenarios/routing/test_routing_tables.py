"""What a router is told: the whole table at least as new as its registration, then what changes, coalesced."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
import pytest

from assigner.api import RouterRegistration, Weights
from assigner.model.records import GroupOptions, TopicConfig, encode
from assigner.model.routes import TableChanges
from assigner.routers import streams
from assigner.settings import Settings
from assigner.testing.faults import AnswerAfter, Refuse
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.frozen_moves import moving, owners, until_led, until_step, warm_at_b

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


async def test_the_first_table_is_at_least_as_new_as_the_routers_own_registration(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    await cluster.join("a", address="10.0.0.1:1")
    await cluster.until_counts(a=4)
    router = await cluster.route("r1")
    state = await cluster.state()
    full = router.heard[0]
    assert full.full
    assert all(part.revision >= state.routers["r1"].mod_revision for part in router.heard)
    assert full.generation == state.plan.generation
    assert router.owners() == owners(state)
    assert {route.address for route in router.table.values()} == {"10.0.0.1:1"}
    assert router.topics == {"t": 4}


async def test_a_router_of_a_group_without_anything_gets_an_empty_table(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    (table,) = router.heard
    assert (table.full, table.more, table.routes, table.topics) == (True, False, (), ())


async def test_owners_that_come_go_and_crash_reach_every_router(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance("i1")
    await cluster.add_topic(partitions=6)
    other = await cluster.start_instance("i2")
    routers = [await cluster.route("r1", cluster.instances["i1"]), await cluster.route("r2", other)]
    await until_led(cluster)
    for name in ("a", "b", "c"):
        await cluster.join(name)
    await cluster.until_counts(a=2, b=2, c=2)
    await cluster.consumers["c"].deregister()
    await cluster.until_counts(a=3, b=3)
    cluster.consumers["b"].crash()
    await cluster.store.revoke((await cluster.state()).consumers["b"].lease)
    state = await cluster.until_counts(a=6)
    for router in routers:
        await router.until("the same owners", lambda r: r.owners() == owners(state) and not r.frozen)


async def test_pods_that_join_in_quick_succession_leave_all_tables_as_the_store_is(any_cluster: Cluster) -> None:
    """Each joins while the group is still being rebalanced for the one before."""
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.add_topic(partitions=12)
    routers = [await cluster.route("r1"), await cluster.route("r2")]
    for number in range(4):
        await cluster.join(f"p{number}")
    state = await cluster.until_counts(p0=3, p1=3, p2=3, p3=3)
    for router in routers:
        await router.until("the same owners", lambda r: r.owners() == owners(state) and not r.frozen)


async def test_an_owner_that_moves_to_another_address_is_told_with_it(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    first = await cluster.join("a", address="10.0.0.1:1")
    await cluster.until_counts(a=2)
    router = await cluster.route("r1")
    first.crash()
    await cluster.join("a", address="10.0.0.9:1", session=first.session)
    await router.until("the new address", lambda r: {x.address for x in r.table.values()} == {"10.0.0.9:1"})
    assert router.owners() == owners(await cluster.state()), "and no epoch has changed"


async def test_topics_that_grow_and_go_are_told_by_their_counts(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    await cluster.join("a")
    router = await cluster.route("r1")
    await cluster.add_topic(partitions=4)
    await router.until("grown", lambda r: r.topics == {"t": 4} and len(r.table) == 4)
    await cluster.store.delete(cluster.group.topic("t"))
    await router.until("gone", lambda r: r.topics == {"t": 0} and not r.table)


async def test_a_topic_that_cannot_be_read_is_not_told_as_gone(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=2)
    router = await cluster.route("r1")
    await cluster.store.put(cluster.group.topic("t"), b"{")
    await anyio.sleep(1)
    assert router.topics == {"t": 2}
    assert len(router.table) == 2


async def test_an_update_names_the_plan_in_force_also_when_nothing_moves(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.add_topic(partitions=2)
    router = await cluster.route("r1")
    await cluster.join("a")
    plan = (await cluster.until("published", lambda s: s.plan.generation > 0)).plan
    await router.until("the plan", lambda r: r.heard[-1].generation == plan.generation)


async def test_revisions_never_go_back_within_a_stream(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    await moving(cluster)
    await cluster.until_counts(a=1, b=1)
    revisions = [update.revision for update in router.heard]
    assert revisions == sorted(revisions)


# --- large tables, slow readers ----------------------------------------------------------------------------------


async def test_a_large_table_comes_in_parts_and_what_changes_meanwhile_comes_after_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_AT_ONCE", 5)
    monkeypatch.setattr(streams, "MOST_IN_TABLE", 10)
    await cluster.start_instance()
    await cluster.route("r1")
    a, b = await warm_at_b(cluster, partitions=64)
    stream = await cluster.instances["i1"].routers.register(RouterRegistration(GROUP, "slow", "s"))
    updates = stream.updates()
    table: list[TableChanges] = [await anext(updates)]
    assert table[0].full
    assert table[0].more
    moved = sorted(b.to_warm)
    await b.ready(*moved)
    await until_step(cluster, moved[0])
    while table[-1].more:
        table.append(await anext(updates))
    assert len(table) == 1 + 7
    assert not any(part.full for part in table[1:])
    assert {part.revision for part in table} == {table[0].revision}
    routes = {where: route for part in table for where, route in part.routes}
    assert len(routes) == 64
    while not all(routes[where].frozen for where in moved):
        routes.update((await anext(updates)).routes)
    await updates.aclose()  # type: ignore[attr-defined]
    await stream.leave()
    assert len(a.owned) == 64


async def test_an_unread_stream_keeps_no_more_than_a_set_of_partitions_and_holds_nobody_up(cluster: Cluster) -> None:
    await cluster.start_instance()
    await cluster.add_topic(partitions=8)
    slow = await cluster.instances["i1"].routers.register(RouterRegistration(GROUP, "slow", "s"))
    await anext(slow.updates())
    quick = await cluster.route("quick")
    await cluster.join("a")
    await cluster.until_counts(a=8)
    # Each of many changes is of one of eight partitions.
    for epoch in range(100, 200):
        held = (await cluster.state()).assignments[tp(epoch % 8)].record
        await cluster.store.put(
            cluster.group.assignment(tp(epoch % 8)), encode(msgspec.structs.replace(held, epoch=epoch))
        )
    await quick.until("the last epoch", lambda r: max(route.epoch for route in r.table.values()) >= 199)
    assert cluster.instances["i1"].router_streams.backlog <= 8
    await slow.leave()


async def test_a_stream_that_ends_while_nobody_reads_it_keeps_no_changes(cluster: Cluster) -> None:
    await cluster.start_instance()
    await cluster.add_topic(partitions=8)
    slow = await cluster.instances["i1"].routers.register(RouterRegistration(GROUP, "slow", "s"))
    await anext(slow.updates())
    await cluster.route("quick")
    await cluster.join("a")
    await cluster.until_counts(a=8)
    streams_of = cluster.instances["i1"].router_streams
    assert streams_of.backlog == 8
    await cluster.route("slow", session="another")
    assert streams_of.backlog == 0
    await slow.leave()


async def test_a_router_that_leaves_its_stream_lets_go_of_the_mirror(cluster: Cluster) -> None:
    instance = await cluster.start_instance(leads=False)
    router = await cluster.route("r1")
    assert instance.mirrors.users(GROUP) == 1
    router.crash()
    await router.until("left", lambda r: not len(instance.router_streams))
    assert instance.mirrors.users(GROUP) == 0


# --- loads -------------------------------------------------------------------------------------------------------


async def test_published_loads_reach_the_routers_that_asked_for_them(any_cluster: Cluster) -> None:
    cluster = any_cluster
    loads = Settings().loads
    instance = await cluster.start_instance(loads=type(loads)(interval=1.0))
    await cluster.store.put(cluster.group.topic("t"), encode(TopicConfig(topic="t", partition_count=4)))
    await cluster.add_topic(partitions=4)
    await instance.operations.set_loads(GROUP, [Weights("t", 0, (1.0, 2.0, 3.0))], 600.0, keep_others=True)
    asked = await cluster.route("asked", loads=True)
    other = await cluster.route("other")
    await asked.until("loads", lambda r: r.loads == {tp(0): 1.0, tp(1): 2.0, tp(2): 3.0})
    assert all(0 < update.loads_valid_for <= 2.0 for update in asked.heard if update.loads)
    await instance.operations.set_loads(GROUP, [Weights("t", 3, (9.0,))], 600.0, keep_others=True)
    await asked.until("another load", lambda r: r.loads.get(tp(3)) == 9.0)
    assert not other.loads


async def test_a_router_that_comes_is_sent_the_loads_alone_and_they_are_not_read_again_for_it(cluster: Cluster) -> None:
    """A thousand that come one after another must not cost a thousand readings, and a million messages."""
    faulty = await cluster.start_faulty(loads=type(Settings().loads)(interval=60.0))
    instance = cluster.instances["i1"]
    await cluster.add_topic(partitions=2)
    await instance.operations.set_loads(GROUP, [Weights("t", 0, (1.0, 2.0))], 600.0, keep_others=True)
    reading = faulty.inject(AnswerAfter(0.0), kinds=["list"], times=None, where=is_about(cluster.keys.loads(GROUP)))
    routers = []
    for number in range(10):
        routers.append(await cluster.route(f"r{number}", loads=True))
        await anyio.sleep(2)
        await routers[-1].until("loads", lambda r: len(r.loads) == 2)
        assert 0 < routers[-1].heard[-1].loads_valid_for <= 120.0 - 2 * number
    assert [sum(bool(update.loads) for update in router.heard) for router in routers] == [1] * 10
    assert reading.hits == 1
    await instance.operations.set_loads(GROUP, [Weights("t", 0, (3.0, 4.0))], 600.0, keep_others=True)
    for router in routers:
        await router.until("the next loads", lambda r: r.loads == {tp(0): 3.0, tp(1): 4.0}, within=90)
    assert [sum(bool(update.loads) for update in router.heard) for router in routers] == [2] * 10
    assert reading.hits == 2


def is_about(prefix: str) -> Callable[..., bool]:
    return lambda kind, key, *rest: key.startswith(prefix)


async def test_loads_that_can_not_be_read_are_read_for_the_next_router_that_comes(cluster: Cluster) -> None:
    faulty = await cluster.start_faulty(loads=type(Settings().loads)(interval=60.0))
    await cluster.add_topic(partitions=2)
    operations = cluster.instances["i1"].operations
    await operations.set_loads(GROUP, [Weights("t", 0, (1.0, 2.0))], 600.0, keep_others=True)
    refused = faulty.inject(Refuse(), kinds=["list"], where=is_about(cluster.keys.loads(GROUP)))
    first = await cluster.route("r1", loads=True)
    await first.until("refused", lambda _: refused.hits == 1)
    second = await cluster.route("r2", loads=True)
    await second.until("loads", lambda r: len(r.loads) == 2)
    assert not first.loads
    await first.until("loads at the next interval", lambda r: len(r.loads) == 2, within=90)
