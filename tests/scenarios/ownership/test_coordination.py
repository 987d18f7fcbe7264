"""The coordinator at work, on both stores: joining, leaving, handing over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from assigner.model.records import Cause, Phase, Step
from tests.support.cluster import BOTH_STORES, Cluster, cluster_on, tp

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=BOTH_STORES)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with cluster_on(request.param, request) as cluster:
        yield cluster


async def test_a_move_goes_through_warming_ready_and_complete_and_ends_deleted(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    old = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    new = await cluster.join("b", answers_warm=False)

    await new.until("one warm", lambda c: len(c.to_warm) == 1)
    (moving,) = new.to_warm
    handoff = await cluster.handoff(moving)
    assert handoff
    assert (handoff.phase, handoff.at, handoff.cause) == (Phase.WARMING, Step.WARMING, Cause.JOINED)

    await new.ready(moving)
    await old.until("told to release", lambda c: moving in c.to_release)
    flipped = await cluster.assignment(moving)
    assert flipped
    assert (flipped.owner, flipped.session, flipped.epoch) == ("b", new.session, 2)
    handoff = await cluster.handoff(moving)
    assert handoff
    assert handoff.phase is Phase.COMPLETE

    await old.release(moving)
    await cluster.until_counts(a=1, b=1)


async def test_a_dead_owners_partitions_go_to_others_without_handoffs(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    await cluster.join("a")
    b = await cluster.join("b")
    await cluster.until_counts(a=4, b=4)
    b.crash()
    state = await cluster.until_counts(a=8, within=90)
    assert {held.record.epoch for held in state.assignments.values()} <= {1, 2, 3}
    assert not any(c.warms for c in cluster.consumers["a"].heard[-3:])
    assert tp(0) in state.assignments


async def test_a_partition_left_in_peace_is_given_away_at_once_when_its_owner_dies(cluster: Cluster) -> None:
    await cluster.set_options(warming_timeout=1.0, balance_backoff=3600.0)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    old = await cluster.join("a")
    await cluster.until_counts(a=2)
    stuck = await cluster.join("b", answers_warm=False)
    await stuck.until("asked to warm", lambda c: bool(c.to_warm))
    await cluster.until("the move is given up", lambda state: not state.handoffs)

    old.crash()

    await cluster.until_counts(b=2, within=90)
