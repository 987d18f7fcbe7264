"""Loads from the consumers to the plan: by any instance, in few writes, past a change of leader, only as advice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from assigner.api import LoadReceipt, LoadReport, TopicLoads, Weights
from assigner.core.group import GroupState
from assigner.core.loads.records import BLOCK, read
from assigner.core.loads.weights import LoadSettings
from assigner.errors import InvalidInput, NotRegistered, UnknownTopic
from assigner.instance import Instance
from assigner.leader.history import read_history
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Loads, decode, encode
from assigner.store import Found, Put, Store
from assigner.strategies.sticky_balanced import strategy as sticky_balanced
from assigner.strategy import FloatArray, Problem, Solution
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, QUICK, Cluster, tp
from tests.support.faulty_stores import NotingStore
from tests.support.stepped_consumer import SteppedConsumer

SLOW = LoadSettings()
FAST = LoadSettings(interval=0.3, smoothing=0.2, stale_after=60.0, rebalance_interval=0.5)
"""For a store that keeps real time."""
BY_LOAD = msgspec.structs.replace(QUICK, use_loads=True)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=BY_LOAD)]


class Weighing:
    """`sticky_balanced`, with the problems it was given kept for a look."""

    name = "sticky_balanced"

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def assign(self, problem: Problem) -> Solution:
        self.problems.append(problem)
        return sticky_balanced.assign(problem)

    @property
    def weights(self) -> list[FloatArray | None]:
        return [problem.topics.weight for problem in self.problems]


@pytest.fixture(autouse=True)
def strategy(monkeypatch: pytest.MonkeyPatch) -> Weighing:
    """What every group plans by here."""
    weighing = Weighing()
    monkeypatch.setattr("assigner.leader.coordinator.prepare", lambda name: weighing)
    return weighing


async def report(
    consumer: SteppedConsumer, loads: dict[int, float], *, node: float | None = None, topic: str = "t"
) -> LoadReceipt:
    assert consumer.instance is not None
    told = TopicLoads(topic, tuple(loads), tuple(loads.values()))
    return await consumer.instance.members.report_load(
        GROUP, consumer.name, consumer.session, LoadReport((told,) if loads else (), node)
    )


async def report_own(consumer: SteppedConsumer, load: Callable[[TopicPartition], float]) -> None:
    await report(consumer, {one.partition: load(one) for one in consumer.owned})


async def stored(cluster: Cluster, key: str) -> Loads | None:
    found = await cluster.store.get(key)
    return decode(Loads, found.entry.value)[0] if isinstance(found, Found) else None


async def written(cluster: Cluster, topic: str = "t") -> dict[int, float]:
    """Loads as they are stored."""
    record = await stored(cluster, cluster.keys.topic_loads(GROUP, topic))
    loads = read(record).at(cluster.clock.wall()).tolist() if record else []
    return {number: load for number, load in enumerate(loads) if load == load}


async def until_written(cluster: Cluster, holds: Callable[[dict[int, float]], bool], within: float = 200.0) -> None:
    async def check() -> bool:
        return holds(await written(cluster))

    await eventually(check, within=within, every=0.1, what="loads are written")


async def causes(cluster: Cluster) -> list[Cause]:
    return [move.cause for move in await read_history(cluster.store, cluster.keys.history(GROUP))]


def owns_hot(state: GroupState) -> set[TopicPartition]:
    """All that the owner of partition 0 owns."""
    held = state.assignments[tp(0)]
    return state.owned[held.record.owner]


# --- from consumers to the record --------------------------------------------------------------------------------


async def test_reports_to_two_instances_end_in_one_record(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=8)
    first = await cluster.start_instance("i1", loads=FAST)
    second = await cluster.start_instance("i2", loads=FAST)
    a = await cluster.join("a", first)
    b = await cluster.join("b", second)
    await cluster.until_counts(a=4, b=4)
    await report(a, {one.partition: 1.0 for one in a.owned}, node=0.5)
    await report(b, {one.partition: 1.5 for one in b.owned}, node=0.75)
    await until_written(cluster, lambda loads: len(loads) == 8)
    assert await written(cluster) == {
        **{one.partition: 1.0 for one in a.owned},
        **{one.partition: 1.5 for one in b.owned},
    }

    async def nodes() -> set[str]:
        record = await stored(cluster, cluster.keys.node_loads(GROUP))
        return set(record.nodes) if record else set()

    await eventually(lambda: _is(nodes, {"a", "b"}), what="both nodes are written")


async def _is(read: Callable[[], Any], wanted: Any) -> bool:
    return bool(await read() == wanted)


@pytest.mark.parametrize("often", [1.0, 15.0])
async def test_however_often_consumers_report_a_record_is_written_once_per_interval(
    cluster: Cluster, often: float
) -> None:
    """Loads that double and halve all the time are worth a write each time; each instance makes one per interval."""
    await cluster.add_topic(partitions=8)
    stores: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        stores.append(NotingStore(store))
        return stores[-1]

    consumers = []
    for number in range(2):
        instance = await cluster.start_instance(f"i{number}", wrap=wrap)
        consumers.append(await cluster.join(f"c{number}", instance))
    await cluster.until_counts(c0=4, c1=4)
    await cluster.set_options(paused=True)
    load, passed = 1.0, 0.0
    while passed < 1200:
        load = 5.0 if load == 1.0 else 1.0
        for consumer in consumers:
            await report(consumer, {one.partition: load for one in consumer.owned}, node=load)
        await anyio.sleep(often)
        passed += often
    key = cluster.keys.topic_loads(GROUP, "t")
    for store in stores:
        puts = [one.key for _, operations in store.transactions for one in operations if isinstance(one, Put)]
        # A conflict with the other instance costs a try more.
        assert 1 <= puts.count(key) <= 2 * 1200 / SLOW.interval
        assert sum(one.startswith(cluster.keys.loads(GROUP)) for one in puts) <= 2 * 2 * 1200 / SLOW.interval


async def test_loads_that_do_not_change_cost_two_writes_in_the_time_they_count(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=8)
    for _ in range(240):
        await report_own(a, lambda one: 1.0 + one.partition)
        await anyio.sleep(15)
    found = await cluster.store.get(cluster.keys.topic_loads(GROUP, "t"))
    assert isinstance(found, Found)
    assert 10 <= found.entry.version <= 3600 / (SLOW.stale_after / 2) + 1


async def test_only_the_owners_word_counts_for_a_partition(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a, b = await cluster.join("a"), await cluster.join("b")
    await cluster.until_counts(a=4, b=4)
    everything = dict.fromkeys(range(8), 99.0)
    receipt = await report(a, everything)
    assert receipt.taken == 4
    await until_written(cluster, bool)
    assert await written(cluster) == {one.partition: 99.0 for one in a.owned}
    assert (await report(b, {one.partition: 1.0 for one in a.owned})).taken == 0


async def test_a_session_that_is_not_the_registered_one_is_refused(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    with pytest.raises(NotRegistered):
        await instance.members.report_load(GROUP, "a", "another", LoadReport())
    with pytest.raises(NotRegistered):
        await instance.members.report_load(GROUP, "nobody", "", LoadReport())
    assert (await report(a, {0: 1.0})).taken == 1


async def test_unknown_topics_and_partitions_past_the_count_are_left_out(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    assert (await report(a, {0: 1.0, 2: 1.0, 999_999_999: 1.0})).taken == 1
    assert (await report(a, {0: 1.0}, topic="unknown")).taken == 0


async def test_a_report_says_when_the_next_one_is_of_use(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    assert (await report(a, {})).next_report == SLOW.interval / 4


async def test_loads_are_written_when_the_store_is_back(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await report(a, {0: 1.0, 1: 2.0})
    faults.freeze()
    await anyio.sleep(SLOW.interval + 1)
    assert await written(cluster) == {}
    faults.thaw()
    await until_written(cluster, lambda loads: loads == {0: 1.0, 1: 2.0})


async def test_a_record_that_cannot_be_read_is_left_alone_and_the_others_are_written(cluster: Cluster) -> None:
    await cluster.add_topic("t", partitions=1)
    await cluster.add_topic("u", partitions=1)
    key = cluster.keys.topic_loads(GROUP, "t")
    await cluster.store.put(key, b"rubbish")
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await report(a, {0: 1.0}, topic="t")
    await report(a, {0: 2.0}, topic="u")

    async def is_written() -> bool:
        return await written(cluster, "u") == {0: 2.0}

    await eventually(is_written, within=200)
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    assert found.entry.value == b"rubbish"


async def test_a_large_topic_is_kept_in_blocks(cluster: Cluster) -> None:
    await cluster.set_options(paused=True)
    await cluster.add_topic(partitions=BLOCK + 10)
    instance = await cluster.start_instance()
    await instance.operations.set_loads(GROUP, [Weights("t", BLOCK - 1, (1.0, 2.0, 3.0))], 60, keep_others=False)
    described = await instance.operations.loads(GROUP, 10)
    assert [(one.tp.partition, one.load) for one in described.heaviest] == [
        (BLOCK + 1, 3.0),
        (BLOCK, 2.0),
        (BLOCK - 1, 1.0),
    ]
    assert await stored(cluster, cluster.keys.topic_loads(GROUP, "t", 1)) is not None


# --- from the record to the plan ---------------------------------------------------------------------------------


async def test_plans_go_by_the_reported_loads_where_the_group_asks_for_it(
    any_cluster: Cluster, strategy: Weighing
) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=8)
    instance = await cluster.start_instance(loads=FAST)
    a, b = await cluster.join("a"), await cluster.join("b")
    await cluster.until_counts(a=4, b=4)
    assert strategy.weights[-1] is None
    for consumer in (a, b):
        await report(consumer, {one.partition: 1.0 + one.partition for one in consumer.owned}, node=0.25)
    await eventually(lambda: strategy.weights[-1] is not None, what="a plan by load")
    assert strategy.weights[-1] == pytest.approx((1.0 + np.arange(8)) / 4.5)
    assert (await instance.operations.loads(GROUP, 3)).fallback == ""
    await instance.operations.rebalance(GROUP)
    await eventually(lambda: strategy.problems[-1].members.load is not None, what="a plan that knows the nodes")
    assert strategy.problems[-1].members.load == pytest.approx([0.25, 0.25])


async def test_a_group_that_does_not_ask_for_it_plans_by_counts(cluster: Cluster, strategy: Weighing) -> None:
    await cluster.set_options(use_loads=False)
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    await report_own(a, lambda one: 100.0 if one.partition == 0 else 1.0)
    await until_written(cluster, bool)
    await anyio.sleep(2 * SLOW.rebalance_interval)
    assert all(weight is None for weight in strategy.weights)
    assert "use_loads is off" in (await instance.operations.loads(GROUP, 3)).fallback


async def hot_group(cluster: Cluster, instance: Instance) -> list[SteppedConsumer]:
    """Twelve partitions on three consumers; the first partition weighs as much as six others."""
    await cluster.add_topic(partitions=12)
    consumers = [await cluster.join(name, instance) for name in ("a", "b", "c")]
    await cluster.until_counts(a=4, b=4, c=4)
    for consumer in consumers:
        await report_own(consumer, hot)
    return consumers


def hot(one: TopicPartition) -> float:
    return 6.0 if one.partition == 0 else 1.0


def jittery(turn: int, one: TopicPartition) -> float:
    return hot(one) * (1.04 if (turn + one.partition) % 2 else 0.96)


def hot_at(place: int, one: TopicPartition) -> float:
    return 50.0 if one.partition == place else 1.0


async def test_who_has_a_hot_partition_gives_others_away_for_loads_sake(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await hot_group(cluster, await cluster.start_instance(loads=FAST))
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs, within=200)
    assert sorted((await cluster.counts()).values()) == [1, 5, 6]
    await eventually(
        lambda: _is(lambda: _last(causes(cluster), 3), [Cause.LOAD] * 3), what="the moves are for load's sake"
    )


async def _last(moves: Any, count: int) -> list[Cause]:
    found: list[Cause] = await moves
    return found[-count:]


async def test_jitter_moves_nothing(cluster: Cluster, strategy: Weighing) -> None:
    consumers = await hot_group(cluster, await cluster.start_instance())
    before = await cluster.until(
        "the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs, within=200
    )
    plans = len([weight for weight in strategy.weights if weight is not None])
    for turn in range(200):
        for consumer in consumers:
            await report_own(consumer, partial(jittery, turn))
        await anyio.sleep(15)
    after = await cluster.state()
    assert {one: held.record.epoch for one, held in after.assignments.items()} == {
        one: held.record.epoch for one, held in before.assignments.items()
    }
    # Reconciling plans anew all the time, always by the weights that are in force.
    in_force = [weight for weight in strategy.weights if weight is not None]
    assert len(in_force) > plans + 10
    assert all(weight is in_force[-1] for weight in in_force[plans:])


async def test_loads_that_swing_are_followed_no_more_often_than_the_interval(
    cluster: Cluster, strategy: Weighing
) -> None:
    consumers = await hot_group(cluster, await cluster.start_instance())
    await until_written(cluster, bool)
    for turn in range(120):
        place = (turn // 8) % 12
        for consumer in consumers:
            await report_own(consumer, partial(hot_at, place))
        await anyio.sleep(15)
    seen = {id(weight) for weight in strategy.weights if weight is not None}
    assert 2 <= len(seen) <= 120 * 15 / SLOW.rebalance_interval + 2


async def test_stale_loads_are_given_up_for_counts(any_cluster: Cluster, strategy: Weighing) -> None:
    cluster = any_cluster
    brief = LoadSettings(interval=0.3, smoothing=0.2, stale_after=3.0, rebalance_interval=0.5)
    instance = await cluster.start_instance(loads=brief, reconcile_interval=0.5)
    await hot_group(cluster, instance)
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs)
    await cluster.until_counts(a=4, b=4, c=4)
    assert strategy.weights[-1] is None
    assert "less than half" in (await instance.operations.loads(GROUP, 3)).fallback


async def test_a_change_of_leader_keeps_the_loads_and_moves_nothing(any_cluster: Cluster, strategy: Weighing) -> None:
    cluster = any_cluster
    first = await cluster.start_instance("i1", loads=FAST)
    second = await cluster.start_instance("i2", loads=FAST, leads=False)
    consumers = await hot_group(cluster, second)
    before = await cluster.until(
        "the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs, within=200
    )
    assert consumers[0].instance is second
    planned = len(strategy.problems)
    third = await cluster.start_instance("i3", loads=FAST)
    await cluster.stop_instance("i1")
    assert first.draining
    await eventually(lambda: GROUP in third.coordinators.active, within=60, what="another leader")
    await eventually(lambda: len(strategy.problems) > planned, what="its plan")
    assert all(weight is not None for weight in strategy.weights[planned:])
    after = await cluster.state()
    assert {one: held.record.epoch for one, held in after.assignments.items()} == {
        one: held.record.epoch for one, held in before.assignments.items()
    }


async def test_turning_it_off_goes_back_to_counts_and_on_to_loads(cluster: Cluster, strategy: Weighing) -> None:
    await hot_group(cluster, await cluster.start_instance())
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs, within=200)
    await cluster.set_options(use_loads=False)
    await cluster.until_counts(a=4, b=4, c=4)
    await cluster.set_options(use_loads=True)
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs, within=200)


# --- operators ---------------------------------------------------------------------------------------------------


async def test_published_weights_are_planned_by_and_count_for_as_long_as_was_said(
    any_cluster: Cluster, strategy: Weighing
) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=12)
    instance = await cluster.start_instance(loads=FAST)
    for name in ("a", "b", "c"):
        await cluster.join(name)
    await cluster.until_counts(a=4, b=4, c=4)
    count = await instance.operations.set_loads(
        GROUP, [Weights("t", 0, (6.0,)), Weights("t", 1, (1.0,) * 11)], 3600, keep_others=False
    )
    assert count == 12
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs)
    record = await stored(cluster, cluster.keys.topic_loads(GROUP, "t"))
    assert record is not None
    assert read(record).at(record.at + 3590).tolist() == [6.0] + [1.0] * 11
    assert np.isnan(read(record).at(record.at + 3610)).all()


async def test_publishing_replaces_what_was_known_of_a_topic_unless_told_otherwise(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    publish = instance.operations.set_loads
    await publish(GROUP, [Weights("t", 0, (1.0, 2.0, 3.0, 4.0))], 60, keep_others=False)
    await publish(GROUP, [Weights("t", 1, (9.0,))], 60, keep_others=True)
    assert await written(cluster) == {0: 1.0, 1: 9.0, 2: 3.0, 3: 4.0}
    await publish(GROUP, [Weights("t", 3, (7.0,))], 60, keep_others=False)
    assert await written(cluster) == {3: 7.0}


async def test_publishing_takes_the_place_of_a_record_that_cannot_be_read(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.store.put(cluster.keys.topic_loads(GROUP, "t"), b"rubbish")
    instance = await cluster.start_instance()
    assert len((await instance.operations.loads(GROUP, 3)).unreadable) == 1
    await instance.operations.set_loads(GROUP, [Weights("t", 0, (1.0,))], 60, keep_others=False)
    assert await written(cluster) == {0: 1.0}


async def test_weights_of_what_is_not_there_are_refused(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    with pytest.raises(UnknownTopic, match="'u'"):
        await instance.operations.set_loads(GROUP, [Weights("u", 0, (1.0,))], 60, keep_others=False)
    with pytest.raises(InvalidInput, match="partition 2"):
        await instance.operations.set_loads(GROUP, [Weights("t", 1, (1.0, 1.0))], 60, keep_others=False)
    assert await stored(cluster, cluster.keys.topic_loads(GROUP, "t")) is None


async def test_fields_of_others_in_a_record_survive_a_write(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    key = cluster.keys.topic_loads(GROUP, "t")
    await cluster.store.put(key, encode(Loads(at=1, topic="t"), {"note": "mine"}))
    instance = await cluster.start_instance()
    await instance.operations.set_loads(GROUP, [Weights("t", 0, (1.0,))], 60, keep_others=True)
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    assert decode(Loads, found.entry.value)[1] == {"note": "mine"}


async def test_the_description_tells_the_heaviest_partitions_and_who_carries_what(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    consumers = await hot_group(cluster, instance)
    await report(consumers[0], {}, node=0.9)
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs, within=200)
    described = await instance.operations.loads(GROUP, 2)
    assert (described.used, described.partitions, described.known) == (True, 12, 12)
    assert [one.tp.partition for one in described.heaviest] == [0, 1]
    assert described.heaviest[0].share == pytest.approx(6 / 17)
    assert len(described.busiest) == 2
    busy = {one.consumer: one.busy for one in (await instance.operations.loads(GROUP, 3)).busiest}
    assert busy["a"] == pytest.approx(0.9)
    assert np.isnan(busy["b"])
