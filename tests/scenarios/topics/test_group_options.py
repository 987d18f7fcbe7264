"""A group's options at work: debounce, limits, pause, rebalance, co-partitioning, capacity, strategy."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from assigner.core.group import GroupState
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, GroupOptions, Handoff, Step, decode
from assigner.store import PutEvent
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time


# --- debounce ----------------------------------------------------------------------------------------------------


async def test_a_debounce_window_is_not_extended_by_what_happens_in_it(cluster: Cluster) -> None:
    """A consumer that joins every half second keeps nobody waiting for ever."""
    await cluster.set_options(debounce=2.0)
    await cluster.add_topic(partitions=12)
    await cluster.start_instance()
    began = cluster.clock.now()
    for number in range(6):
        await cluster.join(f"c{number}")
        await anyio.sleep(0.5)
        if (await cluster.state()).assignments:
            break
    assert (await cluster.state()).assignments
    assert cluster.clock.now() - began <= 3.1


async def test_what_happens_within_one_window_takes_one_plan(cluster: Cluster) -> None:
    await cluster.set_options(debounce=2.0)
    await cluster.add_topic(partitions=12)
    await cluster.start_instance()
    await cluster.join("c0")
    first = await cluster.until_counts(c0=12)
    for number in range(1, 6):
        await cluster.join(f"c{number}")
    state = await cluster.until_counts(**{f"c{number}": 2 for number in range(6)})
    assert state.plan.generation == first.plan.generation + 1


# --- limits ------------------------------------------------------------------------------------------------------


async def most_in_flight(cluster: Cluster, counted: str = "") -> int:
    """By the store's own history: how many handoffs there ever were at a time (of one target, in the step warming)."""
    now: dict[str, Handoff] = {}
    most = 0
    for event in await cluster.history():
        key = event.entry.key if isinstance(event, PutEvent) else event.key
        if not key.startswith(cluster.group.handoffs):
            continue
        if isinstance(event, PutEvent):
            now[key] = decode(Handoff, event.entry.value)[0]
        else:
            now.pop(key, None)
        if counted:
            most = max(most, sum(h.new_owner == counted and h.at is Step.WARMING for h in now.values()))
        else:
            most = max(most, len(now))
    return most


async def test_at_most_so_many_handoffs_are_in_flight_and_the_rest_follows(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(max_concurrent_handoffs=3)
    await cluster.add_topic(partitions=20)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=20)
    await cluster.join("b")
    await cluster.until_counts(a=10, b=10)
    assert await most_in_flight(cluster) == 3


async def test_a_consumer_warms_at_most_so_many_partitions_at_a_time(cluster: Cluster) -> None:
    await cluster.set_options(warm_concurrency=2)
    await cluster.add_topic(partitions=20)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=20)
    slow = await cluster.join("b", answers_warm=False)
    await slow.until("warms two", lambda c: len(c.to_warm) == 2)
    await cluster.join("c")
    # One that is slow holds nobody else up: `c` gets all of its share meanwhile.
    await cluster.until("c has its share", lambda s: len(s.owned["c"]) >= 6)
    assert len(slow.to_warm) == 2
    slow.answers_warm = True
    await slow.ready(*slow.to_warm)
    await cluster.until("everybody has its share", lambda s: not s.handoffs and _spread(s) <= 1)
    assert await most_in_flight(cluster, "b") == 2
    assert await most_in_flight(cluster, "c") <= 2


def _spread(state: GroupState) -> int:
    counts = [len(tps) for tps in state.owned.values() if tps]
    return max(counts) - min(counts)


# --- pause and rebalance -----------------------------------------------------------------------------------------


async def test_while_paused_nothing_is_planned_and_what_is_in_flight_ends(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=4)
    await cluster.join("b")
    await a.until("two are flipped", lambda c: len(c.to_release) == 2)
    await instance.operations.set_options("g", {"paused": True})
    await a.release(*a.to_release)
    await cluster.until_counts(a=2, b=2)
    c = await cluster.join("c")
    await anyio.sleep(100)
    assert (await cluster.counts()) == {"a": 2, "b": 2}
    assert not c.to_warm
    assert (await instance.operations.describe("g")).summary.paused
    a.answers_release = True
    await instance.operations.set_options("g", {"paused": False})
    await cluster.until("c has its share", lambda s: len(s.owned["c"]) == 1 and not s.handoffs)


async def test_a_pause_stops_a_rebalance_that_has_hardly_begun(cluster: Cluster) -> None:
    await cluster.set_options(warm_concurrency=2)
    await cluster.add_topic(partitions=20)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=20)
    b = await cluster.join("b", answers_warm=False)
    await b.until("two of ten have begun", lambda c: len(c.to_warm) == 2)
    await instance.operations.set_options("g", {"paused": True})
    b.answers_warm = True
    await b.ready(*b.to_warm)
    await cluster.until_counts(a=18, b=2)
    await anyio.sleep(100)
    await cluster.until_counts(a=18, b=2)
    await instance.operations.set_options("g", {"paused": False})
    await cluster.until_counts(a=10, b=10)


async def test_a_target_that_leaves_while_paused_leaves_the_partition_with_its_owner(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    await instance.operations.set_options("g", {"paused": True})
    await b.deregister(gates_closed=True)
    await cluster.until_counts(a=2)
    assert sorted(a.owned.values()) == [1, 2]


async def test_a_rebalance_asked_for_is_not_kept_waiting_by_the_debounce(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=4)
    await instance.operations.set_options("g", {"debounce": 50.0})
    await anyio.sleep(60)
    await cluster.join("b")
    asked = cluster.clock.now()
    await instance.operations.rebalance("g")
    await cluster.until_counts(a=2, b=2)
    assert cluster.clock.now() - asked < 5


async def test_a_rebalance_of_a_balanced_group_writes_nothing(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    await cluster.join("a")
    before = await cluster.until("planned", lambda s: s.plan.generation == 1)
    await instance.operations.rebalance("g")
    await anyio.sleep(1)
    after = await cluster.state()
    assert {p: h.mod_revision for p, h in after.assignments.items()} == {
        p: h.mod_revision for p, h in before.assignments.items()
    }
    assert after.plan.generation == before.plan.generation


async def test_moves_say_why_they_were_made(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=4)
    b = await cluster.join("b")
    await cluster.until_counts(a=2, b=2)
    await instance.operations.set_topic("g", "t", 6)
    await cluster.until_counts(a=3, b=3)
    await b.deregister()
    await cluster.until_counts(a=6)
    await cluster.join("c")
    await cluster.until_counts(a=3, c=3)
    await cluster.consumers["c"].deregister(gates_closed=True)
    await cluster.until_counts(a=6)
    await anyio.sleep(3)
    causes = Counter(move.cause for move in (await instance.operations.describe("g")).history)
    assert causes == {Cause.JOINED: 4 + 2 + 3, Cause.TOPIC_GREW: 2, Cause.DRAINING: 3, Cause.LEFT: 3}


# --- who gets what -----------------------------------------------------------------------------------------------


async def test_copartitioned_topics_are_owned_and_moved_as_one(cluster: Cluster) -> None:
    await cluster.set_options(copartitioned=(("left", "right"),))
    for topic in ("left", "right", "alone"):
        await cluster.add_topic(topic, partitions=4)
    await cluster.start_instance()
    for name in ("a", "b", "c"):
        await cluster.join(name)
    state = await cluster.until("everything is owned", lambda s: len(s.assignments) == 12 and not s.handoffs)
    for number in range(4):
        pair = {state.assignments[TopicPartition(topic, number)].record.owner for topic in ("left", "right")}
        assert len(pair) == 1
    history = [e.entry for e in await cluster.history() if isinstance(e, PutEvent) and "/assignments/" in e.entry.key]
    for number in range(4):
        left, right = (
            [e.mod_revision for e in history if e.key == cluster.group.assignment(TopicPartition(topic, number))]
            for topic in ("left", "right")
        )
        assert left == right, f"partition {number} was torn apart"


async def test_topics_of_a_set_that_differ_in_size_move_by_themselves(cluster: Cluster) -> None:
    await cluster.set_options(copartitioned=(("left", "right"),))
    await cluster.add_topic("left", partitions=2)
    await cluster.add_topic("right", partitions=3)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=5)


async def test_capacity_sets_the_share(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=12)
    await cluster.start_instance()
    await cluster.join("a", capacity=1.0)
    await cluster.join("b", capacity=3.0)
    await cluster.until_counts(a=3, b=9)


async def test_a_subscriber_gets_its_topics_only(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic("x", partitions=4)
    await cluster.add_topic("y", partitions=4)
    await cluster.start_instance()
    await cluster.join("a", topics=("x",))
    await cluster.join("b", topics=("y",))
    await cluster.join("c")
    state = await cluster.until("everything is owned", lambda s: len(s.assignments) == 8 and not s.handoffs)
    assert {p.topic for p in state.owned["a"]} <= {"x"}
    assert {p.topic for p in state.owned["b"]} <= {"y"}
    assert all(state.owned.values())


async def test_a_topic_nobody_wants_stays_unowned(cluster: Cluster) -> None:
    await cluster.add_topic("x", partitions=2)
    await cluster.add_topic("y", partitions=2)
    instance = await cluster.start_instance()
    await cluster.join("a", topics=("x",))
    await cluster.until_counts(a=2)
    assert (await instance.operations.describe("g")).summary.unowned == 2
    await cluster.join("b")
    await cluster.until("y is owned", lambda s: sum(p.topic == "y" for p in s.owned["b"]) == 2)


async def test_the_strategy_is_chosen_by_name(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=64)
    instance = await cluster.start_instance()
    for name in ("a", "b", "c"):
        await cluster.join(name)
    await cluster.until("owned", lambda s: len(s.assignments) == 64 and not s.handoffs)
    before = await cluster.owners()
    await instance.operations.set_options("g", {"strategy": "jump_hash"})
    state = await cluster.until("moved by hash", lambda s: s.plan.generation >= 2 and not s.handoffs, within=30)
    after = {p: held.record.owner for p, held in state.assignments.items()}
    assert after != before
    with pytest.raises(InvalidInput, match="no strategy named 'best'"):
        await instance.operations.set_options("g", {"strategy": "best"})


async def test_a_strategy_that_is_not_installed_stops_planning_and_nothing_else(cluster: Cluster) -> None:
    """Written into the store by somebody whose installation has it."""
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    await cluster.set_options(strategy="elsewhere_installed")
    await cluster.join("b")
    await anyio.sleep(30)
    assert (await cluster.counts()) == {"a": 4}
    assert a.ended is None
    await instance.operations.set_options("g", {"strategy": "sticky_balanced"})
    await cluster.until_counts(a=2, b=2)


async def test_options_are_checked_and_what_is_not_mentioned_stays(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    await instance.operations.set_options("g", {"debounce": 3.0}, create=True)
    options = await instance.operations.set_options("g", {"warm_concurrency": 7})
    assert (options.debounce, options.warm_concurrency) == (3.0, 7)
    for wrong, said in (
        ({"debounse": 1}, "did you mean 'debounce'"),
        ({"debounce": -1}, "0 or more"),
        ({"warm_concurrency": 0}, "at least 1"),
        ({"handoff_mode": "sometimes"}, "handoff_mode"),
        ({"copartitioned": [["x", "y"], ["y"]]}, "two co-partition sets"),
        ({"rebalance_requests": 5}, "not known"),
    ):
        with pytest.raises(InvalidInput, match=said):
            await instance.operations.set_options("g", wrong)
    assert (await instance.operations.describe("g")).options == options
    assert isinstance(options, GroupOptions)
