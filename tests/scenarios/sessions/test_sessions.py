"""Sessions: resuming, taking over, and who stays the loser."""

from __future__ import annotations

import pytest

from assigner.errors import Superseded
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time


async def test_the_same_session_on_another_instance_resumes_and_nothing_moves(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    await any_cluster.start_instance("i1")
    other = await any_cluster.start_instance("i2")
    consumer = await any_cluster.join("a")
    before = await any_cluster.until_counts(a=4)

    consumer.crash()
    await consumer.connect(other)

    assert len(consumer.owned) == 4
    after = await any_cluster.until_counts(a=4)
    assert {tp: held.record for tp, held in after.assignments.items()} == {
        tp: held.record for tp, held in before.assignments.items()
    }


async def test_a_new_session_of_the_same_name_takes_over_with_higher_epochs_and_the_displaced_one_gets_the_reason(
    any_cluster: Cluster,
) -> None:
    await any_cluster.add_topic(partitions=4)
    await any_cluster.start_instance()
    old = await any_cluster.join("a", session="old")
    await any_cluster.until_counts(a=4)

    new = await any_cluster.join("a", session="new")

    await new.until("owns all with the next epoch", lambda c: set(c.owned.values()) == {2} and len(c.owned) == 4)
    await old.until("told", lambda c: c.ended is not None)
    assert isinstance(old.ended, Superseded)
    state = await any_cluster.until_counts(a=4)
    assert {held.record.session for held in state.assignments.values()} == {"new"}


async def test_a_displaced_session_can_not_take_the_name_back(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    instance = await any_cluster.start_instance()
    old = await any_cluster.join("a", session="old")
    await any_cluster.until_counts(a=4)
    await any_cluster.join("a", session="new")
    await old.until("told", lambda c: c.ended is not None)

    with pytest.raises(Superseded):
        await instance.members.renew("g", "a", "old")
    with pytest.raises(Superseded):
        await old.connect(instance)

    registered = (await any_cluster.state()).consumers["a"].record
    assert registered.session == "new"
