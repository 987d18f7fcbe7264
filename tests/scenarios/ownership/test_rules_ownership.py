"""The numbered safety rules about who owns what: each as a test that fails when the rule is switched off.

`tests/chaos/ablation/ablations.py` switches them off one by one and `test_ablation.py` sees these very tests fail.
"""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from assigner.errors import Superseded
from assigner.model.keys import AssignmentKey
from assigner.model.records import Assignment, Cause, HandoffMode, Plan, Step, TopicConfig, decode, encode
from assigner.store import Event, Found, PutEvent
from assigner.testing.faults import Delay, LoseAnswer
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, TTL, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


def puts_of(cluster: Cluster, events: list[Event]) -> list[Assignment]:
    """Every assignment that was ever written, in order."""
    entries = [event.entry for event in events if isinstance(event, PutEvent)]
    return [decode(Assignment, e.value)[0] for e in entries if isinstance(cluster.group.parse(e.key), AssignmentKey)]


def writes_to(*keys: str) -> Any:
    """For `FaultyStore.inject`: transactions that write one of these keys."""
    return lambda _, compares, operations: any(operation.key in keys for operation in operations)


class Sink:
    """Where effects end up: it takes nothing of an epoch below the highest it has seen, as a sink should."""

    def __init__(self) -> None:
        self.accepted: list[tuple[str, int]] = []

    def write(self, who: str, epoch: int) -> bool:
        if any(epoch < seen or (epoch == seen and who != other) for other, seen in self.accepted):
            return False
        self.accepted.append((who, epoch))
        return True


# --- 1: a lease is liveness, never mutual exclusion --------------------------------------------------------------


async def test_rule_1_work_of_an_owner_that_does_not_know_it_is_dead_is_refused_by_its_epoch(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    frozen = await cluster.join("a")
    await frozen.until("owns", lambda c: tp(0) in c.owned)
    sink = Sink()
    assert sink.write("a", frozen.owned[tp(0)])
    frozen.crash()
    heir = await cluster.join("b")
    await heir.until("owns", lambda c: tp(0) in c.owned, within=3 * TTL)
    assert sink.write("b", heir.owned[tp(0)])
    assert not sink.write("a", frozen.owned[tp(0)]), "the old owner woke up and wrote over the new one's work"


async def test_rule_1_an_owner_that_rejoined_before_the_write_keeps_its_partitions(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty("leader")
    other = await cluster.start_instance("follower", leads=False)
    a = await cluster.join("a", other)
    await cluster.join("b", other)
    before = await cluster.until_counts(a=1, b=1)
    (owned,) = before.owned["a"]
    # The lease of `a` ends; the write that gives its partition away is on its way when it registers again.
    late = faults.inject(Delay(5.0), kinds={"transact"}, where=writes_to(cluster.group.assignment(owned)))
    a.crash()
    await eventually(lambda: late.hits == 1, within=3 * TTL, what="the leader decided")
    await a.connect(other)
    await anyio.sleep(10)
    state = await cluster.until_counts(a=1, b=1)
    assert state.assignments[owned].record == before.assignments[owned].record


# --- 2: owners are sessions, not names ---------------------------------------------------------------------------


async def test_rule_2_the_same_session_on_another_instance_resumes_and_nothing_moves(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2", leads=False)
    a = await cluster.join("a")
    before = await cluster.until_counts(a=4)
    a.crash()
    await a.connect(other)
    assert a.heard[-1].full
    assert a.owned == {held: record.record.epoch for held, record in before.assignments.items()}
    await cluster.join("b")
    after = await cluster.until_counts(a=2, b=2)
    for kept in after.owned["a"]:
        assert after.assignments[kept].mod_revision == before.assignments[kept].mod_revision


async def test_rule_2_a_new_session_is_fenced_off_from_the_old_one_before_it_is_granted_anything(
    cluster: Cluster,
) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    old = await cluster.join("a", session="first")
    await cluster.until_counts(a=2)
    new = await cluster.join("a", session="second")
    await old.until("gets the reason", lambda c: isinstance(c.ended, Superseded))
    assert not new.heard[0].assigned, "granted what still belongs to the old session"
    await new.until("owns all", lambda c: len(c.owned) == 2)
    assert set(new.owned.values()) == {2}
    with pytest.raises(Superseded):
        await cluster.instances["i1"].members.renew("g", "a", "first")


async def test_rule_2_a_handoff_to_the_old_session_is_replaced(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    await cluster.join("b", session="first", answers_warm=False)
    await a.deregister()
    first = await cluster.until("a handoff", lambda s: tp(0) in s.handoffs)
    again = await cluster.join("b", session="second", answers_warm=False)
    await again.until("asked to warm", lambda c: tp(0) in c.to_warm)
    handoff = await cluster.handoff(tp(0))
    assert handoff
    assert handoff.new_session == "second"
    assert handoff.handoff_id != first.handoffs[tp(0)].record.handoff_id
    await again.ready(tp(0))
    await again.until("owns", lambda c: tp(0) in c.owned)


# --- 5: every write compares what it decided on ------------------------------------------------------------------


async def handoff_in_flight(cluster: Cluster) -> tuple[SteppedConsumer, SteppedConsumer]:
    """`a` owns the only partition and drains; `b` is asked to warm it and waits."""
    await cluster.add_topic(partitions=1)
    a = await cluster.join("a", cluster.instances["i1"], answers_release=False)
    await cluster.until_counts(a=1)
    b = await cluster.join("b", cluster.instances["i1"], answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: tp(0) in c.to_warm)
    return a, b


async def test_rule_5_an_ack_of_an_earlier_handoff_changes_nothing(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    _, b = await handoff_in_flight(cluster)
    earlier = b.to_warm[tp(0)]
    b2 = await cluster.join("b", session="next", answers_warm=False)
    await b2.until("asked again", lambda c: tp(0) in c.to_warm)
    later = b2.to_warm[tp(0)]
    assert later.handoff_id != earlier.handoff_id
    b2.to_warm[tp(0)] = earlier
    await b2.ready(tp(0))
    handoff = await cluster.handoff(tp(0))
    assert handoff
    assert handoff.at is Step.WARMING


async def test_rule_5_an_ack_that_arrives_after_its_handoff_was_replaced_changes_nothing(cluster: Cluster) -> None:
    faults = await cluster.start_faulty("i1")
    _, b = await handoff_in_flight(cluster)
    key = cluster.group.handoff(tp(0))
    late = faults.inject(Delay(5.0), kinds={"transact"}, where=writes_to(key))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(b.ready, tp(0))
        await eventually(lambda: late.hits == 1)
        # Replaced by hand, so that nothing but the late answer is left to happen.
        handoff = await cluster.handoff(tp(0))
        assert handoff

        await cluster.store.put(key, encode(msgspec.structs.replace(handoff, handoff_id="next", new_owner="b")))
    after = await cluster.handoff(tp(0))
    assert after
    assert (after.handoff_id, after.at) == ("next", Step.WARMING)


async def test_rule_5_a_target_that_left_before_the_flip_does_not_become_the_owner(cluster: Cluster) -> None:
    faults = await cluster.start_faulty("i1")
    _, b = await handoff_in_flight(cluster)
    late = faults.inject(Delay(5.0), kinds={"transact"}, where=writes_to(cluster.group.assignment(tp(0))))
    await b.ready(tp(0))
    await eventually(lambda: late.hits == 1)
    await cluster.store.revoke((await cluster.state()).consumers["b"].lease)
    await anyio.sleep(6)
    assert {record.owner for record in puts_of(cluster, await cluster.history())} == {"a"}


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_rule_5_a_draining_consumer_keeps_its_lease(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    # With nobody to take what it owns, it stays until it is told otherwise.
    state = await cluster.until_counts(a=2)
    lease = state.consumers["a"].lease
    await a.deregister()
    assert (await cluster.state()).consumers["a"].lease == lease
    a.crash()
    await cluster.until("a is gone", lambda s: not s.consumers, within=3 * cluster.ttl)


@pytest.mark.parametrize("applied", [True, False])
async def test_rule_5_a_write_of_unknown_outcome_is_read_again(cluster: Cluster, applied: bool) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty()
    lost = faults.inject(
        LoseAnswer(applied=applied), kinds={"transact"}, where=writes_to(cluster.group.assignment(tp(0)))
    )
    a = await cluster.join("a")
    await a.until("owns", lambda c: c.owned == {tp(0): 1}, within=5)
    assert lost.hits == 1
    await cluster.join("b")
    await a.deregister()
    await cluster.until_counts(b=1, within=5)
    assert [record.epoch for record in puts_of(cluster, await cluster.history())] == [1, 2]


# --- 6: epochs only go up ----------------------------------------------------------------------------------------


async def epochs_only_went_up(cluster: Cluster) -> None:
    highest: dict[int, int] = {}
    for record in puts_of(cluster, await cluster.history()):
        assert record.epoch > highest.get(record.partition, 0), f"{record} after epoch {highest[record.partition]}"
        highest[record.partition] = record.epoch


async def test_rule_6_epochs_go_on_after_the_records_were_removed(any_cluster: Cluster) -> None:
    """Also for a leader that never saw them."""
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    first = await cluster.start_instance("i1")
    a = await cluster.join("a")
    state = await cluster.until_counts(a=4)
    # An epoch that rose between two plans: the floor has not followed yet when the partition goes.
    last = state.assignments[tp(3)]
    await cluster.store.put(last.key, encode(msgspec.structs.replace(last.record, epoch=40)))
    await first.operations.set_topic("g", "t", 2, force=True)
    await cluster.until_counts(a=2)
    await cluster.stop_instance("i1")
    a.crash()
    second = await cluster.start_instance("i2")
    await a.connect(second)
    await second.operations.set_topic("g", "t", 4)
    await cluster.until_counts(a=4)
    await epochs_only_went_up(cluster)


async def test_rule_6_the_floor_counts_for_records_without_an_epoch(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.store.put(cluster.group.plan, encode(Plan(epoch_floor=41)))
    await cluster.store.put(cluster.group.assignment(tp(0)), encode(Assignment(topic="t", partition=0, owner="gone")))
    await cluster.start_instance()
    a = await cluster.join("a")
    await a.until("owns", lambda c: c.owned == {tp(0): 42}, within=3 * TTL)


async def test_rule_6_a_recreated_topic_drops_offset_and_handoff_and_its_epochs_continue(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1, topic_id="first")
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    offset = cluster.keys.offset("g", tp(0))
    await cluster.store.put(offset, b"{}")
    b = await cluster.join("b", answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: tp(0) in c.to_warm)
    before = await cluster.handoff(tp(0))
    assert before
    config = TopicConfig(topic="t", partition_count=1, topic_id="second")
    await cluster.store.put(cluster.group.topic("t"), encode(config))
    await cluster.until("restamped", lambda s: s.assignments[tp(0)].record.topic_id == "second")
    assert not isinstance(await cluster.store.get(offset), Found)
    await b.until("asked to warm the new one", lambda c: tp(0) in c.to_warm and c.heard[-1].warms != ())
    after = await cluster.handoff(tp(0))
    assert after
    assert after.handoff_id != before.handoff_id
    await epochs_only_went_up(cluster)


# --- 8: dead means gone ------------------------------------------------------------------------------------------


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_rule_8_an_outage_of_the_service_moves_nothing_if_the_consumers_rejoin(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    await cluster.start_instance("i1")
    consumers = [await cluster.join("a"), await cluster.join("b")]
    before = await cluster.until_counts(a=2, b=2)
    await cluster.stop_instance("i1")
    for consumer in consumers:
        consumer.crash()
    await cluster.until("everybody's lease is over", lambda s: not s.consumers, within=3 * cluster.ttl)
    await cluster.start_instance("i2")
    await consumers[0].connect(cluster.instances["i2"])
    # Long enough to have planned without the other one, if that were allowed.
    await anyio.sleep(cluster.ttl / 2)
    await consumers[1].connect(cluster.instances["i2"])
    await consumers[1].until("still owns its own", lambda c: len(c.owned) == 2)
    after = await cluster.until_counts(a=2, b=2)
    assert {p: held.record for p, held in after.assignments.items()} == {
        p: held.record for p, held in before.assignments.items()
    }


async def test_rule_8_a_consumer_absent_for_a_ttl_of_the_new_leader_is_dead(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.store.put(cluster.group.assignment(tp(0)), encode(Assignment(topic="t", partition=0, owner="gone")))
    await cluster.start_instance()
    await cluster.join("a")
    began = cluster.clock.now()
    await cluster.until_counts(a=2, within=2 * TTL)
    assert cluster.clock.now() - began == pytest.approx(TTL, abs=2)


async def test_rule_8_an_unreadable_registration_is_a_registration(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    await cluster.join("a")
    b = await cluster.join("b")
    before = await cluster.until_counts(a=1, b=1)
    lease = before.consumers["b"].lease
    await cluster.store.put(cluster.group.consumer("b"), b"not what it was", lease=lease)
    await anyio.sleep(TTL / 2)
    assert b.ended is None
    assert (await cluster.state()).owned["b"] == before.owned["b"]
    b.crash()
    await cluster.until_counts(a=2, within=3 * TTL)


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_rule_8_in_exclusive_an_owner_is_dead_only_when_its_lease_is_over(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    before = await cluster.until_counts(a=1)
    b = await cluster.join("b")
    lease = before.consumers["a"].lease
    a.crash()
    await cluster.store.keep_alive(lease)
    await cluster.store.delete(cluster.group.consumer("a"))
    await anyio.sleep(cluster.ttl / 2)
    assert (await cluster.owners())[tp(0)] == "a"
    await b.until("owns", lambda c: tp(0) in c.owned, within=3 * cluster.ttl)
    remaining = await cluster.store.remaining(lease)
    assert type(remaining).__name__ == "LeaseGone"


async def test_rule_8_a_lease_is_revoked_only_after_the_gates_were_reported_closed(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    assert await a.deregister() is False
    assert "a" in (await cluster.state()).consumers
    await a.deregister(gates_closed=True)
    assert "a" not in (await cluster.state()).consumers


# --- 12: cancel by replacing -------------------------------------------------------------------------------------


async def test_rule_12_an_abandoned_move_reaffirms_its_owner_with_the_next_epoch_in_one_write(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    await cluster.set_options(warming_timeout=1.0)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    handoff = (await cluster.state()).handoffs[moving]
    assert handoff.record.cause is Cause.JOINED
    await b.until("told that it is not wanted", lambda c: not c.to_warm)
    await a.until("told again that it owns", lambda c: c.owned[moving] == 2)
    events = await cluster.history(handoff.mod_revision)
    gone = next(e for e in events if not isinstance(e, PutEvent) and e.key == cluster.group.handoff(moving))
    assert not isinstance(gone, PutEvent)
    together = [e.entry for e in events if isinstance(e, PutEvent) and e.entry.mod_revision == gone.mod_revision]
    (put,) = [entry for entry in together if entry.key == cluster.group.assignment(moving)]
    record, _ = decode(Assignment, put.value)
    assert (record.owner, record.epoch) == ("a", 2)
