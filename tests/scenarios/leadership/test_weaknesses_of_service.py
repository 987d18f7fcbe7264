"""Known weaknesses of the upstream assigner, by their numbers, and that ours does not have them: streams, membership,
topics and cost (12 to 15, 19 to 27, 31). The others are in `test_weaknesses.py`, which also says what is elsewhere.
"""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from assigner.api import Registration
from assigner.clock import LoopClock
from assigner.errors import AssignerError, OutcomeUnknown, UnknownTopic
from assigner.instance import Instance
from assigner.model.commands import Commands
from assigner.storage.incarnation import CHECK_SECONDS
from assigner.store import Absent
from assigner.testing.counting import CountingStore
from assigner.testing.faults import FaultyStore, LoseAnswer
from tests.support.cluster import EXPIRES, Cluster, cluster_on, tp

pytestmark = pytest.mark.virtual_time


def faults_of(instance: Instance) -> FaultyStore:
    assert isinstance(instance.store, FaultyStore)
    return instance.store


def counts_of(instance: Instance) -> CountingStore:
    assert isinstance(instance.store, CountingStore)
    return instance.store


# --- 12: orphaned registrations ------------------------------------------------------------------------------------


async def test_12_a_registration_that_fails_leaves_no_orphan(any_cluster: Cluster) -> None:
    await any_cluster.add_topic()
    instance = await any_cluster.start_instance(wrap=FaultyStore)
    consumer = any_cluster.group.consumer("ghost")
    faults_of(instance).inject(
        LoseAnswer(applied=True),
        kinds=["transact"],
        times=None,
        where=lambda _, compares, __: Absent(consumer) in compares,
    )
    with pytest.raises(OutcomeUnknown):
        await instance.members.register(Registration(group="g", name="ghost", renews=True), any_cluster.clock.now)
    # Not one TTL later: at once, before anything is given to it.
    state = await any_cluster.state()
    assert "ghost" not in state.consumers
    await any_cluster.join("a")
    await any_cluster.until_counts(a=8)


@pytest.mark.parametrize("applied", [True, False])
async def test_12_a_registration_whose_response_was_lost_is_looked_up(any_cluster: Cluster, applied: bool) -> None:
    await any_cluster.add_topic()
    instance = await any_cluster.start_instance(wrap=FaultyStore)
    consumer = any_cluster.group.consumer("a")
    faults_of(instance).inject(
        LoseAnswer(applied), kinds=["transact"], where=lambda _, compares, __: Absent(consumer) in compares
    )
    await any_cluster.join("a")
    await any_cluster.until_counts(a=8)


async def test_12_a_refused_registration_has_written_nothing(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    with pytest.raises(UnknownTopic):
        await instance.members.register(Registration(group="g", name="a", topics=("nowhere",)), any_cluster.clock.now)
    assert not (await any_cluster.state()).consumers


# --- 13: watches that start anywhere -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ended", "compacted"])
async def test_13_what_happens_while_a_watch_is_broken_is_not_lost(any_cluster: Cluster, how: str) -> None:
    await any_cluster.add_topic()
    i1 = await any_cluster.start_instance(wrap=FaultyStore)
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=8)
    for round_ in range(5):
        if how == "ended":
            faults_of(i1).end_watches()
        else:
            faults_of(i1).compact_watches((await any_cluster.state()).revision)
        await any_cluster.put_consumer(f"b{round_}", lease_ttl=600)
        topic = f"t{round_}"
        await any_cluster.add_topic(topic, partitions=1)
        await any_cluster.until(f"{topic} is owned", lambda s, topic=topic: tp(0, topic) in s.assignments)  # type: ignore[misc]
    state = await any_cluster.state()
    wanted = {p: state.assignments[p].record.epoch for p in state.owned["a"]}
    await a.until("knows what it owns", lambda c: c.owned == wanted)


# --- 14, 15: what streams are not told ---------------------------------------------------------------------------


async def test_14_a_consumer_that_does_not_read_misses_nothing_in_the_end(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=100)
    instance = await any_cluster.start_instance()
    stream = await instance.members.register(Registration(group="g", name="slow", session="s"), any_cluster.clock.now)
    commands = stream.commands()
    owned = dict((await anext(commands)).assigned)
    # Nothing is read while everything changes several times over, and others are not held up by it.
    await any_cluster.until("slow has all", lambda s: len(s.owned["slow"]) == 100)
    fast = await any_cluster.join("fast")
    await fast.until("warmed its share", lambda c: len(c.owned) == 50)
    fast.crash()
    await any_cluster.store.revoke((await any_cluster.state()).consumers["fast"].lease)
    await any_cluster.until("slow has all again", lambda s: len(s.owned["slow"]) == 100 and not s.handoffs)
    await instance.operations.set_topic("g", "t", 90, force=True)
    state = await any_cluster.until("fewer", lambda s: len(s.owned["slow"]) == 90)
    told: list[Commands] = []
    wanted = {p: held.record.epoch for p, held in state.assignments.items()}
    with anyio.fail_after(10 + any_cluster.allowance):
        while owned != wanted:
            told.append(await anext(commands))
            owned.update(told[-1].assigned)
            for gone, _ in told[-1].unassigned:
                owned.pop(gone, None)
    assert len(told) <= 2
    await commands.aclose()  # type: ignore[attr-defined]
    await stream.leave()


async def test_15_losing_a_partition_is_sent_for_any_reason(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=8)
    await instance.operations.set_topic("g", "t", 6, force=True)
    await a.until("told of two", lambda c: set(c.owned) == {tp(n) for n in range(6)})
    assert {gone for c in a.heard for gone, _ in c.unassigned} == {tp(6), tp(7)}


async def test_15_an_assignment_deleted_by_hand_is_written_again_with_a_higher_epoch(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=2)
    await any_cluster.store.delete(any_cluster.group.assignment(tp(1)))
    state = await any_cluster.until("owned again", lambda s: tp(1) in s.assignments)
    assert state.assignments[tp(1)].record.epoch > 1
    await a.until("told so", lambda c: c.owned.get(tp(1), 0) > 1)


# --- 19, 22: instances -------------------------------------------------------------------------------------------


async def test_19_a_consumer_may_deregister_at_any_instance_and_is_notified_when_it_is_drained(
    any_cluster: Cluster,
) -> None:
    await any_cluster.add_topic()
    i1 = await any_cluster.start_instance("i1")
    i2 = await any_cluster.start_instance("i2")
    a = await any_cluster.join("a", i1)
    await any_cluster.join("b", i2)
    await any_cluster.until_counts(a=4, b=4)
    assert await i2.members.deregister("g", "a", a.session, gates_closed=False)
    await a.until("drained", lambda c: c.ended == "drained")
    await any_cluster.until_counts(b=8)
    # Its session is over too: nobody waits for its lease.
    await any_cluster.until("a is gone", lambda s: "a" not in s.consumers, within=any_cluster.ttl / 2)


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_22_after_an_outage_longer_than_the_ttl_all_consumers_keep_what_they_had(any_cluster: Cluster) -> None:
    await any_cluster.add_topic()
    await any_cluster.start_instance("i1")
    for name in ("a", "b"):
        await any_cluster.join(name)
    before = await any_cluster.until_counts(a=4, b=4)
    for consumer in any_cluster.consumers.values():
        consumer.crash()
    await any_cluster.stop_instance("i1")
    await any_cluster.until("every lease is over", lambda s: not s.consumers and not s.leader, within=90)
    i2 = await any_cluster.start_instance("i2")
    for name, consumer in any_cluster.consumers.items():
        await consumer.connect(i2)
        await consumer.until("has what it had", lambda c, name=name: set(c.owned) == before.owned[name])  # type: ignore[misc]
    after = await any_cluster.until("a leader", lambda s: s.leader is not None)
    assert after.assignments == before.assignments
    # Also once the doubt about who is still there is over.
    await anyio.sleep(1.5 * any_cluster.ttl)
    assert (await any_cluster.state()).assignments == before.assignments


# --- 20, 21: topics ----------------------------------------------------------------------------------------------


async def test_20_a_consumer_gets_the_topics_it_asked_for(any_cluster: Cluster) -> None:
    await any_cluster.add_topic("orders", partitions=4)
    await any_cluster.add_topic("clicks", partitions=4)
    await any_cluster.start_instance()
    await any_cluster.join("a", topics=("orders",))
    await any_cluster.join("b", topics=("clicks",))
    await any_cluster.join("c")
    state = await any_cluster.until("all owned", lambda s: len(s.assignments) == 8 and "c" in s.consumers)
    assert {p.topic for p in state.owned["a"]} == {"orders"}
    assert {p.topic for p in state.owned["b"]} == {"clicks"}


async def test_20_many_small_topics_are_shared_evenly(any_cluster: Cluster) -> None:
    for number in range(20):
        await any_cluster.add_topic(f"small-{number}", partitions=1)
    for name in ("a", "b", "c", "d"):
        await any_cluster.put_consumer(name, lease_ttl=600)
    await any_cluster.start_instance()
    await any_cluster.until_counts(a=5, b=5, c=5, d=5)


async def test_21_growth_is_picked_up_and_nothing_that_stands_is_touched(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    instance = await any_cluster.start_instance()
    await any_cluster.join("a")
    before = await any_cluster.until_counts(a=4)
    await instance.operations.set_topic("g", "t", 6)
    after = await any_cluster.until_counts(a=6)
    assert {p: after.assignments[p].mod_revision for p in before.assignments} == {
        p: held.mod_revision for p, held in before.assignments.items()
    }


async def test_21_after_a_topic_shrank_nothing_is_written_any_more(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    instance = await cluster.start_instance(wrap=CountingStore)
    await cluster.join("a")
    await cluster.until_counts(a=8)
    await instance.operations.set_topic("g", "t", 4, force=True)
    await cluster.until_counts(a=4)
    await anyio.sleep(5)
    counts_of(instance).reset()
    await anyio.sleep(3600)
    assert counts_of(instance).writes == 0


# --- 23 to 27: cost ----------------------------------------------------------------------------------------------


async def test_23_a_group_of_more_partitions_than_a_transaction_holds_just_works(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=700)
    assert any_cluster.store.limits.operations <= 128
    await any_cluster.start_instance()
    await any_cluster.join("a")
    await any_cluster.until_counts(a=700)
    b = await any_cluster.join("b")
    await any_cluster.until_counts(a=350, b=350)
    b.crash()
    await any_cluster.store.revoke((await any_cluster.state()).consumers["b"].lease)
    await any_cluster.until_counts(a=700)


async def _cost_of_one_move(request: pytest.FixtureRequest, partitions: int) -> Counter[str]:
    """Requests of every kind from the Ready of one partition to the end of its handoff."""
    async with cluster_on("memory", request) as cluster:
        await cluster.add_topic(partitions=partitions)
        instance = await cluster.start_instance(wrap=CountingStore)
        a = await cluster.join("a", answers_release=False)
        await cluster.until_counts(a=partitions)
        b = await cluster.join("b", answers_warm=False)
        await b.until("asked to warm", lambda c: len(c.to_warm) >= min(partitions // 2, 100))
        # What the plan still wants does not begin meanwhile.
        await cluster.set_options(max_concurrent_handoffs=1)
        await anyio.sleep(5)
        counts_of(instance).reset()
        before = counts_of(instance).requests.copy()
        one = next(iter(b.to_warm))
        await b.ready(one)
        await a.until("asked to release", lambda c: one in c.to_release)
        await a.release(one)
        await cluster.until("over", lambda s: one not in s.handoffs)
        return counts_of(instance).requests - before


async def test_24_a_move_costs_the_same_however_large_the_group(request: pytest.FixtureRequest) -> None:
    small = await _cost_of_one_move(request, 10)
    large = await _cost_of_one_move(request, 5_000)
    relevant = ("transact", "put", "delete", "get", "list")
    assert {kind: large[kind] for kind in relevant} == {kind: small[kind] for kind in relevant}
    assert small["list"] == 0
    assert small["transact"] <= 4


async def test_25_a_rebalance_writes_and_sends_only_what_changes(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=6)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    b = await any_cluster.join("b")
    before = await any_cluster.until_counts(a=3, b=3)
    heard = {"a": len(a.heard), "b": len(b.heard)}
    await any_cluster.join("c")
    after = await any_cluster.until_counts(a=2, b=2, c=2)
    for name, consumer in (("a", a), ("b", b)):
        for p in after.owned[name]:
            assert after.assignments[p].mod_revision == before.assignments[p].mod_revision
        new = consumer.heard[heard[name] :]
        assert not any(c.assigned or c.full for c in new)
        assert sum(len(c.releases) for c in new) == 1


async def _cost_of_joining(request: pytest.FixtureRequest, partitions: int) -> Counter[str]:
    async with cluster_on("memory", request) as cluster:
        await cluster.add_topic(partitions=partitions)
        instance = await cluster.start_instance(wrap=CountingStore)
        await cluster.join("a")
        await cluster.until_counts(a=partitions)
        await cluster.set_options(paused=True)
        counts_of(instance).reset()
        before = counts_of(instance).requests.copy()
        await cluster.join("b", renews=True)
        return counts_of(instance).requests - before


async def test_26_registering_costs_the_same_however_large_the_group(request: pytest.FixtureRequest) -> None:
    small = await _cost_of_joining(request, 10)
    assert small["list"] == 0
    assert await _cost_of_joining(request, 5_000) == small


async def test_27_a_standby_neither_polls_nor_campaigns(cluster: Cluster) -> None:
    await cluster.add_topic()
    await cluster.start_instance("i1")
    i2 = await cluster.start_instance("i2", wrap=CountingStore)
    await cluster.join("a")
    await cluster.until_counts(a=8)
    await anyio.sleep(60)
    counts_of(i2).reset()
    await anyio.sleep(3600)
    requests = counts_of(i2).requests
    assert requests.keys() == {"keep_alive", "get"}, "its renewals, and whether the store is still the same"
    assert requests["get"] <= 3600 / CHECK_SECONDS


async def test_27_a_standby_takes_over_without_waiting_for_its_turn(any_cluster: Cluster) -> None:
    await any_cluster.add_topic()
    await any_cluster.start_instance("i1")
    await any_cluster.start_instance("i2")
    await any_cluster.until("i1 leads", lambda s: bool(s.leader and s.leader.record.holder == "i1"))
    began = any_cluster.clock.now()
    await any_cluster.stop_instance("i1")
    await any_cluster.until("i2 leads", lambda s: bool(s.leader and s.leader.record.holder == "i2"))
    assert any_cluster.clock.now() - began < any_cluster.ttl, "handed over, not found expired"


# --- 31: the wall clock ------------------------------------------------------------------------------------------


class JumpingClock(LoopClock):
    """A machine whose wall clock is set to another year now and then."""

    jump = 0.0

    def wall(self) -> float:
        return super().wall() + self.jump


@pytest.mark.parametrize("years", [10, -10])
async def test_31_the_wall_clock_may_say_what_it_likes(cluster: Cluster, years: int) -> None:
    clock = cluster.clock = JumpingClock()
    await cluster.add_topic(partitions=2)
    await cluster.start_instance("i1")
    await cluster.start_instance("i2")
    a = await cluster.join("a", cluster.instances["i2"], answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", cluster.instances["i2"], answers_warm=False)
    await b.until("asked to warm", lambda c: len(c.to_warm) == 1)
    (moved,) = b.to_warm
    clock.jump = years * 365 * 86_400.0
    await cluster.stop_instance("i1")
    await cluster.until("another leader", lambda s: bool(s.leader and s.leader.record.holder == "i2"))
    await anyio.sleep(100)
    # Still warming, neither given up nor forgotten, and nobody was taken for dead.
    assert (await cluster.state()).handoffs[moved].record.old_owner == "a"
    await b.ready(moved)
    await a.until("asked to release", lambda c: moved in c.to_release)
    await a.release(moved)
    await cluster.until_counts(a=1, b=1)
    assert not isinstance(a.ended, AssignerError)
