"""A group of classic members on a cluster, on either store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from assigner.gateway.settings import GatewaySettings
from assigner.testing.faults import FaultyStore
from assigner.testing.waiting import eventually
from tests.support.classic_members import ClassicMember
from tests.support.cluster import Cluster

QUICK = GatewaySettings(initial_rebalance_delay=0.3, min_session_timeout=1.0, offsets_retention=1_000.0)


class ClassicScene:
    """Classic members of one group, and the instances that may lead it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.members: dict[str, ClassicMember] = {}

    def member(self, name: str, **how: Any) -> ClassicMember:
        """A member that has not begun yet."""
        return ClassicMember(name, lambda: [one.kafka_groups for one in self.cluster.instances.values()], **how)

    async def join(self, *names: str, **how: Any) -> list[ClassicMember]:
        """Start members, and wait until the group is stable with all that there are."""
        joined = [self.member(name, **how) for name in names]
        for one in joined:
            self.members[one.name] = one
            one.start(self.cluster.tasks)
        await self.settled()
        return joined

    async def settled(self) -> None:
        """Wait until all partitions are owned by members of the same generation."""

        def holds() -> bool:
            members = list(self.members.values())
            owned = sorted(number for one in members for number in one.owned)
            stable = all(one.is_stable for one in members)
            return stable and len({one.generation for one in members}) == 1 and owned == list(range(6))

        await eventually(holds, within=self.cluster.patience + self.cluster.allowance, what="one stable generation")

    def leaders(self) -> list[str]:
        """The instances that lead the group `g` and have loaded it: one, or none between two terms."""
        led = {name: one.kafka_groups._led.get("g") for name, one in self.cluster.instances.items()}
        return [name for name, group in led.items() if group is not None and not group.refusal]

    def leader(self) -> str:
        [name] = self.leaders()
        return name

    async def until(self, what: str, holds: Callable[[], Any]) -> None:
        await eventually(holds, within=self.cluster.patience + self.cluster.allowance, what=what)

    async def start(self, name: str) -> FaultyStore:
        """Start an instance whose way to the store can be disturbed, and with short times."""
        return await self.cluster.start_faulty(name, gateway=QUICK)

    def stop(self) -> None:
        for one in self.members.values():
            one.stop()


@pytest.fixture
async def scene(any_cluster: Cluster) -> AsyncIterator[ClassicScene]:
    """On both stores, with one instance."""
    scene = ClassicScene(any_cluster)
    await scene.start("i1")
    yield scene
    scene.stop()
