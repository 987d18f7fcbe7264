"""A group is of one kind at a time: only an empty one changes it, no two kinds win together, and offsets stay."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import CommitRefusal, NewOffset, OffsetCommit, RouterRegistration, WantedOffsets
from assigner.election import Term
from assigner.errors import FailedPrecondition, GroupKindMismatch, UnreadableRecord
from assigner.instance import Instance
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicMemberRecord
from assigner.model.records import GroupIndex, decode, encode
from assigner.storage.kinds import ASSIGNER, CLASSIC
from assigner.store import Conflict, Found, Page, Put, Store, read_all
from assigner.testing.faults import FaultyStore
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time

MEMBER = ClassicMemberRecord(member_id="classic-1", session_timeout=1000, rebalance_timeout=1000)


class Terms:
    """Stands in for the work of those who lead classic groups: notes the terms."""

    def __init__(self, instance: Instance) -> None:
        self.running: list[Term] = []
        self.begun: list[Term] = []
        instance.lead_classic = self.lead

    async def lead(self, term: Term) -> None:
        self.begun.append(term)
        self.running.append(term)
        try:
            await anyio.sleep_forever()
        finally:
            self.running.remove(term)


async def entry(store: Store, cluster: Cluster) -> GroupIndex:
    found = await store.get(cluster.keys.group_index(GROUP))
    assert isinstance(found, Found)
    return decode(GroupIndex, found.entry.value)[0]


async def kind_of(cluster: Cluster) -> str:
    known = await entry(cluster.store, cluster)
    assert known.changing_to == ""
    return known.kind


async def put_members(cluster: Cluster, *members: ClassicMemberRecord) -> None:
    record = ClassicGroupRecord(generation=1, protocol_type="consumer", members=members)
    await cluster.store.put(cluster.keys.kafka_state(GROUP), encode(record))


async def used_and_left(cluster: Cluster) -> tuple[Instance, SteppedConsumer, int]:
    """A group that a consumer has left, its ownership still on record. The instance, the consumer, an epoch."""
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await a.until("owns all", lambda a: len(a.owned) == 2)
    epoch = min(a.owned.values())
    await a.deregister(gates_closed=True)
    a.crash()
    await cluster.until("a has left", lambda state: not state.consumers)
    return instance, a, epoch


# --- changing ------------------------------------------------------------------------------------------------------


async def test_an_empty_group_changes_its_kind_and_back_and_keeps_its_offsets(any_cluster: Cluster) -> None:
    instance, _, epoch = await used_and_left(any_cluster)
    classic = Terms(instance)
    await instance.operations.set_offsets(GROUP, {tp(0): NewOffset(41, 3, "m")}, force=True)
    await instance.directory.enter(GROUP, CLASSIC)
    assert await kind_of(any_cluster) == CLASSIC
    await eventually(lambda: len(classic.running) == 1, within=20 + any_cluster.allowance)
    assert (await any_cluster.state()).assignments == {}
    found = await instance.offsets.fetch(GROUP, WantedOffsets((tp(0),)))
    assert [record and (record.offset, record.leader_epoch, record.metadata) for _, record in found.offsets] == [
        (41, 3, "m")
    ]
    b = await any_cluster.join("b")
    await b.until("owns all", lambda b: len(b.owned) == 2)
    assert min(b.owned.values()) > epoch
    assert await kind_of(any_cluster) == ASSIGNER
    assert classic.running == []


async def test_the_new_kind_is_led_in_another_term_and_the_old_one_can_write_nothing(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    classic = Terms(instance)
    await instance.directory.enter(GROUP, CLASSIC)
    await eventually(lambda: len(classic.running) == 1, within=20 + any_cluster.allowance)
    term = classic.begun[0]
    await instance.directory.enter(GROUP, ASSIGNER)
    late = await any_cluster.store.transact([term.fence], [Put(any_cluster.keys.kafka_state(GROUP), b"late")])
    assert isinstance(late, Conflict)
    await eventually(lambda: not classic.running, within=20 + any_cluster.allowance)
    await instance.directory.enter(GROUP, CLASSIC)
    await eventually(lambda: len(classic.running) == 1, within=20 + any_cluster.allowance)
    assert classic.running[0].revision > term.revision


async def test_an_owner_of_before_commits_nothing_any_more(any_cluster: Cluster) -> None:
    instance, a, epoch = await used_and_left(any_cluster)
    commit = OffsetCommit(tp(0), epoch, 7)
    assert await instance.offsets.commit(GROUP, a.name, a.session, [commit]) == []
    await instance.directory.enter(GROUP, CLASSIC)
    refused = await instance.offsets.commit(GROUP, a.name, a.session, [commit])
    assert [one.why for one in refused] == [CommitRefusal.FENCED]


# --- refusing ------------------------------------------------------------------------------------------------------


async def refused(instance: Instance, kind: str, named: str) -> None:
    with pytest.raises(GroupKindMismatch) as refusal:
        await instance.directory.enter(GROUP, kind)
    assert named in str(refusal.value)
    assert "stop them first, or choose another group" in str(refusal.value)


async def test_a_group_with_a_consumer_stays_as_it_is(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("worker-1")
    await any_cluster.until_counts(**{"worker-1": 2})
    await refused(instance, CLASSIC, "of kind 'assigner' and can't be used as 'classic' while members are registered")
    assert await kind_of(any_cluster) == ASSIGNER
    assert a.ended is None
    await any_cluster.join("worker-2")
    await any_cluster.until_counts(**{"worker-1": 1, "worker-2": 1})


async def test_a_group_with_a_router_stays_as_it_is(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    await instance.routers.register(RouterRegistration(GROUP, "edge", "session-of-edge"))
    await refused(instance, CLASSIC, "'edge'")


async def test_a_group_with_classic_members_stays_as_it_is(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    await instance.directory.enter(GROUP, CLASSIC)
    await put_members(any_cluster, MEMBER)
    with pytest.raises(GroupKindMismatch, match=r"of kind 'classic' .* 'classic-1'; stop them first"):
        await any_cluster.join("a")
    with pytest.raises(GroupKindMismatch, match="'classic-1'"):
        await instance.routers.register(RouterRegistration(GROUP, "edge", "session-of-edge"))
    assert await kind_of(any_cluster) == CLASSIC
    await put_members(any_cluster)
    await any_cluster.join("a")
    assert await kind_of(any_cluster) == ASSIGNER


async def test_members_that_cant_be_read_count(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    await instance.directory.enter(GROUP, CLASSIC)
    await cluster.store.put(cluster.keys.kafka_state(GROUP), b"?")
    await refused(instance, ASSIGNER, "can't be read")


@pytest.mark.parametrize("key", ["t/0", "t/x"], ids=["unreadable", "foreign"])
async def test_an_owner_whose_epoch_cant_be_read_keeps_the_group_as_it_is(cluster: Cluster, key: str) -> None:
    instance, _, _ = await used_and_left(cluster)
    await cluster.store.put(cluster.group.assignments + key, b"?")
    with pytest.raises(UnreadableRecord):
        await instance.directory.enter(GROUP, CLASSIC)
    assert await kind_of(cluster) == ASSIGNER
    assert isinstance(await cluster.store.get(cluster.group.assignments + key), Found)


async def test_what_operators_set_does_not_change_the_kind(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    await instance.directory.enter(GROUP, CLASSIC)
    await instance.operations.set_topic(GROUP, "t", 2)
    await instance.operations.set_options(GROUP, {"debounce": 0.1}, create=True)
    assert await kind_of(any_cluster) == CLASSIC


# --- races ---------------------------------------------------------------------------------------------------------


async def test_what_was_admitted_before_a_change_was_marked_is_not_written_after_it(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    admitted = await instance.directory.enter(GROUP)
    await instance.directory.enter(GROUP, CLASSIC)
    put = Put(any_cluster.group.consumer("late"), b"{}")
    assert isinstance(await any_cluster.store.transact([admitted], [put]), Conflict)


class JoinsMeanwhile(FaultyStore):
    """Another consumer registers while the group is marked, or just before."""

    def __init__(self, store: Store, cluster: Cluster) -> None:
        super().__init__(store)
        self.cluster = cluster
        self.armed = False

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000, revision: int = 0) -> Page:
        found = await super().list(prefix, after=after, limit=limit, revision=revision)
        if self.armed and prefix == self.cluster.group.consumers:
            self.armed = False
            await self.cluster.join("quick", self.cluster.instances["i2"])
        return found


async def test_a_consumer_that_joins_between_the_look_and_the_change_wins(any_cluster: Cluster) -> None:
    stores: list[JoinsMeanwhile] = []

    def wrap(store: Store) -> Store:
        stores.append(JoinsMeanwhile(store, any_cluster))
        return stores[0]

    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance("i1", wrap=wrap)
    await any_cluster.start_instance("i2")
    stores[0].armed = True
    await refused(instance, CLASSIC, "'quick'")
    assert await kind_of(any_cluster) == ASSIGNER
    await any_cluster.until_counts(quick=2)


@pytest.mark.parametrize("course", range(3))
async def test_two_kinds_never_win_together(any_cluster: Cluster, course: int) -> None:
    await any_cluster.add_topic(partitions=2)
    one = await any_cluster.start_instance("i1")
    two = await any_cluster.start_instance("i2")
    outcomes: list[str] = []

    async def join(name: str) -> None:
        try:
            await any_cluster.join(name, two)
        except GroupKindMismatch:
            outcomes.append(f"{name} refused")
        else:
            outcomes.append(f"{name} joined")

    async def become_classic() -> None:
        try:
            fence = await one.directory.enter(GROUP, CLASSIC)
        except GroupKindMismatch:
            outcomes.append("classic refused")
            return
        record = encode(ClassicGroupRecord(generation=1, members=(MEMBER,)))
        done = await any_cluster.store.transact([fence], [Put(any_cluster.keys.kafka_state(GROUP), record)])
        outcomes.append("classic lost" if isinstance(done, Conflict) else "classic joined")

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(join, f"c{number}")
        for _ in range(course + 1):
            tasks.start_soon(become_classic)
    state = await any_cluster.state()
    members = await read_all(any_cluster.store, any_cluster.keys.kafka_group(GROUP))
    assert not (state.consumers and members.entries), outcomes
    joined = {one.removesuffix(" joined") for one in outcomes if one.endswith(" joined")}
    assert set(state.consumers) == joined - {"classic"}


@pytest.mark.parametrize("kind", [ASSIGNER, CLASSIC])
async def test_a_change_that_was_interrupted_is_ended_by_who_comes_next(any_cluster: Cluster, kind: str) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    marked = GroupIndex(group=GROUP, changing_to=CLASSIC)
    await any_cluster.store.put(any_cluster.keys.group_index(GROUP), encode(marked))
    if kind == CLASSIC:
        await instance.directory.enter(GROUP, CLASSIC)
    else:
        await any_cluster.join("a")
    assert await kind_of(any_cluster) == kind


# --- deleting ------------------------------------------------------------------------------------------------------


async def test_a_classic_group_is_deleted_with_its_records_once_its_members_are_gone(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    await instance.directory.enter(GROUP, CLASSIC)
    await put_members(any_cluster, MEMBER)
    with pytest.raises(FailedPrecondition, match="'classic-1'"):
        await instance.operations.delete_group(GROUP, force=True)
    assert await kind_of(any_cluster) == CLASSIC
    await put_members(any_cluster)
    await instance.operations.delete_group(GROUP, force=False)
    assert (await read_all(any_cluster.store, any_cluster.keys.kafka_group(GROUP))).entries == ()


# --- seeing --------------------------------------------------------------------------------------------------------


async def test_any_instance_knows_where_a_groups_leader_is(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance("i1")
    other = await any_cluster.start_instance("i2", leads=False)
    await instance.directory.enter(GROUP, CLASSIC)
    async with other.mirrors.of(GROUP) as mirror:

        def is_known() -> bool:
            leader = mirror.state.leader
            return leader is not None and leader.record.address == "i1:1"

        await eventually(is_known, within=20 + any_cluster.allowance)
