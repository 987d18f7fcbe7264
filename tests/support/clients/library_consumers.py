"""Consumers of the client library at the services of a cluster, over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from assigner.client import AssignerConsumer, Handler, Timing, TopicPartition
from assigner.clock import LoopClock
from assigner.service import Service
from assigner.store import Store
from assigner.testing.faults import FaultyStore
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster

QUICK = Timing(call_timeout=5.0, keepalive=0.5, keepalive_timeout=5.0, first_pause=0.01, longest_pause=0.2)
PATIENCE = 90.0


async def serving(cluster: Cluster, partitions: int = 4, **how: Any) -> Service:
    """A topic, and a service that leads the group."""
    await cluster.add_topic(partitions=partitions)
    service = await cluster.start_service(**how)
    await eventually(lambda: GROUP in service.instance.coordinators.leading, within=PATIENCE, what="led")
    return service


async def serving_by_faults(cluster: Cluster, partitions: int = 4, **how: Any) -> FaultyStore:
    """The same with a service whose way to the store can be disturbed; that way."""
    ways: list[FaultyStore] = []

    def wrap(store: Store) -> Store:
        ways.append(FaultyStore(store))
        return ways[-1]

    await serving(cluster, partitions, wrap=wrap, **how)
    return ways[0]


@asynccontextmanager
async def consuming(
    cluster: Cluster, handler: Handler, name: str = "a", *, addresses: Sequence[str] = (), **options: Any
) -> AsyncIterator[AssignerConsumer]:
    """`addresses`: those of all services unless given."""
    addresses = addresses or [service.address for service in cluster.services.values()]
    options = {"timing": QUICK, **options}
    with anyio.fail_after(600):
        async with AssignerConsumer(addresses, GROUP, name, [], handler, clock=LoopClock(), **options) as consumer:
            yield consumer


async def owns(consumer: AssignerConsumer, count: int) -> dict[TopicPartition, int]:
    """Wait until that many gates of the consumer are open; their epochs."""
    what = f"{consumer.name} owns {count}"
    await eventually(lambda: len(consumer.partitions) == count, within=PATIENCE, what=what)
    return consumer.partitions
