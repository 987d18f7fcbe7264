"""An instance that is stopped (SIGSTOP) while it serves a router, and goes on: the router finds the other one.

Two instances are processes on etcd, and the stopped one leads the group. A partition moves meanwhile, which takes the
router's ack at the other instance; what the stopped one still believes, when it goes on, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from assigner.client import Timing
from assigner.model.keys import TopicPartition
from assigner.routing import Router, Target
from assigner.testing.waiting import eventually
from tests.support.servers.etcd import RunningEtcd
from tests.support.service_processes import UP_WITHIN, Fleet, shown_on_failure

pytestmark = [pytest.mark.processes, pytest.mark.etcd]
PARTITIONS = 4
BEGINS_AT_THE_FIRST = "x"
"""A session that decides for the first of two addresses."""
QUICK = Timing(call_timeout=2.0, keepalive=1.0, keepalive_timeout=5.0, first_pause=0.05, longest_pause=0.5)


@pytest.fixture
def fleet(etcd_server: RunningEtcd, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    fleet = Fleet(etcd_server, tmp_path)
    try:
        with shown_on_failure(fleet, request):
            for name in "ab":
                fleet.add(name)
            fleet.make_whole()
            yield fleet
    finally:
        fleet.close()


class Traffic:
    """Requests to every partition, over and over, and where each went."""

    def __init__(self, router: Router, topic: str) -> None:
        self._router = router
        self._topic = topic
        self.sent: list[Target] = []

    async def run(self) -> None:
        while True:
            for partition in range(PARTITIONS):
                async with self._router.route_partition(self._topic, partition) as target:
                    self.sent.append(target)
            await anyio.sleep(0.02)

    def went_back(self) -> list[Target]:
        """Requests under an epoch that is lower than one before."""
        highest: dict[int, int] = {}
        found = []
        for target in self.sent:
            if target.epoch < highest.get(target.partition, 0):
                found.append(target)
            highest[target.partition] = max(target.epoch, highest.get(target.partition, 0))
        return found

    async def settled(self, owners: dict[TopicPartition, tuple[str, int]]) -> None:
        """Wait until a round of requests goes to these owners, and no later one elsewhere."""

        def goes_there() -> bool:
            last = {TopicPartition(one.topic, one.partition): (one.owner, one.epoch) for one in self.sent[-PARTITIONS:]}
            return last == owners

        await eventually(goes_there, within=UP_WITHIN, what="requests go to the owners")


async def test_a_router_goes_on_at_the_other_instance_while_its_own_is_stopped(fleet: Fleet) -> None:
    group = await anyio.to_thread.run_sync(fleet.group, PARTITIONS, "a")
    stopped = await anyio.to_thread.run_sync(fleet.leader, group)
    (other,) = fleet.others(stopped)
    await anyio.to_thread.run_sync(fleet.join, group, "w1", other)
    await anyio.to_thread.run_sync(lambda: fleet.wait_shared(group, "w1", partitions=PARTITIONS))

    def owners() -> dict[TopicPartition, tuple[str, int]]:
        return {tp: (held.owner, held.epoch) for tp, held in fleet.truth.assignments(group).items()}

    (topic,) = {tp.topic for tp in owners()}
    addresses = fleet.addresses(stopped)
    async with (
        Router(addresses, group, "r1", session=BEGINS_AT_THE_FIRST, timing=QUICK) as router,
        anyio.create_task_group() as tasks,
    ):
        assert router.statistics().address == fleet[stopped].address
        traffic = Traffic(router, topic)
        tasks.start_soon(traffic.run)
        await traffic.settled(owners())
        fleet[stopped].freeze()
        await anyio.to_thread.run_sync(fleet.join, group, "w2", other)
        await anyio.to_thread.run_sync(
            lambda: fleet.wait_shared(group, "w1", "w2", partitions=PARTITIONS, within=2 * UP_WITHIN)
        )
        await traffic.settled(moved := owners())
        assert router.statistics().address == fleet[other].address
        fleet[stopped].thaw()
        await anyio.to_thread.run_sync(fleet.wait_ready, UP_WITHIN)
        already = len(traffic.sent)
        await eventually(lambda: len(traffic.sent) > already + 20 * PARTITIONS, within=UP_WITHIN)
        assert owners() == moved
        await traffic.settled(moved)
        assert traffic.went_back() == []
        tasks.cancel_scope.cancel()
