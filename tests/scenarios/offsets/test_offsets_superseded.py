"""What was answered stays: no earlier commit takes the place of a later one that was answered, however late it comes.

The store may act on a transaction long after its caller gave it up. So each try of a commit compares the record it is
to replace, and whatever replaced that record in the meantime has won.
"""

from __future__ import annotations

import random

import anyio
import pytest

from assigner.api import CommitRefusal, NewOffset, OffsetCommit, RefusedCommit
from assigner.core.offset_commits import OffsetRevisions
from assigner.errors import FailedPrecondition
from assigner.instance import Instance
from assigner.model.records import Assignment, Offset, decode, encode
from assigner.offsets.commit import TRIES
from assigner.store import PutEvent
from assigner.testing.faults import AnswerAfter, Delay, EffectAfter, FaultyStore, LoseAnswer
from assigner.testing.waiting import eventually
from tests.scenarios.offsets.test_offsets_in_trouble import commits_an_offset
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.committing import everything_since, fetch, instance_of, offset_of

pytestmark = pytest.mark.virtual_time
LATE = EffectAfter(error_after=0.2, effect_after=1.0)


async def owned_by_a(cluster: Cluster, *instances: str) -> list[FaultyStore]:
    """Partition 0 is a's, under epoch 1, and nobody leads: nothing changes that but the test."""
    await cluster.add_topic(partitions=2)
    for number in range(2):
        owned = Assignment(topic="t", partition=number, owner="a", session="s", epoch=1)
        await cluster.store.put(cluster.group.assignment(tp(number)), encode(owned))
    return [await cluster.start_faulty(name, leads=False) for name in instances]


async def commit(instance: Instance, offset: int, partition: int = 0) -> list[RefusedCommit]:
    return await instance.offsets.commit(GROUP, "a", "s", [OffsetCommit(tp(partition), 1, offset)])


async def until_everything_took_effect(*stores: FaultyStore) -> None:
    await eventually(lambda: not any(store.late_effects for store in stores), within=30, what="late effects came")


async def test_rule_18_an_answered_commit_is_not_replaced_by_an_earlier_try_of_the_one_before(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    (faults,) = await owned_by_a(cluster, "i1")
    i1 = instance_of(cluster)
    late = faults.inject(LATE, kinds={"transact"}, where=commits_an_offset(cluster))
    assert await commit(i1, 10) == [], "the second try went in"
    assert await commit(i1, 20) == []
    await until_everything_took_effect(faults)
    assert late.hits == 1
    assert await offset_of(i1, tp(0)) == (20, 1)


async def test_an_acknowledged_commit_is_not_replaced_by_one_that_was_abandoned_at_the_same_instance(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    (faults,) = await owned_by_a(cluster, "i1")
    i1 = instance_of(cluster)
    faults.inject(LATE, kinds={"transact"}, times=TRIES, where=commits_an_offset(cluster))
    (refused,) = await commit(i1, 10)
    assert refused.why is CommitRefusal.FAILED
    assert await commit(i1, 20) == []
    await until_everything_took_effect(faults)
    assert await offset_of(i1, tp(0)) == (20, 1)


async def test_an_acknowledged_commit_is_not_replaced_by_one_that_was_abandoned_at_another_instance(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    first, _ = await owned_by_a(cluster, "i1", "i2")
    i1, i2 = instance_of(cluster, "i1"), instance_of(cluster, "i2")
    assert await commit(i1, 5) == []
    first.inject(EffectAfter(0.2, 1.5), kinds={"transact"}, where=commits_an_offset(cluster))
    with anyio.move_on_after(0.1):
        await commit(i1, 10)
    assert await commit(i2, 20) == []
    await until_everything_took_effect(first)
    assert await offset_of(i2, tp(0)) == (20, 1)


async def test_a_commit_that_got_through_although_nobody_said_so_is_written_once(any_cluster: Cluster) -> None:
    cluster = any_cluster
    (faults,) = await owned_by_a(cluster, "i1")
    i1 = instance_of(cluster)
    assert await commit(i1, 5) == []
    lost = faults.inject(LoseAnswer(applied=True), kinds={"transact"}, where=commits_an_offset(cluster))
    assert await commit(i1, 10) == []
    assert lost.hits == 1
    assert await written(cluster) == [5, 10]


async def test_a_commit_that_may_have_lost_to_another_is_refused_for_a_retry_and_replaces_nothing(
    any_cluster: Cluster,
) -> None:
    """Which of the two is the later one nobody can tell any more, but the owner."""
    cluster = any_cluster
    first, _ = await owned_by_a(cluster, "i1", "i2")
    i1, i2 = instance_of(cluster, "i1"), instance_of(cluster, "i2")
    assert await commit(i1, 5) == []
    first.inject(EffectAfter(4.0, 5.0), kinds={"transact"}, where=commits_an_offset(cluster))
    answers: list[list[RefusedCommit]] = []

    async def early() -> None:
        answers.append(await commit(i1, 10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(early)
        await eventually(lambda: first.late_effects == 1, within=10, what="10 is on its way")
        assert await commit(i2, 20) == []
    ((refused,),) = answers
    assert refused.why is CommitRefusal.FAILED
    assert "commit again" in refused.reason
    assert await offset_of(i2, tp(0)) == (20, 1)
    assert await commit(i1, 30) == []
    await until_everything_took_effect(first)
    assert await offset_of(i2, tp(0)) == (30, 1)


async def test_a_commit_that_was_held_up_at_its_instance_replaces_none_that_was_answered_meanwhile(
    any_cluster: Cluster,
) -> None:
    """As if the instance had been frozen: the owner has long gone on elsewhere when it wakes up, and it can't know."""
    cluster = any_cluster
    first, _ = await owned_by_a(cluster, "i1", "i2")
    i1, i2 = instance_of(cluster, "i1"), instance_of(cluster, "i2")
    assert await commit(i1, 5) == []
    held_up = first.inject(Delay(3.0), kinds={"transact"}, where=commits_an_offset(cluster))
    answers: list[list[RefusedCommit]] = []

    async def early() -> None:
        answers.append(await commit(i1, 10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(early)
        await eventually(lambda: held_up.hits == 1, within=10, what="10 is held up")
        assert await commit(i2, 20) == []
    ((refused,),) = answers
    assert refused.why is CommitRefusal.FAILED
    assert "commit again" in refused.reason
    assert await offset_of(i2, tp(0)) == (20, 1)
    assert await commit(i1, 30) == []
    assert await offset_of(i2, tp(0)) == (30, 1)


async def test_an_owner_that_changes_instances_commits_on(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await owned_by_a(cluster, "i1", "i2")
    for offset in range(1, 7):
        assert await commit(instance_of(cluster, f"i{1 + offset % 2}"), offset) == []
    assert await written(cluster) == [1, 2, 3, 4, 5, 6]


async def test_an_owner_may_go_back_while_an_earlier_try_is_still_on_its_way(any_cluster: Cluster) -> None:
    cluster = any_cluster
    (faults,) = await owned_by_a(cluster, "i1")
    i1 = instance_of(cluster)
    faults.inject(LATE, kinds={"transact"}, where=commits_an_offset(cluster))
    assert await commit(i1, 100) == []
    assert await commit(i1, 7) == []
    await until_everything_took_effect(faults)
    assert await offset_of(i1, tp(0)) == (7, 1)


async def test_an_offset_deleted_meanwhile_is_committed_anew(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await owned_by_a(cluster, "i1")
    i1 = instance_of(cluster)
    assert await commit(i1, 5) == []
    await cluster.store.delete(cluster.keys.offset(GROUP, tp(0)))
    assert await commit(i1, 6) == []
    assert await offset_of(i1, tp(0)) == (6, 1)


async def test_one_offset_that_was_changed_by_another_fails_no_other(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await owned_by_a(cluster, "i1", "i2")
    i1, i2 = instance_of(cluster, "i1"), instance_of(cluster, "i2")
    assert await commit(i1, 1, 0) == await commit(i1, 1, 1) == []
    assert await commit(i2, 2, 1) == []
    both = [OffsetCommit(tp(0), 1, 3), OffsetCommit(tp(1), 1, 3)]
    before = i1.offsets.transactions
    assert await i1.offsets.commit(GROUP, "a", "s", both) == []
    assert i1.offsets.transactions - before == 2
    found = await fetch(i1, tp(0), tp(1))
    assert [record.offset for record in found.values() if record] == [3, 3]


# --- operators ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
async def test_rule_18_what_an_operator_set_is_not_replaced_by_an_earlier_try(
    any_cluster: Cluster, force: bool
) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty("i1", leads=False)
    i1 = instance_of(cluster)
    faults.inject(LATE, kinds={"transact"}, where=commits_an_offset(cluster))
    assert await i1.operations.set_offsets(GROUP, {tp(0): NewOffset(10)}, force=force) == 1
    assert await i1.operations.set_offsets(GROUP, {tp(0): NewOffset(20)}, force=force) == 1
    await until_everything_took_effect(faults)
    assert await offset_of(i1, tp(0)) == (20, 0)


async def test_a_commit_is_not_replaced_by_a_forced_reset_that_was_abandoned(any_cluster: Cluster) -> None:
    cluster = any_cluster
    (faults,) = await owned_by_a(cluster, "i1")
    i1 = instance_of(cluster)
    assert await commit(i1, 5) == []
    faults.inject(LATE, kinds={"transact"}, where=commits_an_offset(cluster))
    with anyio.move_on_after(0.1):
        await i1.operations.set_offsets(GROUP, {tp(0): NewOffset(0)}, force=True)
    assert await commit(i1, 20) == []
    await until_everything_took_effect(faults)
    assert await offset_of(i1, tp(0)) == (20, 1)


async def test_what_was_set_although_nobody_said_so_counts_as_set(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty("i1", leads=False)
    i1 = instance_of(cluster)
    for wanted in (NewOffset(10), None):
        lost = faults.inject(LoseAnswer(applied=True), kinds={"transact"}, where=commits_an_offset(cluster))
        assert await i1.operations.set_offsets(GROUP, {tp(0): wanted}, force=False) == 1
        assert lost.hits == 1
    assert await offset_of(i1, tp(0)) is None


async def test_an_operator_who_may_have_lost_to_a_commit_gets_an_error(any_cluster: Cluster) -> None:
    cluster = any_cluster
    first, _ = await owned_by_a(cluster, "i1", "i2")
    i1, i2 = instance_of(cluster, "i1"), instance_of(cluster, "i2")
    first.inject(EffectAfter(4.0, 5.0), kinds={"transact"}, where=commits_an_offset(cluster))

    async def set_by_force() -> None:
        with pytest.raises(
            FailedPrecondition, match="t/0 of group 'g' was committed or set by somebody else meanwhile"
        ):
            await i1.operations.set_offsets(GROUP, {tp(0): NewOffset(0)}, force=True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(set_by_force)
        await eventually(lambda: first.late_effects == 1, within=10, what="it is on its way")
        assert await commit(i2, 20) == []
    await until_everything_took_effect(first)
    assert await offset_of(i2, tp(0)) == (20, 1)


# --- what an instance remembers ----------------------------------------------------------------------------------


def test_an_instance_remembers_the_revisions_of_the_offsets_committed_last_and_no_more() -> None:
    known = OffsetRevisions(most=3)
    for number in range(3):
        known.put(f"k{number}", number + 1)
    known.put("k0", 9)
    known.put("k3", 4)
    assert len(known) == 3
    assert [known.get(f"k{number}") for number in range(4)] == [9, 0, 3, 4]
    known.put("k3", 0)
    assert len(known) == 2


async def test_what_an_instance_has_forgotten_it_asks_for(cluster: Cluster) -> None:
    await owned_by_a(cluster, "i1")
    i1 = instance_of(cluster)
    for offset in (1, 2):
        assert await commit(i1, offset) == []
    i1.offsets.revisions.put(cluster.keys.offset(GROUP, tp(0)), 0)
    before = i1.offsets.transactions
    assert await commit(i1, 3) == []
    assert i1.offsets.transactions - before == 2
    assert await commit(i1, 4) == []
    assert i1.offsets.transactions - before == 3


# --- any course --------------------------------------------------------------------------------------------------


async def written(cluster: Cluster) -> list[int]:
    """Every offset that was ever on record for partition 0, in order."""
    key = cluster.keys.offset(GROUP, tp(0))
    events = await everything_since(cluster, cluster.began)
    return [
        decode(Offset, event.entry.value)[0].offset
        for event in events
        if isinstance(event, PutEvent) and event.entry.key == key
    ]


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_late_or_lost_an_owner_that_goes_forward_never_finds_itself_set_back(
    cluster: Cluster, seed: int
) -> None:
    """One owner, one commit after the other, by either instance, given up after a while and never repeated."""
    rng = random.Random(seed)
    stores = await owned_by_a(cluster, "i1", "i2")
    answered = 0
    for offset in range(1, 200):
        store = rng.choice(stores)
        fault = rng.choice(
            [
                EffectAfter(error := rng.uniform(0, 3), error + rng.uniform(0, 5)),
                AnswerAfter(rng.uniform(0, 3)),
                LoseAnswer(applied=rng.random() < 0.5),
                None,
            ]
        )
        if fault:
            store.inject(fault, kinds={"transact"}, times=rng.randrange(1, 3), where=commits_an_offset(cluster))
        with anyio.move_on_after(rng.uniform(0.5, 8)):
            if not await commit(instance_of(cluster, rng.choice(["i1", "i2"])), offset):
                answered = offset
        record = await offset_of(instance_of(cluster, "i1"), tp(0))
        assert (record[0] if record else 0) >= answered
    await until_everything_took_effect(*stores)
    assert answered > 50
    history = await written(cluster)
    assert history == sorted(history)
