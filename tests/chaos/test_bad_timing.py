"""Courses of events in which everybody behaves and the timing is bad."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from assigner.errors import Evicted, StoreUnavailable
from assigner.model.records import HandoffMode, encode
from assigner.testing.faults import Delay, FaultyStore, LoseAnswer
from tests.support.cluster import Cluster, tp

pytestmark = pytest.mark.virtual_time


async def test_a_plan_made_around_moves_in_flight_is_made_good_when_they_end(any_cluster: Cluster) -> None:
    """Consumers that join one by one, each while the moves to the last one are still under way, end up even."""
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    await any_cluster.until_counts(a=8)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: len(c.to_warm) == 4)
    c = await any_cluster.join("c", answers_warm=False)
    await c.until("asked to warm", lambda x: len(x.to_warm) == 2)
    await any_cluster.join("d")
    await any_cluster.until("d has some", lambda s: bool(s.owned["d"]))
    for late in (b, c):
        late.answers_warm = True
        await late.ready(*late.to_warm)
    await any_cluster.until_counts(a=2, b=2, c=2, d=2, within=10)


async def test_an_evicted_session_does_not_come_back(any_cluster: Cluster) -> None:
    await any_cluster.set_options(release_timeout=0.5)
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a", answers_release=False)
    await any_cluster.until_counts(a=2)
    await any_cluster.join("b")
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted))
    with pytest.raises(Evicted):
        await instance.members.register(a._registration, any_cluster.clock.now)
    # A session of its own is welcome at once.
    anew = await any_cluster.join("a", session="another")
    await any_cluster.until_counts(a=1, b=1)
    await anew.until("has its share", lambda c: len(c.owned) == 1)


async def test_an_outage_that_ends_just_before_the_leases_do_moves_nothing(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance("i1")
    for name in ("a", "b"):
        await cluster.join(name)
    before = await cluster.until_counts(a=4, b=4)
    for consumer in cluster.consumers.values():
        consumer.crash()
    await cluster.stop_instance("i1")
    await anyio.sleep(cluster.ttl - 0.9)
    i2 = await cluster.start_instance("i2")
    await cluster.until("a leader", lambda s: s.leader is not None)
    await cluster.until("the leases are over", lambda s: not s.consumers)
    # Clients do not come back in the same instant.
    await anyio.sleep(cluster.ttl / 5)
    await cluster.consumers["a"].connect(i2)
    await anyio.sleep(cluster.ttl / 5)
    await cluster.consumers["b"].connect(i2)
    await anyio.sleep(2 * cluster.ttl)
    state = await cluster.state()
    assert {p: a.record for p, a in state.assignments.items()} == {p: a.record for p, a in before.assignments.items()}


async def test_every_lease_a_session_ever_had_is_awaited_before_its_partitions_go_exclusively(
    any_cluster: Cluster,
) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a")
    state = await any_cluster.until_counts(a=2)
    first = state.consumers["a"].lease
    # Its registration is lost, not its lease, by which its gates are still open; then it registers anew, in vain.
    await any_cluster.store.delete(any_cluster.group.consumer("a"))
    await a.until("its stream ends", lambda c: c.ended is not None)
    await a.connect(instance)
    second = (await any_cluster.state()).consumers["a"].lease
    assert second != first
    a.crash()
    await any_cluster.store.revoke(second)
    b = await any_cluster.join("b")
    await anyio.sleep(any_cluster.a_while)
    assert not b.owned
    await any_cluster.store.revoke(first)
    await any_cluster.until_counts(b=2)


async def test_partitions_that_exist_again_before_they_are_removed_stay_where_they_are(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    instance = await any_cluster.start_instance(wrap=FaultyStore)
    await any_cluster.join("a")
    before = await any_cluster.until_counts(a=8)
    assert isinstance(instance.store, FaultyStore)
    late = instance.store.inject(
        Delay(0.5),
        kinds=["transact"],
        where=lambda _, __, operations: any(b'"epoch_floor":5' in getattr(op, "value", b"") for op in operations),
    )
    last = before.assignments[tp(7)].record
    await any_cluster.store.put(any_cluster.group.assignment(tp(7)), encode(msgspec.structs.replace(last, epoch=5)))
    await any_cluster.add_topic(partitions=4)
    await any_cluster.until("the floor is on its way", lambda _: late.hits == 1)
    before = await any_cluster.state()
    await any_cluster.add_topic(partitions=8)
    await any_cluster.until("the floor is raised", lambda s: s.plan.epoch_floor == 5)
    await any_cluster.add_topic("another", partitions=1)
    after = await any_cluster.until_counts(a=9)
    assert {p: after.assignments[p] for p in before.assignments} == before.assignments


@pytest.mark.parametrize("applied", [True, False])
async def test_an_answer_whose_outcome_is_unknown_is_never_taken_for_given(any_cluster: Cluster, applied: bool) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance(wrap=FaultyStore)
    await any_cluster.join("a")
    await any_cluster.until_counts(a=2)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: len(c.to_warm) == 1)
    (moved,) = b.to_warm
    order, handoff = b.to_warm[moved], any_cluster.group.handoff(moved)
    assert isinstance(instance.store, FaultyStore)
    lost = instance.store.inject(
        LoseAnswer(applied),
        kinds=["transact"],
        times=None,
        where=lambda _, compares, operations: len(operations) == 1 and operations[0].key == handoff,
    )
    if applied:
        await b.ready(moved)
    else:
        with pytest.raises(StoreUnavailable):
            await b.ready(moved)
        lost.remove()
        b.to_warm[moved] = order
        await b.ready(moved)
    lost.remove()
    await any_cluster.until_counts(a=1, b=1)
