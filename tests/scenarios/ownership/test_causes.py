"""What a move is put down to when several things happen at once. One by one: `test_group_options`, `test_rollouts`."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from assigner.leader.history import read_history
from assigner.model.records import Cause
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.set_options(debounce=1.0)
    return cluster


async def told(cluster: Cluster) -> Counter[tuple[str, Cause]]:
    """(topic, cause) of the moves so far."""
    await anyio.sleep(3)
    return Counter((move.topic, move.cause) for move in await read_history(cluster.store, cluster.keys.history("g")))


async def test_a_topic_that_grows_while_a_consumer_joins(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=4)
    await cluster.add_topic(partitions=6)
    await cluster.join("b")
    await cluster.until_counts(a=3, b=3)
    assert await told(cluster) == {("t", Cause.JOINED): 4 + 1, ("t", Cause.TOPIC_GREW): 2}


async def test_a_topic_that_nobody_wanted_until_a_consumer_joins(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.add_topic("u", 2)
    await cluster.start_instance()
    await cluster.join("a", topics=("t",))
    await cluster.until_counts(a=4)
    await cluster.join("b", topics=("u",))
    await cluster.until_counts(a=4, b=2)
    assert await told(cluster) == {("t", Cause.JOINED): 4, ("u", Cause.JOINED): 2}


async def test_one_dies_and_another_one_drains(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=6)
    await cluster.start_instance()
    for name in ("a", "b", "c"):
        await cluster.join(name)
    await cluster.until_counts(a=2, b=2, c=2)
    cluster.consumers["b"].crash()
    await cluster.until("b is gone", lambda state: "b" not in state.consumers, within=90)
    await cluster.consumers["c"].deregister()
    await cluster.until_counts(a=6)
    causes = await told(cluster)
    assert causes["t", Cause.LEFT] == 2
    assert causes["t", Cause.DRAINING] in (2, 3)
