"""The service was away for longer than a lease, or its leader died with somebody: what moves, what does not, and what
is written meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import anyio
import pytest

from assigner.core.coordination.machine import Coordination, Decisions
from assigner.model.keys import AssignmentKey, HandoffKey, PlanKey
from assigner.model.records import GroupOptions, HandoffMode, Plan, decode
from assigner.store import Operation, PutEvent
from assigner.testing.faults import EffectAfter, Fault, LoseAnswer
from tests.support.cluster import EXPIRES, Cluster, cluster_on, tp
from tests.support.faulty_stores import key_of

pytestmark = pytest.mark.virtual_time
STRATEGIES = ("sticky_balanced", "range", "jump_hash", "rendezvous", "spread_first", "copartitioned")
STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)
SEEDS = range(6)


async def puts(cluster: Cluster, since: int, *kinds: type) -> list[PutEvent]:
    events = [event for event in await cluster.history(since) if isinstance(event, PutEvent)]
    return [event for event in events if isinstance(cluster.group.parse(key_of(event)), kinds)]


async def settled(cluster: Cluster, within: float = 300.0) -> None:
    """Nothing was written for two debounces and a bit."""
    last = -1

    async def quiet() -> None:
        nonlocal last
        while (now := (await cluster.state()).revision) != last:
            last = now
            await anyio.sleep(2 * cluster.options.debounce + 1.0)

    with anyio.fail_after(within):
        await quiet()


def crash_everything(cluster: Cluster) -> None:
    for consumer in cluster.consumers.values():
        consumer.crash()
    for name in list(cluster.instances):
        cluster.crash_instance(name)


async def a_group(cluster: Cluster, dice: random.Random, strategy: str) -> None:
    await cluster.set_options(strategy=strategy, standby_count=dice.choice((0, 0, 1)))
    for topic in ("t", "u", "v")[: dice.randint(1, 3)]:
        await cluster.add_topic(topic, partitions=dice.choice((3, 8, 14, 24)))
    await cluster.start_faulty("i1")
    for number in range(dice.randint(2, 7)):
        await cluster.join(f"c{number}", capacity=dice.choice((0.5, 1.0, 1.0, 2.0, 3.0)))
    await settled(cluster)


# --- everybody comes back ------------------------------------------------------------------------------------------


@STRATEGY
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("away", [0.8, 1.5], ids=["leases-live", "leases-over"])
async def test_an_outage_after_which_all_consumers_rejoin_moves_nothing(
    cluster: Cluster, strategy: str, seed: int, away: float
) -> None:
    dice = random.Random(seed)
    await a_group(cluster, dice, strategy)
    before = await cluster.state()
    crash_everything(cluster)
    await anyio.sleep(away * cluster.ttl)
    instance = await cluster.start_instance("i2")
    back = list(cluster.consumers.values())
    dice.shuffle(back)
    for consumer in back:
        await anyio.sleep(dice.uniform(0.0, 0.9 * cluster.ttl / len(back)))
        await consumer.connect(instance)
    await anyio.sleep(4 * cluster.ttl)
    assert not await puts(cluster, before.revision, AssignmentKey, HandoffKey)
    assert (await cluster.plan()).generation == before.plan.generation


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_rule_8_a_restart_of_the_service_moves_nothing_by_range(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(strategy="range")
    await cluster.add_topic(partitions=24)
    await cluster.start_faulty("i1")
    for number in range(6):
        await cluster.join(f"c{number}")
    await cluster.until_counts(**{f"c{number}": 4 for number in range(6)})
    before = await cluster.state()
    crash_everything(cluster)
    await anyio.sleep(1.5 * cluster.ttl)
    instance = await cluster.start_instance("i2")
    for consumer in cluster.consumers.values():
        await anyio.sleep(cluster.ttl / 12)
        await consumer.connect(instance)
    await anyio.sleep(2 * cluster.ttl)
    assert not await puts(cluster, before.revision, AssignmentKey, HandoffKey)


# --- not everybody does --------------------------------------------------------------------------------------------


@STRATEGY
@pytest.mark.parametrize("mode", list(HandoffMode), ids=[mode.value for mode in HandoffMode])
async def test_what_died_in_an_outage_is_taken_over_a_ttl_after_the_service_is_back(
    cluster: Cluster, strategy: str, mode: HandoffMode
) -> None:
    await cluster.set_options(strategy=strategy, handoff_mode=mode)
    await cluster.add_topic(partitions=12)
    await cluster.start_faulty("i1")
    for name in ("a", "b", "c", "d"):
        await cluster.join(name)
    await cluster.until("all are owned", lambda s: len(s.assignments) == 12 and not s.handoffs)
    await settled(cluster)
    before = await cluster.state()
    crash_everything(cluster)
    await anyio.sleep(1.5 * cluster.ttl)
    instance = await cluster.start_instance("i2")
    began = cluster.clock.now()
    alive = {"a", "b", "d"}
    for name in alive:
        await cluster.consumers[name].connect(instance)
    await anyio.sleep(0.9 * cluster.ttl)
    assert not await puts(cluster, before.revision, AssignmentKey, HandoffKey), "c may still come back"
    await cluster.until(
        "those who are there own it all",
        lambda s: len(s.assignments) == 12 and set(s.owned) <= alive,
        within=began + cluster.ttl + 10.0 - cluster.clock.now(),
    )


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_unowned_partitions_are_assigned_although_a_consumer_is_waited_for(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    await cluster.start_faulty("i1")
    await cluster.join("a")
    await cluster.join("b")
    await cluster.until_counts(a=2, b=2)
    crash_everything(cluster)
    await anyio.sleep(1.5 * cluster.ttl)
    instance = await cluster.start_instance("i2")
    await cluster.consumers["a"].connect(instance)
    await cluster.add_topic("u", partitions=4)
    await cluster.until("the new topic is owned", lambda s: len(s.assignments) == 8, within=cluster.ttl / 2)
    assert {tp(0), tp(1), tp(2), tp(3)} - set(cluster.consumers["a"].owned), "b's are b's"
    await cluster.consumers["b"].connect(instance)
    await cluster.until_counts(a=4, b=4, within=3 * cluster.ttl)


async def test_a_newcomer_gets_its_share_once_nobody_is_waited_for(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=6)
    await cluster.start_faulty("i1")
    await cluster.join("a")
    await cluster.join("b")
    await cluster.until_counts(a=3, b=3)
    crash_everything(cluster)
    await anyio.sleep(1.5 * cluster.ttl)
    instance = await cluster.start_instance("i2")
    for name in ("a", "b"):
        await cluster.consumers[name].connect(instance)
    await cluster.join("c", instance)
    await cluster.until_counts(a=2, b=2, c=2, within=2 * cluster.ttl)


async def test_a_drain_ends_although_a_consumer_is_waited_for(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_faulty("i1")
    for name in ("a", "b", "c"):
        await cluster.join(name)
    await cluster.until("owned", lambda s: len(s.assignments) == 4 and not s.handoffs)
    crash_everything(cluster)
    await anyio.sleep(1.5 * cluster.ttl)
    instance = await cluster.start_instance("i2")
    for name in ("a", "b"):
        await cluster.consumers[name].connect(instance)
    a = cluster.consumers["a"]
    await a.deregister()
    await a.until("closed after the drain", lambda c: c.ended == "drained", within=cluster.ttl / 2)


# --- what is written meanwhile -------------------------------------------------------------------------------------


class TooMany(Exception):
    """Decisions at one instant: time would stand still."""


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Counter[float]:
    """How often leaders decided at each instant. One that goes round in circles is stopped."""
    counts: Counter[float] = Counter()
    decide = Coordination.decide

    def counted(self: Coordination, now: float, wall: float, *budget: int) -> Decisions:
        counts[now] += 1
        if counts[now] > 1000:
            raise TooMany
        return decide(self, now, wall, *budget)

    monkeypatch.setattr(Coordination, "decide", counted)
    return counts


@pytest.mark.parametrize("debounce", [1.0, 0.0], ids=["debounced", "at-once"])
async def test_while_an_owners_liveness_is_unknown_nothing_is_planned_over_and_over(
    debounce: float, decided: Counter[float]
) -> None:
    """The owner and the leader die together, and then the target of its handoffs leaves."""
    async with cluster_on("memory", options=GroupOptions(debounce=debounce)) as cluster:
        await cluster.add_topic(partitions=4)
        await cluster.start_faulty("i1")
        a = await cluster.join("a")
        await cluster.until_counts(a=4)
        second = await cluster.start_instance("i2")
        b = await cluster.join("b", second, answers_warm=False)
        await cluster.join("c", second, answers_warm=False)
        before = await cluster.until("handoffs", lambda s: len(s.incoming["b"]) > 0 and len(s.handoffs) >= 2)
        assert before.leader
        assert before.leader.record.holder == "i1"
        a.crash()
        cluster.crash_instance("i1")
        await cluster.store.revoke(before.consumers["a"].lease)
        await cluster.until("i2 leads", lambda s: s.leader is not None and s.leader.record.holder == "i2", within=90)
        at = await cluster.state()
        await b.deregister()
        await anyio.sleep(cluster.ttl - 5.0)
        assert max(decided.values()) < 100
        assert not await puts(cluster, at.revision, AssignmentKey, HandoffKey), "nothing can be done while a may return"
        assert (await cluster.plan()).generation == at.plan.generation
        assert sum(count for instant, count in decided.items() if instant > cluster.clock.now() - 20.0) < 200


async def test_rule_16_the_generation_rises_only_with_what_is_written(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance("i1")
    for name in ("a", "b", "c"):
        await cluster.join(name)
        await settled(cluster)
        await cluster.instances["i1"].operations.rebalance("g")
        await settled(cluster)
    generation = changes = 0
    for event in await puts(cluster, 0, PlanKey, AssignmentKey, HandoffKey):
        if not isinstance(cluster.group.parse(key_of(event)), PlanKey):
            changes += 1
            continue
        plan = decode(Plan, event.entry.value)[0]
        if plan.generation > generation:
            assert changes, f"generation {generation} to {plan.generation} without a change"
            generation, changes = plan.generation, 0
    assert generation >= 3


LATE = [LoseAnswer(applied=True), LoseAnswer(applied=False), EffectAfter(0.5, 0.6), EffectAfter(0.5, 3.0)]


@pytest.mark.parametrize("fault", LATE, ids=["applied", "lost", "soon", "late"])
@pytest.mark.parametrize("kind", [AssignmentKey, PlanKey])
async def test_rule_16_a_write_of_unknown_outcome_raises_the_generation_once_if_it_went_in(
    cluster: Cluster, fault: Fault, kind: type
) -> None:
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty("i1")

    def is_about(_kind: str, _compares: object, operations: Sequence[Operation]) -> bool:
        return any(isinstance(cluster.group.parse(operation.key), kind) for operation in operations)

    injected = faults.inject(fault, kinds={"transact"}, where=is_about)
    await cluster.join("a")
    await cluster.until_counts(a=2)
    await anyio.sleep(10)
    assert injected.hits == 1
    assert (await cluster.plan()).generation == 1
