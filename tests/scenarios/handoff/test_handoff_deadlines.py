"""Every step of a handoff has a deadline; then the owner is reaffirmed or evicted, and the partition is in cooldown."""

from __future__ import annotations

import anyio
import pytest

from assigner.errors import Evicted
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Router, Step, encode
from assigner.store import PutEvent
from assigner.testing.waiting import eventually
from tests.support.cluster import TTL, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


async def warming(cluster: Cluster, **options: float) -> tuple[SteppedConsumer, SteppedConsumer, TopicPartition]:
    """`a` owns two partitions, one of which `b` is asked to warm for balance and does not."""
    await cluster.set_options(**options)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    return a, b, moving


async def test_a_warm_for_balance_that_takes_too_long_is_abandoned_and_tried_again_after_the_cooldown(
    cluster: Cluster,
) -> None:
    a, b, moving = await warming(cluster, warming_timeout=10.0, balance_backoff=40.0)
    began = cluster.clock.now()
    await a.until("reaffirmed", lambda c: c.owned[moving] == 2)
    assert cluster.clock.now() - began == pytest.approx(10, abs=1)
    assert moving not in b.to_warm, "the target was not told that it is not wanted any more"
    assert a.ended is None
    assert b.ended is None
    await b.until("asked for it again", lambda c: moving in c.to_warm, within=60)
    assert cluster.clock.now() - began == pytest.approx(50, abs=2)


async def test_while_one_partition_is_in_cooldown_others_still_move(cluster: Cluster) -> None:
    a, b, moving = await warming(cluster, warming_timeout=10.0, balance_backoff=1000.0)
    await a.until("reaffirmed", lambda c: c.owned[moving] == 2)
    b.answers_warm = True
    await cluster.add_topic("u", partitions=4)
    state = await cluster.until(
        "all of it is owned", lambda s: len(s.assignments) == 6 and not s.handoffs and len(s.owned["b"]) == 3
    )
    assert moving in state.owned["a"]


async def test_an_operator_who_asks_for_a_rebalance_ends_the_cooldown(cluster: Cluster) -> None:
    a, b, moving = await warming(cluster, warming_timeout=10.0, balance_backoff=100_000.0)
    await a.until("reaffirmed", lambda c: c.owned[moving] == 2)
    b.answers_warm = True
    await cluster.instances["i1"].operations.rebalance("g")
    await cluster.until_counts(a=1, b=1)
    state = await cluster.state()
    assert len(state.owned["b"]) == 1


async def test_a_draining_owner_whose_target_does_not_warm_is_evicted_and_the_target_gets_it(cluster: Cluster) -> None:
    await cluster.set_options(warming_timeout=10.0)
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    b = await cluster.join("b", answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted), within=12)
    assert "did not release" in str(a.ended)
    assert (await cluster.owners())[tp(0)] == "a", "its lease still runs"
    await b.until("owns", lambda c: tp(0) in c.owned, within=TTL + 5)


async def test_a_move_an_operator_asked_for_evicts_instead_of_being_abandoned(cluster: Cluster) -> None:
    await cluster.set_options(warming_timeout=10.0, paused=True)
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.set_options(paused=False)
    await cluster.until_counts(a=2)
    await cluster.set_options(paused=True)
    b = await cluster.join("b", answers_warm=False)
    # With the pause over, an operator's wish is the reason of the move.
    await cluster.set_options(paused=False)
    await instance.operations.rebalance("g")
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (warm,) = b.to_warm.values()
    assert warm.cause is Cause.OPERATOR
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted), within=12)


async def test_an_old_owner_that_keeps_a_flipped_partition_is_evicted(cluster: Cluster) -> None:
    await cluster.set_options(release_timeout=10.0)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b")
    await a.until("told to release", lambda c: bool(c.to_release))
    began = cluster.clock.now()
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted), within=15)
    assert cluster.clock.now() - began == pytest.approx(10, abs=1)
    assert b.ended is None
    # Everything else it had is free once its lease is over; until then it keeps it.
    await cluster.until_counts(b=2, within=TTL + 10)


async def test_a_consumer_evicted_for_two_partitions_is_evicted_once(cluster: Cluster) -> None:
    await cluster.set_options(release_timeout=10.0)
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=4)
    await cluster.join("b")
    await a.until("told to release two", lambda c: len(c.to_release) == 2)
    before = (await cluster.state()).revision
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted), within=15)
    await anyio.sleep(5)
    puts = [event.entry.key for event in await cluster.history(before) if isinstance(event, PutEvent)]
    assert puts.count(cluster.group.consumer("a")) == 1


async def test_routers_that_do_not_acknowledge_in_time_hold_the_move_up_no_longer(cluster: Cluster) -> None:
    lease = (await cluster.store.grant(10_000)).lease
    await cluster.store.put(cluster.group.router("r"), encode(Router(router_name="r")), lease=lease)
    a, b, moving = await warming(cluster, freeze_timeout=10.0)
    await b.ready(moving)
    await cluster.until("freezing", lambda s: moving in s.handoffs and s.handoffs[moving].record.at is Step.FREEZING)
    began = cluster.clock.now()
    await a.until("reaffirmed", lambda c: c.owned[moving] == 2)
    assert cluster.clock.now() - began == pytest.approx(10, abs=1)


async def test_each_step_gets_its_full_time(cluster: Cluster) -> None:
    """What one step used up is not missing in the next."""
    a, b, moving = await warming(cluster, warming_timeout=10.0, release_timeout=10.0)
    a.answers_release = False
    await anyio.sleep(8)
    await b.ready(moving)
    await a.until("told to release", lambda c: moving in c.to_release)
    await anyio.sleep(8)
    assert a.ended is None
    await a.release(moving)
    await cluster.until_counts(a=1, b=1)


async def test_a_new_leader_gives_every_step_its_full_time_again(cluster: Cluster) -> None:
    await cluster.set_options(warming_timeout=20.0)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2", leads=False)
    a = await cluster.join("a", other)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", other, answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    await anyio.sleep(15)
    handoff = await cluster.handoff(moving)
    await cluster.stop_instance("i1")
    await cluster.start_instance("i3")
    await anyio.sleep(15)
    assert await cluster.handoff(moving) == handoff, "the new leader counted time it did not see"
    await a.until("reaffirmed", lambda c: c.owned[moving] == 2)


async def test_a_shorter_timeout_counts_for_the_next_step(cluster: Cluster) -> None:
    a, b, moving = await warming(cluster, warming_timeout=1000.0, release_timeout=1000.0)
    a.answers_release = False
    await cluster.set_options(release_timeout=5.0)
    await b.ready(moving)
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted), within=10)


async def test_a_late_ready_after_the_move_was_abandoned_changes_nothing(cluster: Cluster) -> None:
    a, b, moving = await warming(cluster, warming_timeout=10.0)
    warm = b.to_warm[moving]
    await a.until("reaffirmed", lambda c: c.owned[moving] == 2)
    b.to_warm[moving] = warm
    await b.ready(moving)
    assert moving not in (await cluster.state()).handoffs
    assert (await cluster.owners())[moving] == "a"


async def test_a_target_that_leaves_while_warming_is_replaced_by_another(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    b = await cluster.join("b", answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    c = await cluster.join("c")
    await b.deregister()
    await cluster.until_counts(c=1)
    await c.until("owns", lambda x: tp(0) in x.owned)
    await a.until("closed after the drain", lambda x: x.ended == "drained")
    await b.until("closed after the drain", lambda x: x.ended == "drained")


async def test_a_new_owner_that_dies_right_after_the_flip_gives_it_back(cluster: Cluster) -> None:
    """The old owner has not released yet: it is the owner again, and a successor handoff follows."""
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=1)
    b = await cluster.join("b")
    await a.deregister()
    await a.until("told to release", lambda c: tp(0) in c.to_release)
    assert (await cluster.owners())[tp(0)] == "b"
    c = await cluster.join("c", answers_warm=False)
    await b.deregister(gates_closed=True)
    await c.until("asked to warm", lambda x: tp(0) in x.to_warm, within=20)
    handoff = await cluster.handoff(tp(0))
    assert handoff
    assert (handoff.old_owner, handoff.new_owner) == ("a", "c")
    assert (await cluster.owners())[tp(0)] == "a"
    await c.ready(tp(0))
    await eventually(lambda: tp(0) in a.to_release and a.to_release[tp(0)].new_owner == "c")
    await a.release(tp(0))
    await cluster.until_counts(c=1)


async def test_an_old_owner_that_dies_while_warming_leaves_it_to_the_target_at_once(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a, b, moving = await warming(cluster)
    await a.deregister(gates_closed=True)
    await b.until("owns", lambda c: moving in c.owned)
    assert b.owned[moving] == 2
    await cluster.until_counts(b=2)
