"""Sessions: resuming, taking over, and who stays the loser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from assigner.errors import Superseded
from tests.support.cluster import BOTH_STORES, Cluster, cluster_on

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=BOTH_STORES)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with cluster_on(request.param, request) as cluster:
        yield cluster


async def test_the_same_session_on_another_instance_resumes_and_nothing_moves(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2")
    consumer = await cluster.join("a")
    before = await cluster.until_counts(a=4)

    consumer.crash()
    await consumer.connect(other)

    assert len(consumer.owned) == 4
    after = await cluster.until_counts(a=4)
    assert {tp: held.record for tp, held in after.assignments.items()} == {
        tp: held.record for tp, held in before.assignments.items()
    }


async def test_a_new_session_of_the_same_name_takes_over_with_higher_epochs_and_the_loser_is_told_why(
    cluster: Cluster,
) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    old = await cluster.join("a", session="old")
    await cluster.until_counts(a=4)

    new = await cluster.join("a", session="new")

    await new.until("owns all with the next epoch", lambda c: set(c.owned.values()) == {2} and len(c.owned) == 4)
    await old.until("told", lambda c: c.ended is not None)
    assert isinstance(old.ended, Superseded)
    state = await cluster.until_counts(a=4)
    assert {held.record.session for held in state.assignments.values()} == {"new"}


async def test_a_displaced_session_can_not_take_the_name_back(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    old = await cluster.join("a", session="old")
    await cluster.until_counts(a=4)
    await cluster.join("a", session="new")
    await old.until("told", lambda c: c.ended is not None)

    with pytest.raises(Superseded):
        await instance.members.renew("g", "a", "old")
    with pytest.raises(Superseded):
        await old.connect(instance)

    registered = (await cluster.state()).consumers["a"].record
    assert registered.session == "new"
