"""The numbered safety rules about leading and watching: each as a test that fails when the rule is switched off.

`tests/chaos/ablation/ablations.py` switches them off. The other rules are in files of other scenarios, named
`test_rules_...` too.
"""

from __future__ import annotations

import anyio
import pytest

from assigner.model.keys import AssignmentKey, HandoffKey, PlanKey
from assigner.model.records import LeaderRecord, encode
from assigner.store import Conflict, CreateRevisionIs, LeaseGone, Store
from assigner.testing.faults import Delay
from assigner.testing.waiting import eventually
from tests.support.cluster import TTL, Cluster, tp
from tests.support.faulty_stores import BusyStore, ForgetfulStore, LaggingStore, LateStore, NotingStore

pytestmark = pytest.mark.virtual_time


# --- 4: every leader write is fenced -----------------------------------------------------------------------------


async def test_rule_4_a_write_that_arrives_after_the_term_ended_fails(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=1)
    stores: list[LateStore] = []

    def wrap(store: Store) -> Store:
        stores.append(LateStore(store))
        return stores[0]

    await cluster.start_instance("leader", wrap=wrap)
    other = await cluster.start_instance("follower", leads=False)
    stores[0].late_keys = frozenset({cluster.group.assignment(tp(0))})
    stores[0].delay = 1.0
    await cluster.join("a", other)
    await eventually(lambda: stores[0].sent == 1, what="the leader gives the partition to a")
    # Somebody else holds the key now, and leaves the group alone: whatever is written, the deposed leader wrote it.
    await cluster.store.delete(cluster.group.leader)
    await cluster.store.put(cluster.group.leader, encode(LeaderRecord(holder="another")))
    await eventually(lambda: bool(stores[0].outcomes), what="the late write arrived")
    assert isinstance(stores[0].outcomes[0], Conflict)
    assert await cluster.assignment(tp(0)) is None


async def test_rule_4_every_transaction_of_a_leader_carries_its_fence(cluster: Cluster) -> None:
    noting: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        noting.append(NotingStore(store))
        return noting[0]

    await cluster.add_topic(partitions=2)
    await cluster.start_instance("leader", wrap=wrap)
    other = await cluster.start_instance("follower", leads=False)
    await cluster.join("a", other)
    await cluster.until_counts(a=2)
    await cluster.join("b", other)
    state = await cluster.until_counts(a=1, b=1)
    assert state.leader
    fence = CreateRevisionIs(cluster.group.leader, state.leader.create_revision)
    writes = [
        (compares, operations)
        for compares, operations in noting[0].transactions
        if any(isinstance(cluster.group.parse(op.key), AssignmentKey | HandoffKey | PlanKey) for op in operations)
    ]
    assert len(writes) >= 3
    assert all(fence in compares for compares, _ in writes)


# --- 9: watches start right after the snapshot -------------------------------------------------------------------


async def test_rule_9_what_happens_between_listing_and_watching_is_not_missed(any_cluster: Cluster) -> None:
    cluster = any_cluster
    joined: list[int] = []

    async def somebody_joins() -> None:
        if not joined:
            joined.append(await cluster.put_consumer("a", lease_ttl=600))

    await cluster.add_topic(partitions=2)
    await cluster.start_instance(wrap=lambda store: BusyStore(store, cluster.group.prefix, somebody_joins))
    # Well before a reconcile pass would find out.
    await cluster.until_counts(a=2, within=5)
    assert joined


@pytest.mark.parametrize("how", ["ended", "compacted"])
async def test_rule_9_a_watch_that_cannot_go_on_is_followed_by_a_listing(cluster: Cluster, how: str) -> None:
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    # The next listing and watch of the group come late, so there is something to miss.
    faults.inject(Delay(2.0), kinds={"list"}, where=lambda _, prefix: prefix == cluster.group.prefix)
    if how == "ended":
        assert faults.end_watches()
    else:
        assert faults.compact_watches((await cluster.state()).revision)
    await cluster.put_consumer("b", lease_ttl=600)
    await cluster.until("b gets its share", lambda s: len(s.incoming["b"]) == 1, within=8)
    assert a.ended is None


async def test_rule_9_order_is_kept_by_one_watch_per_group(cluster: Cluster) -> None:
    counting: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        counting.append(NotingStore(store))
        return counting[0]

    await cluster.add_topic(partitions=8)
    await cluster.start_instance(wrap=wrap)
    await cluster.join("a0")
    await cluster.until_counts(a0=8)
    watches = counting[0].requests["watch"]
    for number in range(1, 8):
        await cluster.join(f"a{number}")
    await cluster.until_counts(**{f"a{number}": 1 for number in range(8)})
    assert counting[0].requests["watch"] == watches


async def test_rule_9_a_missed_event_costs_time_never_correctness(cluster: Cluster) -> None:
    forgetful: list[ForgetfulStore] = []

    def wrap(store: Store) -> Store:
        forgetful.append(ForgetfulStore(store, cluster.group.prefix))
        return forgetful[0]

    await cluster.add_topic(partitions=2)
    await cluster.start_instance(wrap=wrap)
    await cluster.join("a")
    await cluster.until_counts(a=2)
    forgetful[0].forget = lambda key: key == cluster.group.consumer("b")
    await cluster.put_consumer("b", lease_ttl=600)
    await eventually(lambda: forgetful[0].forgotten == 1)
    await cluster.until("b gets its share", lambda s: len(s.incoming["b"]) == 1, within=32)


# --- 10: lease loss is noticed -----------------------------------------------------------------------------------


async def test_rule_10_a_leader_without_a_confirmed_renewal_stops_before_its_lease_is_over(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty("leader")
    await cluster.until("a leader", lambda s: s.leader is not None)
    instance = cluster.instances["leader"]
    assert instance.leadership
    led = instance.leadership.led["g"]
    faults.freeze()
    await anyio.sleep(TTL * 2 / 3 + 0.1)
    assert not led.held()
    assert instance.problems()
    state = await cluster.state()
    assert state.leader, "it stopped too late: others may lead already"
    assert state.leader.create_revision == led.revision


async def test_rule_10_a_lease_that_is_gone_is_noticed_at_the_next_renewal(cluster: Cluster) -> None:
    lagging: list[LaggingStore] = []

    def wrap(store: Store) -> Store:
        lagging.append(LaggingStore(store))
        return lagging[0]

    await cluster.add_topic(partitions=1)
    await cluster.start_instance("leader", wrap=wrap)
    state = await cluster.until("a leader", lambda s: s.leader is not None)
    leadership = cluster.instances["leader"].leadership
    assert leadership
    assert state.leader
    led = leadership.led["g"]
    # Revoked behind its back, and its watches say nothing of it in time: only the renewal can tell.
    lagging[0].lag()
    await cluster.store.revoke(state.leader.lease)
    assert isinstance(await cluster.store.remaining(state.leader.lease), LeaseGone)
    await eventually(lambda: not led.held(), within=TTL / 3 + 0.5, what="the term is over")
    lagging[0].catch_up()
    await cluster.join("a")
    await cluster.until_counts(a=1)
