"""Committed offsets where many come at once, answers get lost and owners change: nobody pays for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pytest

from assigner.api import CommitRefusal, OffsetCommit, RefusedCommit, WantedOffsets
from assigner.core.offset_commits import CommitQueue
from assigner.errors import LimitReached, OutcomeUnknown
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, HandoffMode, Offset, encode
from assigner.offsets.commit import OffsetService
from assigner.store import Compare, Operation, Store, TransactionResult
from assigner.testing.faults import FaultyStore, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, GROUP, Cluster, tp
from tests.support.committing import (
    commit,
    fetch,
    instance_of,
    offset_of,
    sole_owner,
)
from tests.support.faulty_stores import TakesLess
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
MODES = [HandoffMode.OVERLAP, HandoffMode.EXCLUSIVE]


# --- sharing transactions ----------------------------------------------------------------------------------------


async def test_many_partitions_take_few_transactions(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a = await sole_owner(cluster, 300)
    before = instance_of(cluster).offsets.transactions
    assert await commit(a, dict.fromkeys(a.owned, 5)) == []
    assert instance_of(cluster).offsets.transactions - before == 5
    found = await fetch(instance_of(cluster), *a.owned)
    assert {record.offset for record in found.values() if record} == {5}
    assert len(found) == 300


async def test_commits_of_several_consumers_share_a_transaction(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=20)
    await cluster.start_instance()
    consumers = [await cluster.join(f"c{number}") for number in range(10)]
    await cluster.until_counts(**{one.name: 2 for one in consumers})
    before = instance_of(cluster).offsets.transactions
    async with anyio.create_task_group() as tasks:
        for one in consumers:
            tasks.start_soon(commit, one, dict.fromkeys(one.owned, 3))
    assert instance_of(cluster).offsets.transactions - before == 1
    listed = await instance_of(cluster).offsets.fetch(GROUP, WantedOffsets())
    assert len(listed.offsets) == 20


class HoldsBack(FaultyStore):
    """A store that takes its time for transactions that put `held_key`, until told to go on."""

    held_key = ""
    go_on: anyio.Event

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        if any(operation.key == self.held_key for operation in operations):
            await self.go_on.wait()
        return await super().transact(compares, operations, otherwise=otherwise)


async def test_a_commit_does_not_wait_for_the_transaction_of_another(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance(wrap=HoldsBack, leads=False)
    store = instance.store
    assert isinstance(store, HoldsBack)
    store.held_key, store.go_on = cluster.keys.offset(GROUP, tp(0)), anyio.Event()
    for number in range(2):
        owned = Assignment(topic="t", partition=number, owner="a", session="s", epoch=1)
        await cluster.store.put(cluster.group.assignment(tp(number)), encode(owned))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(instance.offsets.commit, GROUP, "a", "s", [OffsetCommit(tp(0), 1, 5)])
        await eventually(lambda: instance.offsets.transactions == 1, what="the first commit is on its way")
        with anyio.fail_after(30):
            assert await instance.offsets.commit(GROUP, "a", "s", [OffsetCommit(tp(1), 1, 6)]) == []
        assert await offset_of(instance, tp(0)) is None
        store.go_on.set()
    assert await offset_of(instance, tp(0)) == (5, 1)


async def test_rule_5_one_that_lost_its_partition_fails_no_other_in_its_transaction(cluster: Cluster) -> None:
    """Its instance has not heard of it, so that only the store can refuse it."""
    await cluster.add_topic(partitions=60)
    await cluster.start_instance("i1")
    behind = await cluster.start_faulty("i2", leads=False)
    a = await cluster.join("a", instance_of(cluster))
    await a.until("owns", lambda c: len(c.owned) == 60)
    late = cluster.instances["i2"]
    assert await commit(a, {tp(0): 1}, at=late) == []
    behind.inject(Refuse(), kinds={"list", "watch"}, times=None)
    behind.end_watches()
    for number in (3, 47):
        taken = Assignment(topic="t", partition=number, owner="b", session="s", epoch=9)
        await cluster.store.put(cluster.group.assignment(tp(number)), encode(taken))
    before = late.offsets.transactions
    refused = await commit(a, dict.fromkeys(map(tp, range(60)), 6), epoch=1, at=late)
    assert refused == [RefusedCommit(tp(n), CommitRefusal.FENCED, 9, "b") for n in (3, 47)]
    assert late.offsets.transactions - before == 2, "one that failed and one without the two"
    listed = await late.offsets.fetch(GROUP, WantedOffsets((*map(tp, range(60)),)))
    assert sum(record is not None and record.offset == 6 for _, record in listed.offsets) == 58


# --- when the store is in trouble --------------------------------------------------------------------------------


def commits_an_offset(cluster: Cluster) -> Callable[..., bool]:
    prefix = cluster.keys.offsets(GROUP)

    def where(kind: str, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        return any(operation.key.startswith(prefix) for operation in operations)

    return where


@pytest.mark.parametrize("applied", [True, False])
async def test_a_commit_whose_response_was_lost_is_written_again(any_cluster: Cluster, applied: bool) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await a.until("owns", lambda c: len(c.owned) == 2)
    lost = faults.inject(LoseAnswer(applied=applied), kinds={"transact"}, where=commits_an_offset(cluster))
    assert await commit(a, {tp(0): 5, tp(1): 6}) == []
    assert lost.hits == 1
    assert await offset_of(instance_of(cluster), tp(0)) == (5, 1)
    assert await offset_of(instance_of(cluster), tp(1)) == (6, 1)


async def test_a_write_of_unknown_outcome_is_a_failure_that_may_be_repeated(
    cluster: Cluster,
) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await a.until("owns", lambda c: bool(c.owned))
    lost = faults.inject(LoseAnswer(), kinds={"transact"}, times=None, where=commits_an_offset(cluster))
    (refused,) = await commit(a, {tp(0): 5})
    assert refused.why is CommitRefusal.FAILED
    assert "commit again" in refused.reason
    lost.remove()
    assert await commit(a, {tp(0): 5}) == []


async def test_what_the_store_refuses_is_listed_by_partition_and_the_rest_is_committed(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=200)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await a.until("owns", lambda c: len(c.owned) == 200)
    faults.inject(Refuse("no room"), kinds={"transact"}, where=commits_an_offset(cluster))
    refused = await commit(a, dict.fromkeys(sorted(a.owned), 5))
    assert {one.why for one in refused} == {CommitRefusal.FAILED}
    assert all("no room" in one.reason for one in refused)
    found = await fetch(instance_of(cluster), *a.owned)
    assert {one for one, record in found.items() if record is None} == {one.tp for one in refused}
    assert 0 < len(refused) < 200


class ChangesHandsMeanwhile(FaultyStore):
    """Loses the answer to a commit, and gives the partition to another before anybody can ask again."""

    def __init__(self, inner: Store, cluster: Cluster) -> None:
        super().__init__(inner)
        self.cluster = cluster
        self.armed = False
        self.applied = False
        self.overwritten = False

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        if not (self.armed and any(op.key.startswith(self.cluster.keys.offsets(GROUP)) for op in operations)):
            return await super().transact(compares, operations, otherwise=otherwise)
        self.armed = False
        if self.applied:
            await self.inner.transact(compares, operations)
        taken = Assignment(topic="t", partition=0, owner="b", session="s", epoch=2)
        await self.inner.put(self.cluster.group.assignment(tp(0)), encode(taken))
        if self.overwritten:
            await self.inner.put(self.cluster.keys.offset(GROUP, tp(0)), encode(Offset(offset=8, epoch=2)))
        raise OutcomeUnknown("no answer")


@pytest.mark.parametrize(
    ("applied", "overwritten", "counts"), [(True, False, True), (False, False, False), (False, True, False)]
)
async def test_an_unknown_outcome_followed_by_a_flip_is_settled_by_what_is_on_record(
    any_cluster: Cluster, applied: bool, overwritten: bool, counts: bool
) -> None:
    cluster = any_cluster
    stores: list[ChangesHandsMeanwhile] = []

    def wrap(inner: Store) -> Store:
        stores.append(ChangesHandsMeanwhile(inner, cluster))
        return stores[0]

    await cluster.add_topic(partitions=1)
    instance = await cluster.start_instance(wrap=wrap, leads=False)
    owned = Assignment(topic="t", partition=0, owner="a", session="s", epoch=1)
    await cluster.store.put(cluster.group.assignment(tp(0)), encode(owned))
    stores[0].armed, stores[0].applied, stores[0].overwritten = True, applied, overwritten
    refused = await instance.offsets.commit(GROUP, "a", "s", [OffsetCommit(tp(0), 1, 5)])
    assert refused == ([] if counts else [RefusedCommit(tp(0), CommitRefusal.FENCED, 2, "b")])
    assert await offset_of(instance, tp(0)) == ((5, 1) if counts else (8, 2) if overwritten else None)


async def test_who_stops_waiting_takes_back_what_has_not_left_yet(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2_000)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await a.until("owns", lambda c: len(c.owned) == 2_000)
    faults.freeze()
    with anyio.move_on_after(1):
        await commit(a, dict.fromkeys(a.owned, 5))
    faults.thaw()
    offsets = instance_of(cluster).offsets
    await eventually(lambda: not offsets.waiting, within=60, what="the queue is empty")
    found = await fetch(instance_of(cluster), *a.owned)
    assert sum(record is not None for record in found.values()) <= 8 * 64
    assert await commit(a, dict.fromkeys(a.owned, 6)) == []


async def test_what_nobody_waits_for_is_not_tried_again_when_the_store_is_back(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty(leads=False)
    owned = Assignment(topic="t", partition=0, owner="a", session="s", epoch=1)
    await cluster.store.put(cluster.group.assignment(tp(0)), encode(owned))
    offsets = instance_of(cluster).offsets
    assert await offsets.commit(GROUP, "a", "s", [OffsetCommit(tp(0), 1, 1)]) == []
    faults.freeze()
    with anyio.move_on_after(1):
        await offsets.commit(GROUP, "a", "s", [OffsetCommit(tp(0), 1, 2)])
    # The first attempt ends by its deadline, of unknown outcome.
    await eventually(lambda: not offsets.waiting, within=10, what="it is given up")
    faults.thaw()
    assert await offset_of(instance_of(cluster), tp(0)) == (1, 1)


async def test_a_store_that_takes_less_than_it_says_gets_less(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=100)
    instance = await cluster.start_instance(wrap=TakesLess, leads=False)
    tps = [tp(number) for number in range(100)]
    for one in tps:
        owned = Assignment(topic="t", partition=one.partition, owner="a", session="s", epoch=1)
        await cluster.store.put(cluster.group.assignment(one), encode(owned))
    assert await instance.offsets.commit(GROUP, "a", "s", [OffsetCommit(one, 1, one.partition) for one in tps]) == []
    found = await fetch(instance, *tps)
    assert [record.offset for record in found.values() if record] == list(range(100))


async def test_a_full_queue_refuses_the_whole_call_and_recovers(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=20)
    faults = await cluster.start_faulty(leads=False)
    instance = instance_of(cluster)
    for number in range(20):
        owned = Assignment(topic="t", partition=number, owner="a", session="s", epoch=1)
        await cluster.store.put(cluster.group.assignment(tp(number)), encode(owned))

    def commits(count: int) -> list[OffsetCommit]:
        return [OffsetCommit(tp(number), 1, 5) for number in range(count)]

    keeping = OffsetService(
        instance.store, cluster.keys, instance.mirrors, cluster.clock, instance.metrics, CommitQueue(most=10)
    )
    async with keeping.running():
        assert await keeping.commit(GROUP, "a", "s", commits(10)) == []
        with pytest.raises(LimitReached, match="which takes 10"):
            await keeping.commit(GROUP, "a", "s", commits(11))
        faults.freeze()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeping.commit, GROUP, "a", "s", commits(8))
            await eventually(lambda: keeping.waiting == 8, within=5, what="they wait")
            with pytest.raises(LimitReached, match="8 offsets are waiting"):
                await keeping.commit(GROUP, "a", "s", commits(3))
            faults.thaw()
        assert await keeping.commit(GROUP, "a", "s", commits(10)) == []


# --- any course --------------------------------------------------------------------------------------------------


@pytest.mark.cluster(etcd_ttl=EXPIRES)
@pytest.mark.parametrize("mode", MODES)
async def test_under_joins_crashes_takeovers_and_lost_responses_only_owners_commit(
    any_cluster: Cluster, mode: HandoffMode
) -> None:
    """Everybody commits all the time, also under epochs that are over. What the store's history holds is checked when
    the world ends; here, that what was answered as committed is on record as the partition's owner left it."""
    cluster = any_cluster
    await cluster.set_options(handoff_mode=mode)
    await cluster.add_topic(partitions=6)
    faults = await cluster.start_faulty()
    faults.inject(LoseAnswer(), kinds={"transact"}, times=10, where=commits_an_offset(cluster))
    over = anyio.Event()
    last: dict[TopicPartition, tuple[int, int]] = {}
    """The highest epoch under which a commit was answered, with its offset."""
    counter = 0

    async def work(consumer: SteppedConsumer) -> None:
        nonlocal counter
        known: dict[TopicPartition, int] = {}
        while not over.is_set():
            known.update(consumer.owned)
            for one, epoch in known.items():
                counter += 1
                offset = counter
                if not await commit(consumer, {one: offset}, epoch=epoch, at=instance_of(cluster)):
                    last[one] = max(last.get(one, (0, 0)), (epoch, offset))
            await anyio.sleep(cluster.ttl / 60)

    async with anyio.create_task_group() as tasks:
        a = await cluster.join("a")
        tasks.start_soon(work, a)
        tasks.start_soon(work, await cluster.join("b"))
        await cluster.until_counts(a=3, b=3)
        tasks.start_soon(work, await cluster.join("c"))
        await cluster.until_counts(a=2, b=2, c=2)
        cluster.consumers["b"].crash()
        await cluster.until_counts(a=3, c=3, within=60)
        tasks.start_soon(work, await cluster.join("a", session="second"))
        await cluster.until(
            "restamped", lambda s: all(h.record.session != a.session for h in s.assignments.values()), 60
        )
        await cluster.consumers["c"].deregister()
        await cluster.until_counts(a=6, within=60)
        await eventually(lambda: len(last) == 6, within=20, what="commits of all partitions")
        over.set()
    found = await fetch(instance_of(cluster), *last)
    assert {one: (record.epoch, record.offset) for one, record in found.items() if record} == last
