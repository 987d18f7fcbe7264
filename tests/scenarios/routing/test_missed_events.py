"""Events and reconcile passes: what an event says is acted upon at once, and what was missed is found by the next pass.

Where events are tested, no pass is due for an hour; where passes are, the leader never hears of the event.
"""

from __future__ import annotations

import pytest

from assigner.model.records import GroupOptions, Step
from assigner.store import Store
from assigner.testing.faults import FaultyStore, Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import Cluster, tp
from tests.support.faulty_stores import ForgetfulStore
from tests.support.frozen_moves import moving, until_step
from tests.support.stepped_consumer import SteppedConsumer
from tests.support.stepped_router import SteppedRouter

HOUR = 3600.0
OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=600.0, warming_timeout=2 * HOUR, release_timeout=2 * HOUR)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


class Ways:
    """The leader's ways to the store."""

    def __init__(self, forgetful: ForgetfulStore, faulty: FaultyStore) -> None:
        self.forgetful = forgetful
        self.faulty = faulty


async def start_forgetful(cluster: Cluster) -> Ways:
    """A leader that may miss events and reconciles every moment, and an instance that serves everybody."""
    ways: list[Ways] = []

    def wrap(store: Store) -> Store:
        faulty = FaultyStore(store)
        ways.append(Ways(ForgetfulStore(faulty, cluster.group.prefix), faulty))
        return ways[0].forgetful

    await cluster.start_instance("serving", leads=False)
    await cluster.start_instance("leading", wrap=wrap, reconcile_interval=0.2)
    return ways[0]


async def a_frozen_move(cluster: Cluster) -> tuple[SteppedRouter, SteppedConsumer, int]:
    """One partition is frozen for a router that has not acked. Which one, and who owns it so far."""
    router = await cluster.route("r1", acks_freezes=False)
    a, _, partition = await moving(cluster)
    await until_step(cluster, partition, Step.FREEZING)
    await router.until("frozen", lambda r: partition in r.frozen)
    return router, a, partition.partition


# --- by the event --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deregistered", "deleted", "lease over"])
async def test_a_routers_departure_ends_a_freeze_by_its_event(any_cluster: Cluster, how: str) -> None:
    cluster = any_cluster
    await cluster.start_instance(reconcile_interval=HOUR)
    router, _, _ = await a_frozen_move(cluster)
    match how:
        case "deregistered":
            await router.deregister()
        case "deleted":
            await cluster.store.delete(cluster.group.router("r1"))
        case _:
            await cluster.store.revoke((await cluster.state()).routers["r1"].lease)
    await cluster.until_counts(a=1, b=1)


async def test_a_deleted_handoff_is_repaired_by_its_event(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance(reconcile_interval=HOUR)
    router, a, partition = await a_frozen_move(cluster)
    before = a.owned[tp(partition)]
    await cluster.store.delete(cluster.group.handoff(tp(partition)))
    await a.until("a higher epoch", lambda c: c.owned[tp(partition)] > before)
    await router.until("thawed", lambda r: r.table[tp(partition)].epoch > before)


# --- by the next pass ----------------------------------------------------------------------------------------------


async def test_a_routers_departure_that_was_missed_ends_a_freeze_at_the_next_pass(any_cluster: Cluster) -> None:
    cluster = any_cluster
    ways = await start_forgetful(cluster)
    router, _, _ = await a_frozen_move(cluster)
    ways.forgetful.forget = lambda key: key == cluster.group.router("r1")
    await router.deregister()
    await cluster.until_counts(a=1, b=1)
    assert ways.forgetful.forgotten == 1


async def test_a_deletion_that_was_missed_is_repaired_at_the_next_pass(any_cluster: Cluster) -> None:
    cluster = any_cluster
    ways = await start_forgetful(cluster)
    router, a, partition = await a_frozen_move(cluster)
    before = a.owned[tp(partition)]
    key = cluster.group.handoff(tp(partition))
    ways.forgetful.forget = lambda changed: changed == key and not ways.forgetful.forgotten
    await cluster.store.delete(key)
    await a.until("a higher epoch", lambda c: c.owned[tp(partition)] > before)
    await router.until("thawed", lambda r: r.table[tp(partition)].epoch > before)
    assert ways.forgetful.forgotten == 1


async def test_passes_that_fail_are_tolerated_and_the_first_that_succeeds_finds_what_was_missed(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    ways = await start_forgetful(cluster)
    await cluster.join("a")
    await cluster.until_counts(a=2)
    ways.forgetful.forget = lambda key: key == cluster.group.consumer("b")
    refused = ways.faulty.inject(
        Refuse(), kinds={"list"}, times=4, where=lambda _, prefix: prefix == cluster.group.prefix
    )
    await cluster.put_consumer("b", lease_ttl=600)
    await eventually(lambda: ways.forgetful.forgotten == 1, within=cluster.patience, what="missed")
    await cluster.until("b gets its share", lambda s: len(s.incoming["b"]) == 1)
    assert refused.hits == 4
