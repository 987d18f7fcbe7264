"""The coordinator at work, on both stores: joining, leaving, handing over."""

from __future__ import annotations

import pytest

from assigner.model.records import Cause, Phase, Step
from tests.support.cluster import EXPIRES, Cluster, tp

pytestmark = pytest.mark.virtual_time


async def test_a_move_goes_through_warming_ready_and_complete_and_ends_deleted(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    await any_cluster.start_instance()
    old = await any_cluster.join("a", answers_release=False)
    await any_cluster.until_counts(a=2)
    new = await any_cluster.join("b", answers_warm=False)

    await new.until("one warm", lambda c: len(c.to_warm) == 1)
    (moving,) = new.to_warm
    handoff = await any_cluster.handoff(moving)
    assert handoff
    assert (handoff.phase, handoff.at, handoff.cause) == (Phase.WARMING, Step.WARMING, Cause.JOINED)

    await new.ready(moving)
    await old.until("told to release", lambda c: moving in c.to_release)
    flipped = await any_cluster.assignment(moving)
    assert flipped
    assert (flipped.owner, flipped.session, flipped.epoch) == ("b", new.session, 2)
    handoff = await any_cluster.handoff(moving)
    assert handoff
    assert handoff.phase is Phase.COMPLETE

    await old.release(moving)
    await any_cluster.until_counts(a=1, b=1)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_dead_owners_partitions_go_to_others_without_handoffs(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    b = await any_cluster.join("b")
    await any_cluster.until_counts(a=4, b=4)
    b.crash()
    state = await any_cluster.until_counts(a=8, within=90)
    assert {held.record.epoch for held in state.assignments.values()} <= {1, 2, 3}
    assert not any(c.warms for c in any_cluster.consumers["a"].heard[-3:])
    assert tp(0) in state.assignments


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_partition_in_cooldown_is_reassigned_at_once_when_its_owner_dies(any_cluster: Cluster) -> None:
    await any_cluster.set_options(warming_timeout=1.0, balance_backoff=3600.0)
    await any_cluster.add_topic(partitions=2)
    await any_cluster.start_instance()
    old = await any_cluster.join("a")
    await any_cluster.until_counts(a=2)
    stuck = await any_cluster.join("b", answers_warm=False)
    await stuck.until("asked to warm", lambda c: bool(c.to_warm))
    await any_cluster.until("the move is given up", lambda state: not state.handoffs)

    old.crash()

    await any_cluster.until_counts(b=2, within=90)
