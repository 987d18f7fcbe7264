"""A group or a topic that is deleted is gone whole, nobody who is at work loses anything, and no epoch goes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import anyio
import pytest

from assigner.admin.deletion import GroupDeletion
from assigner.api import OffsetCommit, Weights
from assigner.errors import (
    AssignerError,
    FailedPrecondition,
    StoreUnavailable,
    UnknownGroup,
    UnknownTopic,
    UnreadableRecord,
)
from assigner.instance import Instance
from assigner.model.keys import TopicPartition, encode_segment
from assigner.model.records import GroupIndex, GroupOptions, HandoffMode, encode
from assigner.store import Delete, Found, Operation, read_all
from assigner.testing.faults import Delay, Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster, cluster_on, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


async def keys_in(cluster: Cluster) -> set[str]:
    """Everything in the store, without what instances say of themselves."""
    entries = (await read_all(cluster.store, cluster.keys.root)).entries
    rest = {entry.key[len(cluster.keys.root) :] for entry in entries}
    return {key for key in rest if not key.startswith(("~instances/", "~incarnation"))}


async def used(
    cluster: Cluster, instance: Instance, group: str = GROUP, *, topic: str = "t"
) -> dict[TopicPartition, int]:
    """Let a group have one of everything, and everybody leave it. Its epochs."""
    await instance.operations.set_topic(group, topic, 2)
    await instance.operations.set_options(group, {"debounce": 0.1})

    async def topic_is_mirrored() -> bool:
        return topic in [config.topic for config in await instance.operations.topics(group)]

    await eventually(topic_is_mirrored)
    await instance.operations.set_loads(group, [Weights(topic, 0, (1.0, 2.0))], 3600.0, keep_others=False)
    a = await cluster.join(f"a of {group}", instance, group=group, topics=(topic,))
    await a.until("owns all", lambda a: len(a.owned) == 2)
    epochs = dict(a.owned)
    commits = [OffsetCommit(held, epoch, 7) for held, epoch in epochs.items()]
    assert await instance.offsets.commit(group, a.name, a.session, commits) == []
    await left(a)
    return epochs


async def left(consumer: SteppedConsumer) -> None:
    await consumer.deregister(gates_closed=True)
    consumer.crash()


async def delete(instance: Instance, group: str = GROUP, *, force: bool = True) -> int:
    removed, more = await instance.operations.delete_group(group, force=force)
    assert not more
    return removed


# --- a group -----------------------------------------------------------------------------------------------------


async def test_nothing_of_a_deleted_group_is_left_and_everything_of_others_is(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    for other in ("g2", "g/t", "h"):
        await used(any_cluster, instance, other)
    before = await keys_in(any_cluster)
    await used(any_cluster, instance, GROUP)
    assert await delete(instance) > 5
    await eventually(lambda: instance.leadership is not None and GROUP not in instance.leadership.led)

    async def only_the_others_are_there() -> bool:
        now = await keys_in(any_cluster)
        # The leader may have written more for the others since they were looked at.
        of_all = {key.split("/")[1 if key.startswith("~") else 0] for key in now - {"~epochs"}}
        kept = {key for key in before if key.split("/")[-1] != "leader"}
        return kept <= now and "~epochs" in now and of_all <= {encode_segment(other) for other in ("g2", "g/t", "h")}

    await eventually(only_the_others_are_there, within=20)
    with pytest.raises(UnknownGroup):
        await instance.operations.describe(GROUP)
    assert {one.group for one in await instance.operations.groups()} == {"g2", "g/t", "h"}


@pytest.mark.parametrize("force", [False, True])
async def test_a_group_with_a_registered_consumer_is_not_deleted_and_goes_on(any_cluster: Cluster, force: bool) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("worker-1")
    await any_cluster.until_counts(**{"worker-1": 2})
    before = await keys_in(any_cluster)
    with pytest.raises(FailedPrecondition, match="'worker-1'"):
        await instance.operations.delete_group(GROUP, force=force)
    # The leader may still be writing what the group's first plan brings.
    assert before <= await keys_in(any_cluster)
    assert a.ended is None
    await any_cluster.join("worker-2")
    await any_cluster.until_counts(**{"worker-1": 1, "worker-2": 1})


async def test_a_deletion_that_is_called_off_leaves_the_entry_in_the_index_as_it_was(any_cluster: Cluster) -> None:
    """A consumer registers between the first look and the second."""
    faults = await any_cluster.start_faulty("i1")
    await any_cluster.start_instance("i2")
    key = any_cluster.keys.group_index(GROUP)
    entry = encode(GroupIndex(group=GROUP, prefix=any_cluster.group.prefix), {"of_tomorrow": 1})
    await any_cluster.store.put(key, entry)
    taken_out = Delay(1.0)
    faults.inject(taken_out, kinds={"transact"}, where=lambda _, __, operations, *___: Delete(key) in operations)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(any_cluster.join, "quick", any_cluster.instances["i2"])
        with pytest.raises(FailedPrecondition, match="'quick'"):
            await any_cluster.instances["i1"].operations.delete_group(GROUP, force=True)
    found = await any_cluster.store.get(key)
    assert isinstance(found, Found)
    assert found.entry.value == entry


async def test_rule_6_epochs_of_a_group_of_the_same_name_are_above_those_of_the_deleted_one(
    any_cluster: Cluster,
) -> None:
    highest = 0
    for life in range(3):
        # Another instance each time, so that it is the store that remembers.
        instance = await any_cluster.start_instance(f"i{life}")
        epochs = await used(any_cluster, instance)
        assert min(epochs.values()) > highest
        highest = max(epochs.values())
        await delete(instance)
        await any_cluster.stop_instance(f"i{life}")


async def test_epochs_of_any_new_group_are_above_those_of_the_deleted(cluster: Cluster) -> None:
    """One floor for all, so that nothing has to be remembered by name."""
    instance = await cluster.start_instance()
    highest = max((await used(cluster, instance)).values())
    await delete(instance)
    assert min((await used(cluster, instance, "another")).values()) > highest


async def test_what_was_owned_a_moment_ago_is_deleted_later_or_by_force(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    await used(cluster, instance)
    with pytest.raises(FailedPrecondition, match="wait for that, or use force"):
        await delete(instance, force=False)
    assert instance.leadership is not None
    assert GROUP in instance.leadership.groups
    await anyio.sleep(3 * cluster.ttl)
    assert await delete(instance, force=False)


async def test_no_force_deletes_an_exclusive_group_whose_owners_may_not_have_stopped(cluster: Cluster) -> None:
    instance = await cluster.start_instance(group=GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE))
    await used(cluster, instance)
    with pytest.raises(FailedPrecondition, match="exclusive"):
        await delete(instance, force=True)
    await anyio.sleep(3 * cluster.ttl)
    assert await delete(instance, force=False)


async def test_an_unknown_group_is_not_deleted(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    with pytest.raises(UnknownGroup):
        await delete(instance, "nobodys")


async def test_a_record_whose_epoch_can_not_be_read_is_not_destroyed(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    await used(cluster, instance)
    await cluster.store.put(cluster.group.assignment(tp(1)), b"not JSON")
    with pytest.raises(UnreadableRecord):
        await delete(instance)
    assert isinstance(await cluster.store.get(cluster.group.assignment(tp(1))), Found)
    await cluster.store.delete(cluster.group.assignment(tp(1)))
    await delete(instance)


async def test_a_groupless_default_group_takes_no_other_with_it() -> None:
    async with cluster_on("memory", groupless=True) as cluster:
        instance = await cluster.start_instance()
        await used(cluster, instance, "other")
        others = {key for key in await keys_in(cluster) if "other" in key}
        await used(cluster, instance, GROUP)
        await delete(instance)
        assert {key for key in await keys_in(cluster) if "other" in key} >= others


# --- halfway -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(8))
async def test_a_deletion_that_was_broken_off_goes_on_when_it_is_asked_for_again(cluster: Cluster, after: int) -> None:
    store = await cluster.start_faulty()
    instance = cluster.instances["i1"]
    epochs = await used(cluster, instance)
    broken = store.inject(Refuse("gone"), kinds={"transact"}, times=None, where=_nth_deletion(after))
    with pytest.raises(StoreUnavailable):
        await delete(instance)
    broken.remove()
    found = await cluster.store.get(cluster.keys.deleting(GROUP))
    if isinstance(found, Found):
        with pytest.raises(FailedPrecondition, match="is being deleted"):
            await cluster.join("b")
    await delete(instance)
    assert not {key for key in await keys_in(cluster) if not key.endswith(("/leader", "~epochs"))}
    assert min((await used(cluster, instance)).values()) > max(epochs.values())


def _nth_deletion(number: int) -> Callable[..., bool]:
    seen = 0

    def deletes(_kind: str, _compares: object, operations: Sequence[Operation], *_: object) -> bool:
        nonlocal seen
        of_deletion = any(isinstance(op, Delete) or op.key.endswith("~epochs") for op in operations)
        seen += of_deletion
        return of_deletion and seen > number

    return deletes


async def test_a_large_group_goes_in_several_calls(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    await instance.operations.set_topic(GROUP, "t", 3_000)
    a = await cluster.join("a")
    await a.until("owns all", lambda a: len(a.owned) == 3_000, within=60)
    await left(a)
    deletion = GroupDeletion(instance.store, cluster.keys, instance.directory, GroupOptions())
    calls = 0
    more = True
    while more:
        _, more = await deletion.delete_group(GROUP, force=True, most=1_000)
        calls += 1
    assert calls >= 3
    assert not {key for key in await keys_in(cluster) if key.startswith("g/assignments")}


async def test_rule_5_who_registers_just_before_the_group_is_deleted_is_not_left_without_a_leader(
    cluster: Cluster,
) -> None:
    """The registration is on its way to the store while the group goes."""
    slow = await cluster.start_faulty("i2")
    i1, i2 = await cluster.start_instance("i1"), cluster.instances["i2"]
    await used(cluster, i1)

    def registers(_kind: str, _compares: object, operations: Sequence[Operation], *_: object) -> bool:
        return any(op.key == cluster.group.consumer("late") for op in operations)

    held = slow.inject(Delay(2.0), kinds={"transact"}, where=registers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.join, "late", i2)
        await eventually(lambda: held.hits == 1)
        await delete(i1)
    await eventually(lambda: any(i.leadership and GROUP in i.leadership.led for i in (i1, i2)), within=60)
    await i1.operations.set_topic(GROUP, "t", 2)
    await cluster.consumers["late"].until("is given what there is", lambda late: len(late.owned) == 2, within=60)


@pytest.mark.parametrize("seed", range(12))
async def test_who_registers_while_the_group_is_deleted_is_refused_or_led(cluster: Cluster, seed: int) -> None:
    """Whichever comes first: never is somebody registered in a group that nobody leads, and no epoch goes back."""
    chance = random.Random(seed)
    faulty = await cluster.start_faulty("i1")
    other = await cluster.start_faulty("i2")
    i1, i2 = cluster.instances["i1"], cluster.instances["i2"]
    highest = max((await used(cluster, i1)).values())
    for store in (faulty, other):
        for _ in range(20):
            store.inject(Delay(chance.uniform(0, 2)), kinds={"transact", "get", "list"}, where=_some(chance))
    joined: list[SteppedConsumer] = []

    async def join() -> None:
        await anyio.sleep(chance.uniform(0, 4))
        while not joined:
            try:
                joined.append(await cluster.join("late", i2))
            except AssignerError:
                await anyio.sleep(chance.uniform(0.1, 1))

    async def remove() -> None:
        await anyio.sleep(chance.uniform(0, 4))
        for _ in range(20):
            try:
                await delete(i1)
            except (FailedPrecondition, StoreUnavailable, UnknownGroup):
                return
            else:
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(join)
        tasks.start_soon(remove)
    faulty.heal()
    other.heal()
    if isinstance(await cluster.store.get(cluster.keys.deleting(GROUP)), Found):
        pytest.fail("the deletion neither ended nor was taken back")
    await i1.operations.set_topic(GROUP, "t", 2)
    await joined[0].until("is given what there is", lambda a: len(a.owned) == 2, within=120)
    assert min(joined[0].owned.values()) > highest or min(joined[0].owned.values()) == highest + 1


def _some(chance: random.Random) -> Callable[..., bool]:
    return lambda *_: chance.random() < 0.3


# --- a topic -----------------------------------------------------------------------------------------------------


async def test_a_deleted_topic_is_gone_with_its_offsets_and_the_others_stay(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    await instance.operations.set_topic(GROUP, "kept", 2)
    before = await keys_in(any_cluster)
    epochs = await used(any_cluster, instance, topic="t")
    removed, more = await instance.operations.delete_topic(GROUP, "t", force=True)
    # Its ownership records are deleted by the leader or by this call, whichever is first.
    assert (removed > 0, more) == (True, False)
    assert [config.topic for config in await instance.operations.topics(GROUP)] == ["kept"]
    assert not [key for key in await keys_in(any_cluster) if "/t/" in key or key.endswith("/t")]
    assert before <= await keys_in(any_cluster)
    assert min((await used(any_cluster, instance)).values()) > max(epochs.values())


async def test_a_topic_is_not_deleted_while_a_consumer_is_registered(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    await any_cluster.join("worker-1")
    await any_cluster.until_counts(**{"worker-1": 2})
    with pytest.raises(FailedPrecondition, match="'worker-1'"):
        await instance.operations.delete_topic(GROUP, "t", force=True)
    await any_cluster.until_counts(**{"worker-1": 2})


async def test_an_unknown_topic_is_not_deleted(cluster: Cluster) -> None:
    await cluster.add_topic()
    instance = await cluster.start_instance()
    with pytest.raises(UnknownTopic, match="'nosuch'"):
        await instance.operations.delete_topic(GROUP, "nosuch", force=True)
