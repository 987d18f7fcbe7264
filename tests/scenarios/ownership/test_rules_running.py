"""The numbered safety rules about leading, watching and limits: each as a test that fails when it is switched off.

The others are in `test_rules_ownership.py` and `test_rules_clients.py`; `tests/chaos/ablation/ablations.py` switches
all of them off.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from assigner.core.coordination.machine import Coordination
from assigner.core.group import GroupState
from assigner.core.planning.request import OwnerTarget
from assigner.core.writes import Purpose, Write
from assigner.errors import LimitReached
from assigner.model.keys import AssignmentKey, HandoffKey, PlanKey, TopicPartition
from assigner.model.records import Assignment, Consumer, LeaderRecord, Plan, TopicConfig, decode, encode
from assigner.server import ServerSettings
from assigner.storage import batch_writer
from assigner.storage import mirror as mirroring
from assigner.storage.batch_writer import BatchWriter
from assigner.store import (
    Absent,
    Conflict,
    CreateRevisionIs,
    DeleteEvent,
    Entry,
    Found,
    LeaseGone,
    Limits,
    Put,
    PutEvent,
    Store,
)
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


# --- 11: one stuck partition delays only itself ------------------------------------------------------------------


async def test_rule_11_a_stuck_partition_stays_on_its_way_and_the_rest_is_planned_around_it(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=6)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=6)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm three", lambda c: len(c.to_warm) == 3)
    stuck, *others = sorted(b.to_warm)
    await b.ready(*others)
    stuck_handoff = await cluster.handoff(stuck)
    b.answers_warm = True
    b.to_warm.clear()
    await cluster.join("c")
    state = await cluster.until(
        "everybody else is served",
        lambda s: set(s.handoffs) == {stuck} and len(s.owned["c"]) == 2,
        within=10,
    )
    # It counts as the target's already: two each, with the one on its way.
    assert (len(state.owned["a"]), len(state.owned["b"])) == (3, 1)
    assert state.handoffs[stuck].record == stuck_handoff


async def test_rule_11_copartitioned_topics_flip_as_one(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(copartitioned=(("left", "right"),))
    await cluster.add_topic("left", partitions=2)
    await cluster.add_topic("right", partitions=2)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=4)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm a pair", lambda c: len(c.to_warm) == 2)
    one, other = sorted(b.to_warm)
    assert one.partition == other.partition
    assert b.to_warm[one].handoff_id == b.to_warm[other].handoff_id
    await b.ready(one)
    await anyio.sleep(1.0)
    assert (await cluster.counts()) == {"a": 4}, "half a pair moved"
    await b.ready(other)
    state = await cluster.until_counts(a=2, b=2)
    assert state.assignments[one].mod_revision == state.assignments[other].mod_revision


# --- 13: transactions respect the store's limit ------------------------------------------------------------------


@pytest.mark.cluster(limits=Limits(operations=8))
async def test_rule_13_what_is_too_much_for_one_transaction_takes_several(cluster: Cluster) -> None:
    noting: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        noting.append(NotingStore(store))
        return noting[0]

    await cluster.set_options(copartitioned=(("left", "right"),))
    for topic in ("left", "right"):
        await cluster.add_topic(topic, partitions=20)
    await cluster.start_instance(wrap=wrap)
    await cluster.join("a")
    await cluster.until_counts(a=40)
    await cluster.join("b")
    state = await cluster.until_counts(a=20, b=20)
    assert max(len(compares) for compares, _ in noting[0].transactions) <= 8
    assert max(len(operations) for _, operations in noting[0].transactions) <= 8
    for number in range(20):
        pair = [state.assignments[TopicPartition(topic, number)] for topic in ("left", "right")]
        assert len({held.mod_revision for held in pair}) == 1, "a unit was torn apart"
        assert len({held.record.owner for held in pair}) == 1


# --- 14: nothing is unbounded ------------------------------------------------------------------------------------


async def test_rule_14_a_slow_consumers_outbox_holds_each_partition_once(cluster: Cluster) -> None:
    """It does not read while its one partition changes hands again and again."""
    await cluster.add_topic(partitions=1)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=1)
    mirror = instance.mirrors.get("g")
    assert mirror
    slow = Consumer(consumer_name="slow", session="s", ttl=TTL)
    unread = instance.registry.open(mirror, slow, AsyncExitStack(), anyio.lowlevel.checkpoint)
    for epoch in range(60, 110):
        record = Assignment(topic="t", partition=0, owner="slow", session="s", epoch=epoch)
        await cluster.store.put(cluster.group.assignment(tp(0)), encode(record))
    await mirror.wait_for((await cluster.state()).revision)
    assert unread.backlog == 1
    await unread.leave()


async def test_rule_14_streams_beyond_the_limit_are_refused(cluster: Cluster) -> None:
    await cluster.start_instance(grpc=ServerSettings(max_streams=2))
    await cluster.join("a")
    await cluster.join("b")
    with pytest.raises(LimitReached, match="2 streams"):
        await cluster.join("c")


async def test_rule_14_writes_beyond_the_limit_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_writer, "MAX_WAITING", 3)
    writer = BatchWriter(cluster.store)
    write = Write(Purpose.ACK, (), (Put("/k", b""),))
    for _ in range(3):
        writer.submit(write, lambda *_: None)
    with pytest.raises(LimitReached, match="3 writes"):
        writer.submit(write, lambda *_: None)


async def test_rule_14_groups_beyond_the_limit_are_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "MAX_GROUPS", 1)
    instance = await cluster.start_instance()
    await cluster.join("a")
    with pytest.raises(LimitReached, match="1 groups"):
        await instance.operations.set_options("another", {}, create=True)


# --- 15: no state is destroyed on doubt --------------------------------------------------------------------------


async def test_rule_15_an_unreadable_record_is_reported_left_out_and_left_alone(any_cluster: Cluster) -> None:
    cluster = any_cluster
    noting: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        noting.append(NotingStore(store))
        return noting[0]

    await cluster.add_topic(partitions=4)
    assignment, handoff = cluster.group.assignment(tp(0)), cluster.group.handoff(tp(1))
    await cluster.store.put(assignment, b'{"owner": 7}')
    await cluster.store.put(handoff, b"\xff")
    instance = await cluster.start_instance(wrap=wrap)
    await cluster.join("a")
    await cluster.until_counts(a=2)
    await cluster.join("b")
    state = await cluster.until_counts(a=1, b=1)
    assert set(state.assignments) == {tp(2), tp(3)}
    described = await instance.operations.describe("g")
    assert [line.split(":")[0] for line in described.unreadable] == [assignment, handoff]
    for key, value in ((assignment, b'{"owner": 7}'), (handoff, b"\xff")):
        found = await cluster.store.get(key)
        assert isinstance(found, Found)
        assert found.entry.value == value
    touched = {op.key for _, operations in noting[0].transactions for op in operations}
    assert not touched & {assignment, handoff, cluster.group.assignment(tp(1)), cluster.group.handoff(tp(0))}


async def test_rule_15_while_the_plan_cannot_be_read_nothing_is_planned(cluster: Cluster) -> None:
    """The plan holds the epoch floor: without it, an epoch could be given twice."""
    await cluster.add_topic(partitions=1)
    await cluster.store.put(cluster.group.plan, b"[]")
    await cluster.start_instance()
    a = await cluster.join("a")
    await anyio.sleep(2 * TTL)
    assert not a.owned
    await cluster.store.put(cluster.group.plan, encode(Plan(epoch_floor=5)))
    await a.until("owns", lambda c: c.owned == {tp(0): 6})


# --- 16: the plan is advisory ------------------------------------------------------------------------------------


class Core:
    """A coordination without a driver: the store is a dictionary, every write goes in at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.keys = cluster.group
        self.state = GroupState(cluster.group, cluster.options)
        self._revision = 0

    def put(self, key: str, record: Any) -> None:
        self._revision += 1
        entry = Entry(key, encode(record), self._revision, self._revision, 1)
        change = self.state.apply(PutEvent(entry))
        self.state.revision = self._revision
        if change and hasattr(self, "core"):
            self.core.observe(change, 0.0)

    def begin(self) -> Coordination:
        self.core = Coordination(self.state, term=1, ttl=TTL, now=0.0, offset_key=str)
        return self.core

    def decide(self, now: float) -> Any:
        decisions = self.core.decide(now, now)
        while decisions.more and not decisions.writes and not decisions.solve:
            decisions = self.core.decide(now, now)
        return decisions


async def test_rule_16_a_late_plan_gives_nothing_to_who_left_since(cluster: Cluster) -> None:
    scene = Core(cluster)
    scene.put(scene.keys.topic("t"), TopicConfig(topic="t", partition_count=2))
    scene.put(scene.keys.consumer("a"), Consumer(consumer_name="a", session="a1"))
    scene.put(scene.keys.consumer("b"), Consumer(consumer_name="b", session="b1"))
    core = scene.begin()
    asked = scene.decide(0.0)
    assert asked.solve
    gone = scene.state.apply(DeleteEvent(scene.keys.consumer("b"), 99))
    assert gone
    core.observe(gone, 0.0)
    core.solved([OwnerTarget(tp(0), "a"), OwnerTarget(tp(1), "b")])
    said = scene.decide(0.0)
    given = [move.new for write in said.writes for move in write.moves]
    assert given == ["a"]
    later = scene.decide(5.0)
    assert later.solve, "what the late plan could not do is planned again"


async def test_rule_16_a_late_plan_does_not_undo_a_takeover(cluster: Cluster) -> None:
    scene = Core(cluster)
    scene.put(scene.keys.topic("t"), TopicConfig(topic="t", partition_count=1))
    scene.put(scene.keys.consumer("a"), Consumer(consumer_name="a", session="a1"))
    core = scene.begin()
    assert scene.decide(0.0).solve
    scene.put(scene.keys.consumer("a"), Consumer(consumer_name="a", session="a2"))
    core.solved([OwnerTarget(tp(0), "a")])
    (write,) = scene.decide(0.0).writes
    (put,) = [op for op in write.operations if isinstance(op, Put)]
    assert decode(Assignment, put.value)[0].session == "a2"
    assert not any(isinstance(compare, Absent) and "consumers" in compare.key for compare in write.compares)


async def test_rule_16_the_generation_follows_the_plan_and_is_raised_only_by_a_change(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=300)
    instance = await cluster.start_instance()
    await cluster.join("a")
    state = await cluster.until("planned", lambda s: s.plan.generation == 1)
    assert len(state.owned["a"]) == 300
    events = await cluster.history()
    last = max(e.entry.mod_revision for e in events if isinstance(e, PutEvent) and "/assignments/" in e.entry.key)
    assert state.stored_plan
    assert state.stored_plan.mod_revision > last
    await instance.operations.rebalance("g")
    await anyio.sleep(1)
    assert (await cluster.plan()).generation == 1


async def test_rule_16_nobody_acts_by_the_generation(cluster: Cluster) -> None:
    """A plan record that is gone, with its generation, takes nothing from anybody."""
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    before = await cluster.until_counts(a=2)
    await cluster.store.delete(cluster.group.plan)
    await cluster.join("b")
    after = await cluster.until_counts(a=1, b=1)
    (kept,) = after.owned["a"]
    assert after.assignments[kept].record == before.assignments[kept].record
    assert a.ended is None
