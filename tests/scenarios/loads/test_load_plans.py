"""Loads from the record to the plan: steady, only as advice, and past a change of leader."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest

from assigner.core.loads.weights import LoadSettings
from assigner.leader.history import read_history
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.loads import (
    BY_LOAD,
    FAST,
    SLOW,
    Weighing,
    hot,
    hot_group,
    owns_hot,
    reads_as,
    report,
    report_own,
    until_written,
)

pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=BY_LOAD)]


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


async def causes(cluster: Cluster) -> list[Cause]:
    return [move.cause for move in await read_history(cluster.store, cluster.keys.history(GROUP))]


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
        lambda: reads_as([Cause.LOAD] * 3, lambda: _last(causes(cluster), 3)), what="the moves are for load's sake"
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


async def test_stale_loads_make_plans_unweighted(any_cluster: Cluster, strategy: Weighing) -> None:
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
