"""An attached instance, as a gateway's process is: it serves members of every group and leads none."""

from __future__ import annotations

import pytest

from assigner.errors import StoreReplaced
from assigner.instance import Instance
from assigner.storage.incarnation import CHECK_SECONDS
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time


class Attached:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.ended: Exception | None = None

    async def start(self, name: str) -> Instance:
        await self._cluster.start_faulty(name, leads=False)
        self.instance = self._cluster.instances[name]
        self._cluster.tasks.start_soon(self._attach)
        await self.instance.wait_ready()
        return self.instance

    async def _attach(self) -> None:
        try:
            await self.instance.attach()
        except StoreReplaced as error:
            self.ended = error


async def test_it_serves_members_and_leads_nothing(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic("t", 4)
    gateway = await Attached(cluster).start("gateway")
    assert gateway.problems() == []
    member = await cluster.join("a", gateway)
    assert member.owned == {}, "without a leader nobody gets anything"

    leader = await cluster.start_instance("leader")
    await cluster.join("b", leader)
    await cluster.until_counts(a=2, b=2)
    assert leader.leadership is not None
    assert leader.leadership.statistics().instances == 1, "it is not one of those that could lead"
    assert gateway.leadership is None
    await cluster.stop_instance("leader")
    await cluster.until("the group is nobody's", lambda state: state.leader is None)


async def test_it_is_not_ready_while_the_store_does_not_answer(any_cluster: Cluster) -> None:
    cluster = any_cluster
    gateway = await Attached(cluster).start("gateway")
    fault = cluster.faults["gateway"].inject(Refuse(), kinds=["get"], times=None)
    await eventually(lambda: gateway.problems() == ["the store does not answer"], within=cluster.patience)
    assert gateway.failures() == []
    fault.remove()
    await eventually(lambda: gateway.problems() == [], within=cluster.patience)


async def test_it_ends_when_the_stores_data_was_replaced(any_cluster: Cluster) -> None:
    cluster = any_cluster
    attached = Attached(cluster)
    await attached.start("gateway")
    await cluster.store.delete(cluster.keys.incarnation)
    await eventually(lambda: attached.ended is not None, within=2 * CHECK_SECONDS + cluster.patience)


async def test_a_group_that_it_made_known_is_led_by_an_instance_that_can(any_cluster: Cluster) -> None:
    cluster = any_cluster
    gateway = await Attached(cluster).start("gateway")
    await gateway.operations.set_topic("g", "t", 3)
    await cluster.join("a", gateway)
    await cluster.start_instance("leader")
    await cluster.until_counts(a=3)
