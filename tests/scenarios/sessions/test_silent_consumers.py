"""Operators see who has fallen silent long before its TTL is over."""

from __future__ import annotations

import anyio
import pytest

from assigner.admin import operations
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster

pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(ttl=6.0, etcd_ttl=20.0)]


async def silences(cluster: Cluster, instance: str) -> dict[str, float | None]:
    described = await cluster.instances[instance].operations.describe(GROUP)
    return {member.consumer.consumer_name: member.silent_for for member in described.members}


async def test_a_consumer_that_stopped_renewing_is_seen_to_be_silent_by_any_instance(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    first = await any_cluster.start_instance("i1")
    await any_cluster.start_instance("i2")
    await any_cluster.join("lively", first)
    stopped = await any_cluster.join("stopped", first)
    await any_cluster.until_counts(lively=1, stopped=1)
    stopped.crash()

    async def is_described() -> bool:
        told = await silences(any_cluster, "i2")
        lively, silent = told.get("lively"), told.get("stopped")
        return lively is not None and silent is not None and silent >= 3.0 > lively

    await eventually(is_described, within=any_cluster.ttl, what="silent for half its TTL, while the other one is not")


async def test_only_so_many_leases_are_asked_about(any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MOST_SILENCES", 1)
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance("i1")
    for name in ("a", "b"):
        await any_cluster.join(name, instance)
    await anyio.sleep(0.1)
    told = await silences(any_cluster, "i1")
    assert told["a"] is not None
    assert told["b"] is None
