"""One tenant's share of what all share is bounded: topics, partitions, and what commits write."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import OffsetCommit, WantedOffsets
from assigner.errors import InvalidInput, LimitReached
from assigner.instance import Instance
from assigner.settings.model import QuotaSection
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster, tp

pytestmark = pytest.mark.virtual_time


async def started(cluster: Cluster, **quotas: float) -> Instance:
    return await cluster.start_instance(quotas=QuotaSection(**quotas))  # type: ignore[arg-type]


# --- topics and partitions ---------------------------------------------------------------------------------------


async def test_a_topic_larger_than_the_quota_is_refused(any_cluster: Cluster) -> None:
    instance = await started(any_cluster, topic_partitions=10)
    with pytest.raises(LimitReached, match=r"11 partitions.*10.*quotas\.topic_partitions"):
        await instance.operations.set_topic(GROUP, "t", 11)
    await instance.operations.set_topic(GROUP, "t", 10)


async def test_a_group_gets_no_more_partitions_than_its_quota(any_cluster: Cluster) -> None:
    instance = await started(any_cluster, partitions=10)
    await instance.operations.set_topic(GROUP, "t", 6)
    with pytest.raises(LimitReached, match=r"11 partitions.*10.*quotas\.partitions"):
        await instance.operations.set_topic(GROUP, "u", 5)
    with pytest.raises(LimitReached):
        await instance.operations.set_topic(GROUP, "t", 11)
    await instance.operations.set_topic(GROUP, "t", 7)
    await instance.operations.set_topic("another", "t", 10)


async def test_a_group_gets_no_more_topics_than_its_quota(any_cluster: Cluster) -> None:
    instance = await started(any_cluster, topics=2)
    for topic in ("a", "b"):
        await instance.operations.set_topic(GROUP, topic, 1)
    with pytest.raises(LimitReached, match=r"2 topics.*quotas\.topics"):
        await instance.operations.set_topic(GROUP, "c", 1)
    await instance.operations.set_topic(GROUP, "a", 2)


async def test_what_is_there_already_may_stay_and_shrink_though_the_quota_is_lower_now(cluster: Cluster) -> None:
    await cluster.add_topic("t", 20)
    await cluster.add_topic("u", 20)
    instance = await started(cluster, topics=1, partitions=10, topic_partitions=5)
    assert (await instance.operations.set_topic(GROUP, "t", 20)).partition_count == 20
    assert (await instance.operations.set_topic(GROUP, "t", 15, force=True)).partition_count == 15
    with pytest.raises(LimitReached):
        await instance.operations.set_topic(GROUP, "t", 21)


async def test_the_quota_holds_for_many_that_come_at_once(any_cluster: Cluster) -> None:
    instance = await started(any_cluster, partitions=10)
    refused: list[str] = []

    async def ask(topic: str) -> None:
        try:
            await instance.operations.set_topic(GROUP, topic, 2)
        except LimitReached:
            refused.append(topic)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(ask, f"t{number}")
    assert len(refused) == 15


async def test_a_topic_that_a_consumer_names_counts_too(cluster: Cluster) -> None:
    instance = await cluster.start_instance(quotas=QuotaSection(partitions=4), topics={"h": {"t": 3, "u": 3}})
    await instance.operations.delete_topic("h", "u", force=True)
    with pytest.raises(LimitReached, match="partitions"):
        await cluster.join("a", group="h", topics=("u",))
    assert 'assigner_refusals_total{reason="partitions"} 1.0' in instance.metrics.render_here().decode()


# --- commits -----------------------------------------------------------------------------------------------------


async def owner(cluster: Cluster, instance: Instance, partitions: int = 100) -> tuple[str, list[OffsetCommit]]:
    await cluster.add_topic(partitions=partitions)
    a = await cluster.join("a", instance)
    await a.until("owns all", lambda a: len(a.owned) == partitions)
    return a.session, [OffsetCommit(held, epoch, 7) for held, epoch in sorted(a.owned.items())]


def with_metadata(commits: list[OffsetCommit], metadata: str) -> list[OffsetCommit]:
    return [OffsetCommit(one.tp, one.epoch, one.offset, metadata=metadata) for one in commits]


async def test_metadata_longer_than_the_quota_is_refused_whole(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    session, commits = await owner(any_cluster, instance, 2)
    wide = "ä" * 128
    assert await instance.offsets.commit(GROUP, "a", session, with_metadata(commits, wide)) == []
    with pytest.raises(InvalidInput, match=r"257 bytes.*256.*quotas\.metadata_bytes"):
        await instance.offsets.commit(GROUP, "a", session, [*commits[:1], *with_metadata(commits[1:], wide + "x")])


async def test_a_group_that_commits_more_than_its_rate_is_slowed_down_then_refused(cluster: Cluster) -> None:
    instance = await started(cluster, commit_rate=10_000)
    session, commits = await owner(cluster, instance)
    refused: list[str] = []

    async def commit() -> None:
        try:
            await instance.offsets.commit(GROUP, "a", session, commits)
        except LimitReached as error:
            refused.append(str(error))

    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(commit)
    assert 20 < len(refused) < 40
    assert "10,000 bytes" in refused[0]
    assert "quotas.commit_rate" in refused[0]


async def test_patient_commits_all_get_through_at_the_rate(cluster: Cluster) -> None:
    instance = await started(cluster, commit_rate=10_000)
    session, commits = await owner(cluster, instance)
    began = cluster.clock.now()
    for _ in range(60):
        assert await instance.offsets.commit(GROUP, "a", session, commits) == []
    written = 60 * 100 * 150
    assert cluster.clock.now() - began >= (written - 10 * 10_000) / 10_000 - 1


async def test_one_groups_rate_is_not_anothers(cluster: Cluster) -> None:
    instance = await started(cluster, commit_rate=10_000)
    session, commits = await owner(cluster, instance)
    for _ in range(8):
        await instance.offsets.commit(GROUP, "a", session, commits)
    await instance.operations.set_topic("other", "t", 1)
    b = await cluster.join("b", instance, group="other")
    await b.until("owns it", lambda b: len(b.owned) == 1)
    began = cluster.clock.now()
    assert await instance.offsets.commit("other", "b", b.session, [OffsetCommit(tp(0), b.owned[tp(0)], 1)]) == []
    assert cluster.clock.now() - began < 1


async def test_what_was_answered_is_on_record_however_slow_it_was(cluster: Cluster) -> None:
    instance = await started(cluster, commit_rate=1_000)
    session, commits = await owner(cluster, instance, 10)
    answered = 0
    for offset in range(1, 20):
        batch = [OffsetCommit(one.tp, one.epoch, offset) for one in commits]
        if await instance.offsets.commit(GROUP, "a", session, batch) == []:
            answered = offset
            found = await instance.offsets.fetch(GROUP, _all(commits))
            assert {record.offset for _, record in found.offsets if record} == {answered}
    assert answered == 19


def _all(commits: list[OffsetCommit]) -> WantedOffsets:
    return WantedOffsets(tuple(one.tp for one in commits))


async def test_refusals_by_the_rate_are_counted(cluster: Cluster) -> None:
    instance = await started(cluster, commit_rate=1_000)
    session, commits = await owner(cluster, instance)
    await instance.offsets.commit(GROUP, "a", session, commits)
    with pytest.raises(LimitReached):
        await instance.offsets.commit(GROUP, "a", session, commits)
    await eventually(lambda: 'reason="commit_rate"' in instance.metrics.render_here().decode())
