"""Committed offsets: only the present owner commits them, and the next owner reads the last ones."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import CommitRefusal, OffsetCommit, RefusedCommit, WantedOffsets
from assigner.errors import Superseded
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, HandoffMode, Step, encode
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.committing import (
    RUBBISH,
    commit,
    fetch,
    instance_of,
    offset_of,
    sole_owner,
    two_owners,
)
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
MODES = [HandoffMode.OVERLAP, HandoffMode.EXCLUSIVE]


# --- committing --------------------------------------------------------------------------------------------------


async def test_any_consumer_reads_what_the_owner_commits(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a = await sole_owner(cluster, 2)
    full = OffsetCommit(tp(0), a.owned[tp(0)], 4200, 3, "half of the batch")
    assert await instance_of(cluster).offsets.commit(GROUP, "a", a.session, [full]) == []
    found = await fetch(instance_of(cluster), tp(0), tp(1))
    record = found[tp(0)]
    assert record
    assert (record.offset, record.epoch, record.leader_epoch, record.metadata) == (4200, 1, 3, "half of the batch")
    assert record.committed_at == pytest.approx(cluster.clock.wall(), abs=60)
    assert found[tp(1)] is None


async def test_a_refused_commit_names_the_owner(any_cluster: Cluster) -> None:
    a, b = await two_owners(any_cluster)
    (mine,), (theirs,) = a.owned, b.owned
    refused = await commit(a, {mine: 1, theirs: 1}, epoch=1)
    assert refused == [RefusedCommit(theirs, CommitRefusal.FENCED, b.owned[theirs], "b")]
    assert await offset_of(instance_of(any_cluster), mine) == (1, 1)
    assert await offset_of(instance_of(any_cluster), theirs) is None


async def test_an_epoch_that_is_over_or_never_was_is_refused(cluster: Cluster) -> None:
    a = await sole_owner(cluster)
    for epoch in (0, 2):
        assert await commit(a, {tp(0): 1}, epoch=epoch) == [RefusedCommit(tp(0), CommitRefusal.FENCED, 1, "a")]
    assert await offset_of(instance_of(cluster), tp(0)) is None


async def test_rule_5_a_session_of_the_same_name_and_epoch_that_is_not_the_owners_is_refused(cluster: Cluster) -> None:
    await sole_owner(cluster)
    refused = await instance_of(cluster).offsets.commit(GROUP, "a", "another", [OffsetCommit(tp(0), 1, 5)])
    assert [one.why for one in refused] == [CommitRefusal.FENCED]


async def test_a_client_without_a_session_is_known_by_name_and_epoch(cluster: Cluster) -> None:
    await sole_owner(cluster, session="")
    assert await instance_of(cluster).offsets.commit(GROUP, "a", "", [OffsetCommit(tp(0), 1, 5)]) == []


async def test_a_partition_that_does_not_exist_is_named(cluster: Cluster) -> None:
    a = await sole_owner(cluster)
    refused = await commit(a, {tp(7): 1, tp(0, "other"): 1}, epoch=1)
    assert {one.tp: one.why for one in refused} == {
        tp(7): CommitRefusal.UNKNOWN_PARTITION,
        tp(0, "other"): CommitRefusal.UNKNOWN_PARTITION,
    }


async def test_a_partition_that_nobody_owns_takes_no_commit(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    instance = await cluster.start_instance()
    refused = await instance.offsets.commit(GROUP, "a", "s", [OffsetCommit(tp(0), 1, 5)])
    assert refused == [RefusedCommit(tp(0), CommitRefusal.FENCED, 0, "")]


async def test_an_owner_may_go_back(cluster: Cluster) -> None:
    a = await sole_owner(cluster)
    for offset in (10, 4):
        assert await commit(a, {tp(0): offset}) == []
    assert await offset_of(instance_of(cluster), tp(0)) == (4, 1)


async def test_commits_of_one_partition_end_in_the_order_they_came(cluster: Cluster) -> None:
    a = await sole_owner(cluster)
    async with anyio.create_task_group() as tasks:
        for offset in range(50):
            tasks.start_soon(commit, a, {tp(0): offset})
    assert await offset_of(instance_of(cluster), tp(0)) == (49, 1)


async def test_an_unreadable_assignment_admits_nobody_and_is_left_alone(cluster: Cluster) -> None:
    a = await sole_owner(cluster)
    await cluster.store.put(cluster.group.assignment(tp(0)), RUBBISH)
    (refused,) = await commit(a, {tp(0): 1}, epoch=1)
    assert refused.why is CommitRefusal.FAILED
    assert "unreadable Assignment" in refused.reason
    await cluster.store.put(
        cluster.group.assignment(tp(0)),
        encode(Assignment(topic="t", partition=0, owner="a", epoch=1, session=a.session)),
    )


async def test_commits_wake_nobody(cluster: Cluster) -> None:
    a = await sole_owner(cluster)
    mirrored, heard = instance_of(cluster).mirrors.get(GROUP), len(a.heard)
    assert mirrored
    revision = mirrored.state.revision
    for offset in range(20):
        await commit(a, {tp(0): offset})
    await anyio.sleep(1)
    assert len(a.heard) == heard
    assert mirrored.state.revision == revision


# --- changes of hands --------------------------------------------------------------------------------------------


async def test_a_taken_over_session_is_refused_and_its_successor_goes_on_from_its_offset(any_cluster: Cluster) -> None:
    cluster = any_cluster
    old = await sole_owner(cluster, session="first")
    assert await commit(old, {tp(0): 10}) == []
    new = await cluster.join("a", session="second")
    await old.until("told why", lambda c: isinstance(c.ended, Superseded))
    await new.until("restamped", lambda c: c.owned == {tp(0): 2})
    assert await commit(old, {tp(0): 11}) == [RefusedCommit(tp(0), CommitRefusal.FENCED, 2, "a")]
    assert await offset_of(instance_of(cluster), tp(0)) == (10, 1)
    assert await commit(new, {tp(0): 12}) == []
    assert await offset_of(instance_of(cluster), tp(0)) == (12, 2)


async def moving_partition(
    cluster: Cluster, mode: HandoffMode
) -> tuple[SteppedConsumer, SteppedConsumer, TopicPartition]:
    """One of `a`'s two partitions is to go to `b`, which warms it and acks when the test says so."""
    await cluster.set_options(handoff_mode=mode)
    a = await sole_owner(cluster, 2, answers_release=False)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    return a, b, moving


@pytest.mark.parametrize("mode", MODES)
async def test_the_old_owner_commits_until_the_flip_and_not_after_it(any_cluster: Cluster, mode: HandoffMode) -> None:
    cluster = any_cluster
    a, b, moving = await moving_partition(cluster, mode)
    assert await commit(a, {moving: 10}) == [], "while it is warmed"
    refused = await commit(b, {moving: 99}, epoch=2)
    assert refused == [RefusedCommit(moving, CommitRefusal.FENCED, 1, "a")], "it is not the new owner's yet"
    await b.ready(moving)
    await a.until("told to release", lambda c: moving in c.to_release)
    exclusive = mode is HandoffMode.EXCLUSIVE
    final = await commit(a, {moving: 20}, epoch=1)
    assert final == ([] if exclusive else [RefusedCommit(moving, CommitRefusal.FENCED, 2, "b")])
    await a.release(moving)
    await b.until("owns it", lambda c: c.owned == {moving: 2})
    assert await offset_of(instance_of(cluster), moving) == ((20, 1) if exclusive else (10, 1))
    assert await commit(a, {moving: 30}, epoch=1) == [RefusedCommit(moving, CommitRefusal.FENCED, 2, "b")]
    assert await commit(b, {moving: 40}) == []
    assert await offset_of(instance_of(cluster), moving) == (40, 2)


async def test_the_last_commit_before_released_is_what_the_new_owner_reads_first(any_cluster: Cluster) -> None:
    """In an exclusive group: each commit is acknowledged before the owner releases, so the next one starts after it."""
    cluster = any_cluster
    a, b, moving = await moving_partition(cluster, HandoffMode.EXCLUSIVE)
    await b.ready(moving)
    await a.until("told to release", lambda c: moving in c.to_release)
    handoff = await cluster.handoff(moving)
    assert handoff
    assert handoff.at is Step.RELEASING
    for offset in range(1, 6):
        assert await commit(a, {moving: offset}) == []
    await a.release(moving)
    await b.until("owns it", lambda c: moving in c.owned)
    assert await offset_of(instance_of(cluster), moving) == (5, 1)


@pytest.mark.parametrize("mode", MODES)
async def test_commits_that_race_with_a_flip_are_on_record_or_refused(any_cluster: Cluster, mode: HandoffMode) -> None:
    cluster = any_cluster
    a, b, moving = await moving_partition(cluster, mode)
    answered: list[int] = []
    over = anyio.Event()

    async def hammer() -> None:
        offset = 0
        while not over.is_set():
            offset += 1
            refused = await commit(a, {moving: offset}, epoch=1)
            if refused:
                assert refused == [RefusedCommit(moving, CommitRefusal.FENCED, 2, "b")]
                return
            answered.append(offset)
            # Or virtual time would stand still.
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hammer)
        await eventually(lambda: bool(answered), within=10, what="the first commit")
        await b.ready(moving)
        await a.until("told to release", lambda c: moving in c.to_release)
        await a.release(moving)
        await b.until("owns it", lambda c: moving in c.owned)
        first = await offset_of(instance_of(cluster), moving)
        assert await commit(b, {moving: 1_000_000}) == []
        over.set()
    assert first
    assert first == (answered[-1], 1), "an answered commit was lost, or one came after the flip"
    assert await offset_of(instance_of(cluster), moving) == (1_000_000, 2)


async def test_a_change_of_leader_refuses_nobody(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a = await sole_owner(cluster, 4)
    second = await cluster.start_instance("i2")
    assert await commit(a, {tp(0): 1}) == []
    await cluster.stop_instance("i1")
    assert await commit(a, {tp(0): 2, tp(3): 7}, at=second) == []
    await eventually(lambda: GROUP in second.coordinators.active, within=30, what="the other one leads")
    assert await commit(a, {tp(0): 3}, at=second) == []
    assert await offset_of(second, tp(0)) == (3, 1)
    assert await offset_of(second, tp(3)) == (7, 1)


async def test_an_owner_that_was_given_its_partition_back_has_another_epoch(cluster: Cluster) -> None:
    a, b, moving = await moving_partition(cluster, HandoffMode.EXCLUSIVE)
    await b.ready(moving)
    await a.until("told to release", lambda c: moving in c.to_release)
    b.crash()
    await cluster.until("reaffirmed", lambda s: s.assignments[moving].record.epoch == 2, within=10 * cluster.ttl)
    assert [one.why for one in await commit(a, {moving: 5}, epoch=1)] == [CommitRefusal.FENCED]
    assert await commit(a, {moving: 5}, epoch=2) == []


async def test_a_commit_counts_at_an_instance_that_has_not_seen_the_new_owner_yet(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance("i1")
    behind = await cluster.start_faulty("i2", leads=False)
    a = await cluster.join("a", instance_of(cluster))
    await a.until("owns", lambda c: bool(c.owned))
    late = cluster.instances["i2"]
    assert await commit(a, {tp(0): 1}, at=late) == [], "which also loads the group there"
    behind.inject(Refuse(), kinds={"list", "watch"}, times=None)
    behind.end_watches()
    new = await cluster.join("a", instance_of(cluster), session="second")
    await new.until("restamped", lambda c: c.owned == {tp(0): 2})
    assert await commit(a, {tp(0): 2}, epoch=1, at=late) == [RefusedCommit(tp(0), CommitRefusal.FENCED, 2, "a")]
    assert await commit(new, {tp(0): 3}, at=late) == []
    assert await offset_of(instance_of(cluster), tp(0)) == (3, 2)


# --- topics ------------------------------------------------------------------------------------------------------


async def test_a_recreated_topic_has_no_offsets_and_its_old_owner_is_fenced(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=1, topic_id="first")
    await cluster.start_instance()
    a = await cluster.join("a")
    await a.until("owns", lambda c: bool(c.owned))
    assert await commit(a, {tp(0): 10}) == []
    await cluster.add_topic(partitions=1, topic_id="second")
    await a.until("restamped", lambda c: c.owned == {tp(0): 2})
    assert await offset_of(instance_of(cluster), tp(0)) is None
    assert [one.why for one in await commit(a, {tp(0): 11}, epoch=1)] == [CommitRefusal.FENCED]
    assert await offset_of(instance_of(cluster), tp(0)) is None
    assert await commit(a, {tp(0): 3}) == []
    assert await offset_of(instance_of(cluster), tp(0)) == (3, 2)


async def test_offsets_of_a_topic_recreated_while_nobody_was_there_count_as_none(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1, topic_id="first")
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await a.until("owns", lambda c: bool(c.owned))
    assert await commit(a, {tp(0): 10}) == []
    a.crash()
    await cluster.until("nobody owns anything", lambda s: not s.assignments, within=10 * cluster.ttl)
    assert await offset_of(instance, tp(0)) == (10, 1), "a group that is empty for a while loses nothing"
    await cluster.add_topic(partitions=1, topic_id="second")
    assert await offset_of(instance, tp(0)) is None
    listed = await instance.offsets.fetch(GROUP, WantedOffsets())
    assert listed.offsets == ((tp(0), None),)


async def test_offsets_of_a_missing_topic_count_as_none_until_it_is_back(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2, topic_id="first", source="kafka")
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await a.until("owns", lambda c: len(c.owned) == 2)
    assert await commit(a, {tp(0): 10}) == []
    await cluster.add_topic(partitions=2, topic_id="first", source="kafka", missing=True)
    assert await offset_of(instance, tp(0)) is None
    listed = await instance.offsets.fetch(GROUP, WantedOffsets())
    assert listed.offsets == ((tp(0), None),)
    await cluster.add_topic(partitions=2, topic_id="first", source="kafka")
    assert await offset_of(instance, tp(0)) == (10, 1)
    assert len(a.owned) == 2


async def test_a_commit_between_a_topics_recreation_and_the_leaders_notice_of_it_does_not_count(
    cluster: Cluster,
) -> None:
    await cluster.add_topic(partitions=1, topic_id="first")
    instance = await cluster.start_instance(leads=False)
    await cluster.store.put(
        cluster.group.assignment(tp(0)),
        encode(Assignment(topic="t", partition=0, owner="a", session="s", epoch=1, topic_id="first")),
    )
    await cluster.add_topic(partitions=1, topic_id="second")
    assert await instance.offsets.commit(GROUP, "a", "s", [OffsetCommit(tp(0), 1, 10)]) == []
    assert await offset_of(instance, tp(0)) is None


# --- reading -----------------------------------------------------------------------------------------------------


async def test_everything_committed_is_found_page_by_page(
    any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = any_cluster
    a = await sole_owner(cluster, 12)
    await cluster.add_topic("u", 3)
    await a.until("owns both", lambda c: len(c.owned) == 15)
    assert await commit(a, {one: one.partition for one in a.owned if one.partition != 1}) == []
    monkeypatch.setattr("assigner.offsets.fetch.MAX_PAGE", 5)
    monkeypatch.setattr("assigner.offsets.fetch._LISTED", 3)
    for topics in ((), ("t", "u"), ("u", "t")):
        found: list[TopicPartition] = []
        after = None
        while True:
            page = await instance_of(cluster).offsets.fetch(GROUP, WantedOffsets(topics=topics, after=after))
            assert len(page.offsets) <= 5
            assert all(record and record.offset == one.partition for one, record in page.offsets)
            found += [one for one, _ in page.offsets]
            if page.last is None:
                break
            after = page.last
        assert len(found) == len(set(found))
        assert set(found) == {one for one in a.owned if one.partition != 1}
        assert [one.topic for one in found] == sorted((one.topic for one in found), reverse=topics == ("u", "t"))


async def test_a_response_is_cut_before_it_gets_too_long_for_a_message(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await sole_owner(cluster, 10)
    commits = [OffsetCommit(one, 1, 1, -1, "x" * 250) for one in sorted(a.owned)]
    assert await instance_of(cluster).offsets.commit(GROUP, "a", a.session, commits) == []
    monkeypatch.setattr("assigner.offsets.fetch.MAX_PAGE_BYTES", 1_050)
    page = await instance_of(cluster).offsets.fetch(GROUP, WantedOffsets(tuple(sorted(a.owned))))
    assert [one for one, _ in page.offsets] == [tp(0), tp(1), tp(2)]
    assert page.last == tp(2)


async def test_an_offset_that_can_not_be_read_is_named_and_not_taken_for_none(cluster: Cluster) -> None:
    a = await sole_owner(cluster, 3)
    assert await commit(a, dict.fromkeys(a.owned, 7)) == []
    await cluster.store.put(cluster.keys.offset(GROUP, tp(1)), RUBBISH)
    for wanted in (WantedOffsets((tp(0), tp(1), tp(2))), WantedOffsets()):
        found = await instance_of(cluster).offsets.fetch(GROUP, wanted)
        assert [one for one, _ in found.offsets] == [tp(0), tp(2)]
        assert found.unreadable == (tp(1),)
    assert await commit(a, {tp(1): 8}) == []
    assert await offset_of(instance_of(cluster), tp(1)) == (8, 1)


async def test_a_group_nobody_knows_has_no_offsets(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    found = await instance.offsets.fetch("nowhere", WantedOffsets((tp(0),)))
    assert found.offsets == ((tp(0), None),)
    assert instance.mirrors.get("nowhere") is None, "asking must not cost the instance a mirror"
