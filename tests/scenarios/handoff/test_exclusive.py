"""The `exclusive` handoff mode: the old owner has released, or its lease is over, before the new one is notified."""

from __future__ import annotations

import anyio
import pytest

from assigner.core.client.messages import Done
from assigner.core.client.state import ClientState
from assigner.errors import Evicted, Superseded
from assigner.model.commands import Commands, Opening
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, GroupOptions, Handoff, HandoffMode, Step, decode
from assigner.store import LeaseGone, PutEvent
from tests.support.cluster import EXPIRES, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

OPTIONS = GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE, debounce=0.1)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


async def one_moving(cluster: Cluster) -> tuple[SteppedConsumer, SteppedConsumer, TopicPartition]:
    """`a` owned both partitions; one is ready at `b`, and `a` was asked to release it."""
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b")
    await a.until("told to release", lambda c: bool(c.to_release))
    (moving,) = a.to_release
    return a, b, moving


async def steps_of(cluster: Cluster, partition: TopicPartition) -> list[str]:
    """The steps its handoffs went through, and `flip` where the owner changed."""
    seen: list[str] = []
    owner = ""
    for event in await cluster.history():
        if isinstance(event, PutEvent) and event.entry.key == cluster.group.handoff(partition):
            seen.append(decode(Handoff, event.entry.value)[0].at.value)
        elif isinstance(event, PutEvent) and event.entry.key == cluster.group.assignment(partition):
            after = decode(Assignment, event.entry.value)[0].owner
            if owner not in ("", after):
                seen.append("flip")
            owner = after
        elif not isinstance(event, PutEvent) and event.key == cluster.group.handoff(partition):
            seen.append("deleted")
    return seen


async def nobody_held_it_together(cluster: Cluster, partition: TopicPartition) -> None:
    """By what the consumers were sent: an owner had released before another one was assigned."""
    believers = [c.name for c in cluster.consumers.values() if partition in c.owned and c.ended is None]
    assert len(believers) <= 1, believers


async def test_a_move_goes_through_ready_releasing_and_released_and_flips_last(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a, b, moving = await one_moving(cluster)
    handoff = await cluster.handoff(moving)
    assert handoff
    assert handoff.at is Step.RELEASING
    assert handoff.phase.value == "Ready"
    assert moving not in b.owned
    held = await cluster.assignment(moving)
    assert held
    assert (held.owner, held.epoch) == ("a", 1)
    assert a.to_release[moving].epoch == 1

    await a.release(moving)
    await cluster.until_counts(a=1, b=1)
    await b.until("told it owns", lambda c: c.owned == {moving: 2})
    assert await steps_of(cluster, moving) == ["warming", "ready", "releasing", "released", "flip", "deleted"]


async def test_the_new_owner_is_sent_nothing_before_the_old_one_released(cluster: Cluster) -> None:
    a, b, moving = await one_moving(cluster)
    await anyio.sleep(5)
    assert moving not in b.owned
    assert moving in a.owned
    await nobody_held_it_together(cluster, moving)
    await a.release(moving)
    await b.until("told it owns", lambda c: moving in c.owned)
    await nobody_held_it_together(cluster, moving)


async def test_the_gate_opens_after_the_flip_and_only_when_assigned_has_returned() -> None:
    client = ClientState()
    client.renewed(0.0, 30.0)
    client.apply(Commands(full=True, opening=Opening(exclusive=True)))
    gate = client.gate(tp(0))
    client.apply(Commands(assigned=((tp(0), 2),)))
    assert not gate.is_open(1.0), "the handler has not read the last offset yet"
    client.finished(tp(0), Done())
    assert gate.admit(1.0) == 2


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_an_old_owner_that_dies_while_releasing_is_waited_for_until_its_lease_is_over(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    a, b, moving = await one_moving(cluster)
    lease = (await cluster.state()).consumers["a"].lease
    a.crash()
    await b.until("owns everything", lambda c: len(c.owned) == 2, within=4 * cluster.ttl)
    assert isinstance(await cluster.store.remaining(lease), LeaseGone)
    state = await cluster.until_counts(b=2)
    assert state.assignments[moving].record.epoch == 2


async def test_a_frozen_old_owner_finds_its_epoch_passed_when_it_wakes_up(cluster: Cluster) -> None:
    """Its answer comes after the partition went to somebody else, and changes nothing."""
    a, b, moving = await one_moving(cluster)
    late = a.to_release[moving]
    a.crash()
    await cluster.until_counts(b=2, within=4 * cluster.ttl)
    assert a.instance
    await a.connect(a.instance)
    a.to_release[moving] = late
    await a.release(moving)
    assert moving not in a.owned or a.owned[moving] > late.epoch
    held = await cluster.assignment(moving)
    assert held
    assert held.epoch > late.epoch
    assert b.ended is None


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_a_takeover_waits_for_the_end_of_the_old_sessions_lease(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    old = await cluster.join("a", session="first")
    before = await cluster.until_counts(a=2)
    lease = before.consumers["a"].lease
    new = await cluster.join("a", session="second")
    await old.until("told why", lambda c: isinstance(c.ended, Superseded))
    await anyio.sleep(cluster.ttl / 3)
    assert not new.owned
    assert {held.record.session for held in (await cluster.state()).assignments.values()} == {"first"}
    await new.until("owns", lambda c: set(c.owned.values()) == {2} and len(c.owned) == 2, within=4 * cluster.ttl)
    assert isinstance(await cluster.store.remaining(lease), LeaseGone)


async def test_a_takeover_does_not_wait_once_the_old_session_reported_its_gates_closed(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    old = await cluster.join("a", session="first")
    await cluster.until_counts(a=2)
    new = await cluster.join("a", session="second")
    await old.until("told why", lambda c: isinstance(c.ended, Superseded))
    await instance.members.deregister("g", "a", "first", gates_closed=True)
    began = cluster.clock.now()
    await new.until("owns", lambda c: len(c.owned) == 2)
    assert cluster.clock.now() - began < 2


async def test_a_chain_of_takeovers_waits_for_every_lease(cluster: Cluster) -> None:
    """The second session never owned anything; the third waits for the first."""
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    await cluster.join("a", session="first")
    lease = (await cluster.until_counts(a=1)).consumers["a"].lease
    await cluster.join("a", session="second")
    third = await cluster.join("a", session="third")
    await third.until("owns", lambda c: c.owned == {tp(0): 2}, within=3 * cluster.ttl)
    assert isinstance(await cluster.store.remaining(lease), LeaseGone)


async def test_a_new_leader_waits_for_the_lease_of_a_session_displaced_before_its_term(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_faulty("i1")
    second = await cluster.start_instance("i2", leads=False)
    await cluster.join("a", second, session="first")
    lease = (await cluster.until_counts(a=1)).consumers["a"].lease
    cluster.crash_instance("i1")
    await cluster.store.keep_alive(lease)
    new = await cluster.join("a", second, session="second")
    await cluster.start_instance("i3")
    await new.until("owns", lambda c: tp(0) in c.owned, within=5 * cluster.ttl)
    assert isinstance(await cluster.store.remaining(lease), LeaseGone)


async def test_an_owner_that_does_not_release_for_a_drain_is_evicted_and_its_lease_is_waited_for(
    cluster: Cluster,
) -> None:
    await cluster.set_options(release_timeout=5.0)
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    lease = (await cluster.until_counts(a=1)).consumers["a"].lease
    b = await cluster.join("b")
    await a.deregister()
    await a.until("told to release", lambda c: tp(0) in c.to_release)
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted), within=10)
    assert tp(0) not in b.owned
    await b.until("owns", lambda c: tp(0) in c.owned, within=2 * cluster.ttl)
    assert isinstance(await cluster.store.remaining(lease), LeaseGone)


async def test_a_move_for_balance_that_is_not_released_is_abandoned_and_the_owner_goes_on(cluster: Cluster) -> None:
    await cluster.set_options(release_timeout=5.0)
    a, b, moving = await one_moving(cluster)
    await a.until("owns it again", lambda c: c.owned[moving] == 2, within=10)
    assert a.ended is None
    assert moving not in b.owned


async def test_a_released_partition_whose_target_left_goes_on_at_its_old_owner_while_the_next_one_warms(
    cluster: Cluster,
) -> None:
    """Otherwise nobody would work on it for as long as the warming takes."""
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty("leader")
    other = await cluster.start_instance("follower", leads=False)
    a = await cluster.join("a", other, answers_release=False)
    await cluster.until_counts(a=1)
    b = await cluster.join("b", other)
    await a.deregister()
    await a.until("told to release", lambda c: tp(0) in c.to_release)
    c = await cluster.join("c", other, answers_warm=False)
    # The leader sees both at once: that `a` released, and that `b` is gone.
    faults.freeze()
    released = a.to_release[tp(0)].epoch
    await a.release(tp(0))
    await b.deregister(gates_closed=True)
    faults.thaw()
    await c.until("asked to warm", lambda x: tp(0) in x.to_warm)
    await a.until("works on it again, with a new epoch", lambda x: x.owned.get(tp(0), 0) > released)
    await c.ready(tp(0))
    await a.until("told to release again", lambda x: tp(0) in x.to_release)
    assert a.to_release[tp(0)].epoch == a.owned[tp(0)]
    await a.release(tp(0))
    await cluster.until_counts(c=1)


async def test_a_released_partition_goes_on_at_its_old_owner_if_nobody_else_is_left(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty("leader")
    other = await cluster.start_instance("follower", leads=False)
    a = await cluster.join("a", other, answers_release=False)
    await cluster.until_counts(a=1)
    b = await cluster.join("b", other)
    await a.deregister()
    await a.until("told to release", lambda c: tp(0) in c.to_release)
    faults.freeze()
    await a.release(tp(0))
    await b.deregister(gates_closed=True)
    faults.thaw()
    await a.until("works on it again, with a new epoch", lambda c: c.owned == {tp(0): 2})
    assert not (await cluster.state()).handoffs


async def test_a_takeover_while_the_target_warms_is_asked_to_release_the_epoch_it_has(cluster: Cluster) -> None:
    """A release of an earlier epoch would be answered at once, and the work would go on."""
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    old = await cluster.join("a", session="first")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    a = await cluster.join("a", session="second", answers_release=False)
    await old.until("told why", lambda c: isinstance(c.ended, Superseded))
    await instance.members.deregister("g", "a", "first", gates_closed=True)
    await a.until("owns both", lambda c: set(c.owned.values()) == {2} and len(c.owned) == 2)
    await b.ready(moving)
    await a.until("told to release", lambda c: moving in c.to_release)
    assert a.to_release[moving].epoch == a.owned[moving] == 2
    await a.release(moving)
    await cluster.until_counts(a=1, b=1)


async def test_a_draining_consumer_hands_over_exclusively_too(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    b = await cluster.join("b")
    await cluster.until_counts(a=2, b=2)
    assert await a.deregister() is True
    await a.until("closed after the drain", lambda c: c.ended == "drained")
    await cluster.until_counts(b=4)
    await b.until("owns everything", lambda c: len(c.owned) == 4)
    assert all(epoch >= 2 for epoch in b.owned.values())


async def test_changing_the_mode_changes_what_follows_and_loses_nothing_in_flight(cluster: Cluster) -> None:
    await cluster.set_options(handoff_mode=HandoffMode.OVERLAP)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await b.ready(moving)
    a = cluster.consumers["a"]
    await a.until("told to release first", lambda c: moving in c.to_release)
    assert (await cluster.owners())[moving] == "a"
    await cluster.set_options(handoff_mode=HandoffMode.OVERLAP)
    await a.release(moving)
    await cluster.until_counts(a=1, b=1)
