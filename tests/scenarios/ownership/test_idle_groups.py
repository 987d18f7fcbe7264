"""A group that nobody is in costs its leader next to nothing, and is led the moment that somebody comes."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from assigner.instance import Instance
from assigner.leader.coordinator import IDLE_AFTER
from assigner.model.records import Cause
from assigner.storage.groups import make_known
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster

pytestmark = pytest.mark.virtual_time


def leads(instance: Instance, group: str = GROUP) -> bool:
    return instance.leadership is not None and group in instance.leadership.led


async def test_a_group_without_consumers_is_led_without_a_coordinator(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    await eventually(lambda: leads(instance) and GROUP in instance.coordinators.leading, within=30)
    assert GROUP not in instance.coordinators.active
    assert f'assigner_group_leader{{group="{GROUP}"}} 1.0' in instance.metrics.render_here().decode()
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=2)
    assert GROUP in instance.coordinators.active

    async def in_history() -> bool:
        # Which is written a little after the moves.
        moves = (await instance.operations.describe(GROUP)).history
        return [move.cause for move in moves] == [Cause.JOINED] * 2

    await eventually(in_history, within=30, what="both moves in the history, because a joined")
    assert a.ended is None


async def test_what_is_owned_when_a_term_begins_wants_a_coordinator_at_once(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_faulty("i1")
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    a.crash()
    cluster.crash_instance("i1")
    second = await cluster.start_instance("i2")
    await eventually(lambda: GROUP in second.coordinators.active, within=120)
    await cluster.until("what nobody came back for is given up", lambda state: not state.assignments, within=300)


async def test_a_group_that_all_consumers_left_goes_idle_and_is_woken_again(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await a.deregister(gates_closed=True)
    a.crash()
    await anyio.sleep(2 * cluster.ttl + IDLE_AFTER + 60)
    assert GROUP not in instance.coordinators.active
    assert leads(instance)
    await cluster.join("b")
    await cluster.until_counts(b=2)


async def test_many_idle_groups_cost_few_tasks_and_are_resigned_in_time(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await cluster.start_instance()
    before = len(asyncio.all_tasks())
    for number in range(300):
        await make_known(cluster.store, cluster.keys, f"g{number}")
    await eventually(lambda: instance.leadership is not None and len(instance.leadership.led) == 300, within=120)
    assert (len(asyncio.all_tasks()) - before) / 300 <= 10
    await instance.stop_leading()
    assert instance.leadership is not None
    assert not instance.leadership.led
    assert "handover_timed_out" not in caplog.text
