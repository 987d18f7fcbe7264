"""What the service logs of groups in which all kinds of things happen breaks no promise, and tells all of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import anyio.to_thread
import pytest
from pyspark.sql import SparkSession

from assigner.model.records import GroupOptions, HandoffMode
from assigner.observability.event_log import EventSettings
from assigner.spark.jobs.audit import KINDS, VIOLATIONS, audit
from assigner.spark.jobs.datasets import OWNERSHIP_EVENTS, read
from assigner.testing.waiting import eventually
from tests.support.cluster import Cluster, cluster_on
from tests.support.spark.small_queries import interpreted

pytestmark = pytest.mark.virtual_time


async def logged(mode: HandoffMode, directory: Path) -> None:
    """Of a group with moves, a death, a takeover and a new leader, told by two instances."""
    async with cluster_on("memory", options=GroupOptions(debounce=0.1, handoff_mode=mode)) as cluster:
        await cluster.add_topic(partitions=8)
        for name in ("i1", "i2"):
            await cluster.start_instance(name, events=EventSettings(directory=str(directory)))
        leader = await led_by(cluster)
        other = "i2" if leader == "i1" else "i1"
        await eventful(cluster, leader, other)
        await cluster.stop_instance(other)
    await eventually(lambda: not list(directory.glob(".*.open")))


async def eventful(cluster: Cluster, leader: str, other: str) -> None:
    elsewhere = cluster.instances[other]
    await cluster.join("a", elsewhere)
    await cluster.until_counts(a=8)
    b = await cluster.join("b", elsewhere)
    await cluster.until_counts(a=4, b=4)
    b.crash()
    await cluster.until_counts(within=90, a=8)
    await cluster.join("c", elsewhere)
    await cluster.until_counts(a=4, c=4)
    before = {tp: held.record.epoch for tp, held in (await cluster.state()).assignments.items()}
    await cluster.join("a", elsewhere, session="another")
    await cluster.until(
        "a's new session has what the old one had",
        lambda state: all(state.assignments[tp].record.epoch > before[tp] for tp in state.owned["a"]),
        within=90,
    )
    await cluster.stop_instance(leader)
    await eventually(lambda: bool(elsewhere.coordinators.active), within=60)
    d = await cluster.join("d", elsewhere)
    await cluster.until("d has its share", lambda state: len(state.owned.get("d", ())) >= 2)
    await d.deregister()
    await cluster.until_counts(within=90, a=4, c=4)


async def led_by(cluster: Cluster) -> str:
    await eventually(lambda: any(one.coordinators.leading for one in cluster.instances.values()), within=30)
    return next(name for name, one in cluster.instances.items() if one.coordinators.leading)


class Audited(NamedTuple):
    happened: set[tuple[str, str]]
    leaders: int
    counts: dict[tuple[str, str], int]


def audited(spark: SparkSession, directory: Path) -> Audited:
    with interpreted(spark):
        events = read(spark, str(directory), OWNERSHIP_EVENTS)
        rows = events.select("event", "cause", "term", "instance").distinct().collect()
        found = audit(spark, events)
        counts = found.counts()
        found.close()
    happened = {(row.event, row.cause) for row in rows}
    return Audited(happened, len({(row.term, row.instance) for row in rows}), counts)


@pytest.mark.parametrize("mode", list(HandoffMode), ids=lambda mode: str(mode.value))
async def test_what_the_service_logs_passes_its_audit(spark: SparkSession, tmp_path: Path, mode: HandoffMode) -> None:
    await logged(mode, tmp_path)
    happened, leaders, counts = await anyio.to_thread.run_sync(audited, spark, tmp_path)
    assert {("lost", "takeover"), ("away", "left"), ("released", "joined"), ("held", "")} <= happened
    assert leaders == 2
    assert not any(counts[one] for one in VIOLATIONS)
    assert counts["gaps", "failover"] == 4, "of the one that died"
    overlaps = {kind: counts["overlaps", kind] for kind in KINDS["overlaps"] if counts["overlaps", kind]}
    if mode is HandoffMode.OVERLAP:
        assert overlaps.keys() == {"handover"}
        assert overlaps["handover"] >= 8
    else:
        assert not overlaps
