"""Offsets put in place by an operator: only where nobody works, unless by force."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from assigner.api import NewOffset, OffsetCommit, WantedOffsets
from assigner.errors import FailedPrecondition, InvalidInput, UnknownTopic
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Offset, encode
from assigner.store import Compare, Operation, Store, TransactionResult
from assigner.testing.faults import FaultyStore
from tests.support.cluster import GROUP, Cluster, tp

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def only_owners_write() -> bool:
    return False


async def offsets(instance: Instance) -> dict[TopicPartition, Offset | None]:
    return dict((await instance.offsets.fetch(GROUP, WantedOffsets())).offsets)


async def test_offsets_of_partitions_that_nobody_owns_are_set_and_forgotten(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=300, topic_id="id")
    instance = await cluster.start_instance()
    assert await instance.operations.set_offsets(GROUP, {tp(n): NewOffset(n) for n in range(300)}, force=False) == 300
    found = await offsets(instance)
    assert {one: record.offset for one, record in found.items() if record} == {tp(n): n for n in range(300)}
    assert {record.epoch for record in found.values() if record} == {0}
    assert await instance.operations.set_offsets(GROUP, {tp(n): None for n in range(299)}, force=False) == 299
    assert (await offsets(instance)).keys() == {tp(299)}


async def test_a_consumer_that_comes_later_finds_what_was_set_and_replaces_it(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=1)
    instance = await cluster.start_instance()
    await instance.operations.set_offsets(GROUP, {tp(0): NewOffset(17)}, force=False)
    a = await cluster.join("a")
    await a.until("owns", lambda c: bool(c.owned))
    found = (await offsets(instance))[tp(0)]
    assert found
    assert (found.offset, found.epoch) == (17, 0)
    assert await instance.offsets.commit(GROUP, "a", a.session, [OffsetCommit(tp(0), 1, 20)]) == []
    assert (await offsets(instance))[tp(0)] == Offset(offset=20, epoch=1, committed_at=int(cluster.clock.wall()))


async def test_offsets_of_owned_partitions_are_left_alone_unless_forced(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=8)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await a.until("owns", lambda c: len(c.owned) == 8)
    with pytest.raises(
        FailedPrecondition, match=r"t/0, t/1, t/2, t/3, t/4 and 3 more of group 'g' have owners; nothing was set"
    ):
        await instance.operations.set_offsets(GROUP, {tp(n): NewOffset(5) for n in range(8)}, force=False)
    assert await offsets(instance) == {}
    assert await instance.operations.set_offsets(GROUP, {tp(0): NewOffset(5)}, force=True) == 1
    found = (await offsets(instance))[tp(0)]
    assert found
    assert found.offset == 5


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        ({tp(0, "other"): NewOffset(1)}, UnknownTopic, "no topic 'other'"),
        ({tp(2): NewOffset(1)}, InvalidInput, "the topic has partitions 0 to 1"),
        ({}, InvalidInput, "no offsets are given"),
    ],
)
async def test_what_does_not_exist_is_refused(
    cluster: Cluster, wanted: dict[TopicPartition, NewOffset], error: type[Exception], says: str
) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    with pytest.raises(error, match=says):
        await instance.operations.set_offsets(GROUP, wanted, force=True)


class AssignsMeanwhile(FaultyStore):
    """Gives a partition an owner right before its offset is set."""

    def __init__(self, inner: Store, cluster: Cluster) -> None:
        super().__init__(inner)
        self.cluster = cluster

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        if any(operation.key == self.cluster.keys.offset(GROUP, tp(199)) for operation in operations):
            taken = Assignment(topic="t", partition=199, owner="b", session="s", epoch=2)
            await self.inner.put(self.cluster.group.assignment(tp(199)), encode(taken))
        return await super().transact(compares, operations, otherwise=otherwise)


async def test_an_owner_that_appears_in_between_is_not_overruled(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=200)
    instance = await cluster.start_instance(wrap=lambda store: AssignsMeanwhile(store, cluster), leads=False)
    with pytest.raises(FailedPrecondition, match=r"t/199 of group 'g' have owners; 192 were set"):
        await instance.operations.set_offsets(GROUP, {tp(n): NewOffset(1) for n in range(200)}, force=False)
    assert (await offsets(instance)).keys() == {tp(n) for n in range(192)}
