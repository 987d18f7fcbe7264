"""Co-partition sets of any size: they move, or naming them is refused with the reason."""

from __future__ import annotations

import anyio
import pytest

from assigner.core.group import GroupState
from assigner.errors import InvalidInput
from assigner.model.records import GroupOptions, HandoffMode, Step
from assigner.store import Limits, Store
from assigner.testing.counting import CountingStore
from tests.scenarios.limits.test_limits import most_at_a_time
from tests.scenarios.routing.test_routers import acknowledge, register
from tests.support.cluster import EXPIRES, QUICK, Cluster, cluster_on

pytestmark = pytest.mark.virtual_time
THREE = ("t0", "t1", "t2")
MANY = tuple(f"t{number:03}" for number in range(70))
"""More than fit into a transaction of 128 compares, at two for each."""


async def topics(cluster: Cluster, names: tuple[str, ...], partitions: int) -> None:
    for name in names:
        await cluster.add_topic(name, partitions=partitions)


def torn(state: GroupState, names: tuple[str, ...]) -> list[int]:
    """Numbers whose partitions have different owners."""
    owners: dict[int, set[str]] = {}
    for tp, held in state.assignments.items():
        if tp.topic in names:
            owners.setdefault(tp.partition, set()).add(held.record.owner)
    return [number for number, names in owners.items() if len(names) > 1]


async def test_a_set_with_more_topics_than_a_consumer_may_warm_moves_all_the_same(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(warm_concurrency=2, copartitioned=(THREE,))
    await topics(cluster, THREE, 4)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=12)
    await cluster.join("b")
    state = await cluster.until_counts(a=6, b=6)
    assert not torn(state, THREE)
    assert (await most_at_a_time(cluster))[1] == 3, "one set at a time, however large"


async def test_a_consumer_that_owns_large_sets_can_be_drained(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(warm_concurrency=1, copartitioned=(THREE,))
    await topics(cluster, THREE, 4)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=12)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm a set", lambda c: len(c.to_warm) == 3)
    await a.deregister()
    b.answers_warm = True
    await b.ready(*b.to_warm)
    await a.until("drained", lambda c: c.ended == "drained")
    await cluster.until_counts(b=12)


async def test_a_named_set_larger_than_a_transaction_is_refused(any_cluster: Cluster) -> None:
    cluster = any_cluster
    instance = await cluster.start_instance()
    operations = instance.operations
    with pytest.raises(InvalidInput, match=r"co-partition set of 't000' has 70 topics.*at most 62.*fewer"):
        await operations.set_options("g", {"copartitioned": [list(MANY)]}, create=True)
    await operations.set_options("g", {"copartitioned": [list(MANY[:62])]}, create=True)
    assert (await operations.describe("g")).options.copartitioned == (MANY[:62],)


async def test_how_large_a_set_may_be_follows_from_the_stores_own_limit() -> None:
    async with cluster_on("memory", limits=Limits(operations=20)) as cluster:
        operations = (await cluster.start_instance()).operations
        with pytest.raises(InvalidInput, match="at most 8"):
            await operations.set_options("g", {"copartitioned": [list(MANY[:9])]}, create=True)
        await operations.set_options("g", {"copartitioned": [list(MANY[:8])], "debounce": 0.1}, create=True)
        await topics(cluster, MANY[:8], 4)
        await cluster.join("a")
        await cluster.until_counts(a=32)
        b = await cluster.join("b")
        state = await cluster.until_counts(a=16, b=16)
        assert not torn(state, MANY[:8])
        b.crash()
        await cluster.until_counts(a=32, within=4 * cluster.ttl)


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_the_largest_set_is_given_moved_drained_and_inherited(any_cluster: Cluster) -> None:
    cluster = any_cluster
    largest = MANY[:62]
    await cluster.set_options(copartitioned=(largest,))
    await topics(cluster, largest, 2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=124)
    b = await cluster.join("b")
    state = await cluster.until_counts(a=62, b=62)
    assert not torn(state, largest)
    await a.deregister()
    await a.until("drained", lambda c: c.ended == "drained")
    b.crash()
    await cluster.join("c")
    await cluster.until_counts(c=124, within=4 * cluster.ttl + 10)


async def test_the_largest_set_in_an_exclusive_group_with_routers_moves_too(cluster: Cluster) -> None:
    """Each router's acknowledgement is a key of its own, which is deleted with its handoff."""
    largest = MANY[:62]
    await cluster.set_options(copartitioned=(largest,), handoff_mode=HandoffMode.EXCLUSIVE)
    await topics(cluster, largest, 2)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=124)
    routers = ("r1", "r2", "r3")
    for router in routers:
        await register(cluster, router)
    await cluster.join("b")
    frozen = await cluster.until(
        "frozen", lambda s: sum(h.record.at is Step.FREEZING for h in s.handoffs.values()) == 62
    )
    for tp, handoff in frozen.handoffs.items():
        for router in routers:
            await acknowledge(cluster, router, tp, handoff.record.handoff_id)
    state = await cluster.until_counts(a=62, b=62)
    assert not torn(state, largest)


async def test_topics_of_equal_subscriptions_are_cut_into_sets_that_fit(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(strategy="copartitioned", max_concurrent_handoffs=10_000)
    await topics(cluster, MANY, 2)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=140)
    await cluster.join("b")
    state = await cluster.until_counts(a=70, b=70)
    assert not torn(state, MANY[:62])
    assert not torn(state, MANY[62:])


async def test_a_named_set_that_was_too_large_already_is_cut_and_the_group_says_so(cluster: Cluster) -> None:
    await cluster.set_options(copartitioned=(MANY,))
    await topics(cluster, MANY, 2)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=140)
    description = await instance.operations.describe("g")
    (condition,) = description.conditions
    assert condition.kind == "set_too_large"
    assert "t000" in condition.message
    assert "62" in condition.message
    await instance.operations.set_options("g", {"debounce": 0.2})
    await instance.operations.set_options("g", {"copartitioned": [list(MANY[:62]), list(MANY[62:])]})
    assert (await instance.operations.describe("g")).conditions == ()


class BoastfulStore(CountingStore):
    """Says that it takes more in a transaction than it does, as an etcd that was started with a lower limit."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.limits = Limits(operations=128)


async def test_a_write_that_never_fits_is_a_condition_of_the_group_and_not_tried_without_a_pause() -> None:
    options = GroupOptions(debounce=0.1, balance_backoff=60.0, copartitioned=(MANY[:20],))
    async with cluster_on("memory", limits=Limits(operations=16), options=options) as cluster:
        tried: list[BoastfulStore] = []

        def wrap(store: Store) -> Store:
            tried.append(BoastfulStore(store))
            return tried[0]

        await topics(cluster, MANY[:20], 2)
        await cluster.add_topic("single", partitions=2)
        instance = await cluster.start_instance(wrap=wrap)
        await cluster.join("a")
        await cluster.until("the others are given", lambda s: len(s.owned.get("a", ())) == 2)
        await anyio.sleep(2)
        (condition,) = (await instance.operations.describe("g")).conditions
        assert condition.kind == "write_too_large"
        assert "t000" in condition.message
        before = tried[0].requests["transact"]
        await anyio.sleep(50)
        assert tried[0].requests["transact"] - before < 20
        await instance.operations.set_options("g", {"copartitioned": []})
        await cluster.until_counts(a=42)
        await anyio.sleep(1)
        assert (await instance.operations.describe("g")).conditions == ()


@pytest.mark.parametrize("strategy", ["sticky_balanced", "jump_hash", "rendezvous", "range", "spread_first"])
async def test_a_set_whose_topics_grow_one_after_the_other_stays_together(strategy: str) -> None:
    async with cluster_on("memory", options=QUICK) as cluster:
        await cluster.set_options(strategy=strategy, copartitioned=(("t", "u"),))
        await topics(cluster, ("t", "u"), 6)
        await cluster.start_instance()
        await cluster.join("a")
        await cluster.until_counts(a=12)
        await cluster.add_topic("t", partitions=8)
        await cluster.until_counts(a=14)
        await cluster.join("b")
        state = await cluster.until("b has its share", lambda s: bool(s.owned.get("b")) and not s.handoffs)
        assert not torn(state, ("t", "u"))
        before = {tp: held.record.owner for tp, held in state.assignments.items() if tp.partition < 6}
        await cluster.add_topic("u", partitions=8)
        state = await cluster.until("all is owned", lambda s: len(s.assignments) == 16 and not s.handoffs)
        assert not torn(state, ("t", "u"))
        if strategy != "range":
            after = {tp: held.record.owner for tp, held in state.assignments.items() if tp.partition < 6}
            assert after == before, "what was together stays where it was"


async def test_a_set_that_is_on_its_way_when_one_topic_grows_arrives_together(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(copartitioned=(("t", "u"),))
    await topics(cluster, ("t", "u"), 2)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=4)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm a set", lambda c: len(c.to_warm) == 2)
    await cluster.add_topic("t", partitions=4)
    first, second = b.to_warm
    await b.ready(first)
    await cluster.until("the new ones are given", lambda s: len(s.assignments) == 6)
    state = await cluster.state()
    assert {first, second} <= state.owned["a"], "one of the two waits for the other"
    await b.ready(second)
    state = await cluster.until("both arrived", lambda s: {first, second} <= s.owned.get("b", set()))
    assert not torn(state, ("t", "u"))
