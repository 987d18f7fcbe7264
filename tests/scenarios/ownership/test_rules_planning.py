"""The numbered safety rules about planning: each as a test that fails when the rule is switched off.

`tests/chaos/ablation/ablations.py` switches them off. The other rules are in files of other scenarios, named
`test_rules_...` too.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from assigner.core.coordination.machine import Coordination
from assigner.core.group import GroupState
from assigner.core.planning.request import OwnerTarget
from assigner.model.records import Assignment, Consumer, Plan, TopicConfig, decode, encode
from assigner.store import Absent, DeleteEvent, Entry, Found, Put, PutEvent, Store
from tests.support.cluster import TTL, Cluster, tp
from tests.support.faulty_stores import NotingStore

pytestmark = pytest.mark.virtual_time


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
