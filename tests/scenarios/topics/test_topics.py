"""Topics that grow, shrink, are recreated or are not known, and what that means for their partitions."""

from __future__ import annotations

import anyio
import pytest

from assigner.errors import FailedPrecondition, InvalidInput, InvalidName, UnknownTopic
from assigner.model.records import Assignment, Handoff, Offset, Plan, TopicConfig, decode, encode
from assigner.store import DeleteEvent, Found, PutEvent
from tests.support.cluster import Cluster, tp

pytestmark = pytest.mark.virtual_time


async def test_new_partitions_are_given_out_and_nothing_else_moves(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.join("b")
    before = await cluster.until_counts(a=2, b=2)
    await instance.operations.set_topic("g", "t", 8)
    after = await cluster.until_counts(a=4, b=4)
    for partition, held in before.assignments.items():
        assert after.assignments[partition].mod_revision == held.mod_revision


async def test_a_topic_is_made_smaller_only_by_force(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=4)
    with pytest.raises(FailedPrecondition, match="--force"):
        await instance.operations.set_topic("g", "t", 2)
    await cluster.until_counts(a=4)


async def test_partitions_that_are_gone_are_taken_away_after_the_floor_was_raised(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    await instance.operations.set_topic("g", "t", 2, force=True)
    state = await cluster.until_counts(a=2)
    await a.until("told of the loss", lambda c: set(c.owned) == {tp(0), tp(1)})
    assert state.plan.epoch_floor == 1
    events = await cluster.history()
    raised = next(
        e.entry.mod_revision
        for e in events
        if isinstance(e, PutEvent)
        and e.entry.key == cluster.group.plan
        and decode(Plan, e.entry.value)[0].epoch_floor == 1
    )
    deleted = [e.mod_revision for e in events if isinstance(e, DeleteEvent) and "/assignments/" in e.key]
    assert len(deleted) == 2
    assert raised < min(deleted)


async def test_a_handoff_of_a_partition_that_is_gone_goes_with_it(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    await instance.operations.set_topic("g", "t", 1, force=True)
    state = await cluster.until("partition 1 is gone", lambda s: tp(1) not in s.assignments and tp(1) not in s.handoffs)
    assert set(state.assignments) == {tp(0)}
    if moving == tp(1):
        await b.until("told that it is not wanted", lambda c: not c.to_warm)
    await a.until("knows what is left", lambda c: set(c.owned) == {tp(0)})


async def test_a_topic_that_grows_again_goes_on_with_higher_epochs(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await instance.operations.set_topic("g", "t", 1, force=True)
    await cluster.until_counts(a=1)
    await instance.operations.set_topic("g", "t", 2)
    await a.until("owns it again", lambda c: c.owned == {tp(0): 1, tp(1): 2})


async def test_a_recreated_topic_keeps_its_owners_and_starts_without_offsets_and_handoffs(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2, topic_id="one")
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    for number in range(2):
        await cluster.store.put(cluster.keys.offset("g", tp(number)), b"{}")
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    old = await cluster.handoff(moving)
    assert old
    await cluster.store.put(
        cluster.group.topic("t"), encode(TopicConfig(topic="t", partition_count=2, topic_id="another"))
    )
    state = await cluster.until(
        "stamped anew", lambda s: {h.record.topic_id for h in s.assignments.values()} == {"another"}
    )
    assert {held.record.owner for held in state.assignments.values()} == {"a"}
    assert {held.record.epoch for held in state.assignments.values()} == {2}
    for number in range(2):
        assert not isinstance(await cluster.store.get(cluster.keys.offset("g", tp(number))), Found)
    await a.until("revoked and assigned again", lambda c: set(c.owned.values()) == {2})
    deleted = [
        e for e in await cluster.history() if isinstance(e, DeleteEvent) and e.key == cluster.group.handoff(moving)
    ]
    assert deleted, "warmth of the old topic was kept"
    ids = [
        decode(Handoff, e.entry.value)[0].handoff_id
        for e in await cluster.history()
        if isinstance(e, PutEvent) and e.entry.key == cluster.group.handoff(moving)
    ]
    assert ids[0] == old.handoff_id


async def test_a_topic_whose_id_becomes_known_is_not_a_recreated_one(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    await cluster.join("a")
    before = await cluster.until_counts(a=2)
    await cluster.add_topic(partitions=2, topic_id="one")
    await anyio.sleep(60)
    after = await cluster.state()
    assert {p: h.mod_revision for p, h in after.assignments.items()} == {
        p: h.mod_revision for p, h in before.assignments.items()
    }


async def test_a_topic_that_is_not_known_any_more_is_nobodys_and_starts_anew_with_its_offsets(cluster: Cluster) -> None:
    """A record that is gone may be an operator's slip: how far the work has got is not forgotten for it."""
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    offset = cluster.keys.offset("g", tp(0))
    await cluster.store.put(offset, encode(Offset(offset=7, epoch=1)))
    await cluster.store.delete(cluster.group.topic("t"))
    await cluster.until("nobody owns it", lambda s: not s.assignments)
    await a.until("told", lambda c: not c.owned)
    assert a.ended is None
    await cluster.add_topic(partitions=2)
    await cluster.until_counts(a=2)
    await a.until("told", lambda c: c.owned == {tp(0): 2, tp(1): 2})
    assert isinstance(await cluster.store.get(offset), Found)


async def test_a_consumer_that_names_an_unknown_topic_is_refused_and_leaves_no_trace(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        await cluster.join("a", topics=("nowhere",))
    assert not (await cluster.state()).consumers


async def test_a_topic_from_the_settings_is_known_to_who_names_it(cluster: Cluster) -> None:
    await cluster.start_instance(topics={"g": {"orders": 3}})
    await cluster.join("a", topics=("orders",))
    state = await cluster.until_counts(a=3)
    assert {p.topic for p in state.assignments} == {"orders"}


@pytest.mark.parametrize("partitions", [0, -1, 1_000_001])
async def test_impossible_partition_counts_are_refused(cluster: Cluster, partitions: int) -> None:
    instance = await cluster.start_instance()
    with pytest.raises(InvalidInput, match="partitions"):
        await instance.operations.set_topic("g", "t", partitions)
    assert await instance.operations.topics("g") == []


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "x" * 250, "tab\t"])
async def test_impossible_topic_names_are_refused(cluster: Cluster, topic: str) -> None:
    instance = await cluster.start_instance()
    with pytest.raises(InvalidName):
        await instance.operations.set_topic("g", topic, 1)


async def test_an_assignment_beyond_the_topics_end_is_removed_even_if_nobody_wrote_it_lately(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    stray = Assignment(topic="t", partition=7, owner="long-gone", epoch=9)
    await cluster.store.put(cluster.group.assignment(tp(7)), encode(stray))
    await cluster.start_instance()
    await cluster.join("a")
    state = await cluster.until_counts(a=1)
    assert state.plan.epoch_floor >= 9
