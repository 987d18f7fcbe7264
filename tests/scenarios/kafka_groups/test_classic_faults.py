"""What goes wrong around a classic group: leaders that die or are deposed, a store that is away or says too little."""

from __future__ import annotations

import anyio
import pytest

from assigner.core.kafka_groups.classic.actions import Limits
from assigner.election import Term
from assigner.errors import GroupKindMismatch
from assigner.kafka_groups.assignor import ServerAssignor
from assigner.kafka_groups.commits import ClassicOffsets
from assigner.kafka_groups.coordinator import GroupCoordinator
from assigner.kafka_groups.held import HeldRequests
from assigner.kafka_groups.records import GroupRecords
from assigner.model.kafka_groups import (
    ClassicGroupRecord,
    ClassicState,
    CommitAnswer,
    KafkaError,
    LeaveRequest,
    LeavingMember,
    SyncRequest,
)
from assigner.model.records import Offset, decode
from assigner.store import CreateRevisionIs, Found, Put
from assigner.testing.faults import Delay, EffectAfter, LoseAnswer, Refuse
from tests.scenarios.kafka_groups.conftest import ClassicScene
from tests.support.classic_members import ClassicMember
from tests.support.cluster import EXPIRES, tp

pytestmark = pytest.mark.virtual_time


class Load:
    """A member that commits one offset after another of a partition that it owns."""

    def __init__(self, member: ClassicMember) -> None:
        self.member = member
        self.partition = member.owned[0]
        self.answered = 0

    async def run(self) -> None:
        while True:
            errors = await self.member.commit({self.partition: self.answered + 1})
            assert errors == {self.partition: KafkaError.NONE}
            self.answered += 1
            await anyio.sleep(0.05)


async def offset_of(scene: ClassicScene, partition: int) -> int:
    found = await scene.cluster.store.get(scene.cluster.keys.offset("g", tp(partition)))
    return decode(Offset, found.entry.value)[0].offset if isinstance(found, Found) else -1


def rebalances(scene: ClassicScene) -> dict[str, int]:
    return {name: one.rebalances for name, one in scene.members.items()}


def writes_group(*arguments: object) -> bool:
    """Whether a call writes the group's record."""
    return any(isinstance(one, Put) and one.key.endswith("/state") for one in arguments[2])  # type: ignore[attr-defined]


# --- the leader ----------------------------------------------------------------------------------------------------


@pytest.mark.cluster(ttl=EXPIRES)
async def test_a_coordinator_that_dies_costs_neither_a_rebalance_nor_a_commit(scene: ClassicScene) -> None:
    await scene.start("i2")
    await scene.join("a", "b", "c")
    before, dead = rebalances(scene), scene.leader()
    loads = [Load(one) for one in scene.members.values()]
    async with anyio.create_task_group() as tasks:
        for load in loads:
            tasks.start_soon(load.run)
        await scene.until("commits are answered", lambda: all(load.answered > 3 for load in loads))
        scene.cluster.crash_instance(dead)
        answered = [load.answered for load in loads]
        # Who leads next has loaded the group, and the members have found it.
        await scene.until(
            "commits go on", lambda: all(load.answered > n + 3 for load, n in zip(loads, answered, strict=True))
        )
        tasks.cancel_scope.cancel()
    assert scene.leader() != dead
    assert rebalances(scene) == before
    assert not [error for one in scene.members.values() for error in one.errors]
    for load in loads:
        # One more may be on record than was answered.
        assert await offset_of(scene, load.partition) in (load.answered, load.answered + 1)


async def test_a_coordinator_that_is_stopped_hands_the_group_over_as_it_is(scene: ClassicScene) -> None:
    await scene.start("i2")
    a, b = await scene.join("a", "b")
    before = rebalances(scene)
    await scene.cluster.stop_instance(scene.leader())
    await scene.until("the other leads", lambda: scene.leader)
    assert await a.commit({a.owned[0]: 4}) == {a.owned[0]: KafkaError.NONE}
    assert await b.heartbeat() is KafkaError.NONE
    assert rebalances(scene) == before


async def test_who_waits_for_a_coordinator_that_steps_down_joins_at_the_next(scene: ClassicScene) -> None:
    await scene.start("i2")
    [a] = await scene.join("a")
    # It never comes back, so that the rebalance waits for it, and the others for the rebalance.
    a.stop()
    del scene.members["a"]
    waiting = scene.member("b")
    scene.members["b"] = waiting
    waiting.start(scene.cluster.tasks)
    first = scene.cluster.instances[scene.leader()]
    await scene.until("it waits", lambda: first.kafka_groups.held == 1)
    await scene.cluster.stop_instance(scene.leader())
    assert first.kafka_groups.held == 0
    await scene.settled()


class Believer(Term):
    """A term that its holder takes for its own, whatever happens."""

    def __init__(self, group: str, fence: CreateRevisionIs) -> None:
        self.group = group
        self.fence = fence

    def held(self) -> bool:
        return True

    async def wait_lost(self) -> str:
        await anyio.sleep_forever()
        return ""

    async def resign(self) -> None:
        return


async def test_a_coordinator_that_was_deposed_writes_nothing(scene: ClassicScene) -> None:
    """Also if it believes to lead: every write has the term in its preconditions."""
    cluster, instance = scene.cluster, scene.cluster.instances["i1"]
    [a] = await scene.join("a")
    await a.commit({0: 1})
    leader = await cluster.store.get(cluster.group.leader)
    assert isinstance(leader, Found)
    fence = CreateRevisionIs(cluster.group.leader, leader.entry.create_revision)
    records = GroupRecords(instance.store, cluster.keys, "g", fence, cluster.clock)
    assignor = ServerAssignor(instance.store, cluster.keys, cluster.options, instance.topics.ensure)
    deposed = GroupCoordinator(
        "g", Believer("g", fence), records, cluster.clock, Limits(), HeldRequests(), assignor, instance.metrics
    )
    cluster.tasks.start_soon(deposed.run)
    await scene.until("it has loaded the group", lambda: not deposed.refusal)

    await scene.start("i2")
    await cluster.stop_instance("i1")
    await scene.until("another one leads", lambda: scene.leaders() == ["i2"])
    before = (await cluster.store.get(cluster.keys.root)).revision
    commits = ClassicOffsets(cluster.store, cluster.keys, cluster.instances["i2"].offsets, Limits())
    late = await commits.commit(deposed, a.commit_request({0: 99}), cluster.clock.now())
    assert [one.error for one in late.partitions] == [KafkaError.COORDINATOR_LOAD_IN_PROGRESS]
    assert not await commits.remove(deposed, [("t", 0)])
    # It empties the group, and would have that on record.
    records._store = cluster.store
    leaving = LeaveRequest(group="g", members=(LeavingMember(a.member_id),))
    assert deposed.leave(leaving).members[0].error is KafkaError.NONE
    await scene.until("it knows", lambda: deposed.refusal is KafkaError.NOT_COORDINATOR)
    assert await offset_of(scene, 0) == 1
    listed = await cluster.store.list(cluster.keys.kafka_groups())
    assert [entry.key for entry in listed.entries if entry.mod_revision > before] == []
    assert await a.heartbeat() is KafkaError.NONE


async def test_while_a_group_is_loaded_each_call_is_answered_as_its_client_takes_well(scene: ClassicScene) -> None:
    await scene.join("a")
    a = scene.members["a"]
    faults = await scene.start("i2")
    slow = faults.inject(Delay(3.0), kinds={"get"}, times=1, where=lambda kind, key: key.endswith("/state"))
    await scene.cluster.stop_instance("i1")
    await scene.until("it is loading", lambda: slow.hits == 1)
    groups = scene.cluster.instances["i2"].kafka_groups
    assert groups.leads("", "g")
    assert await a.heartbeat() is KafkaError.NONE
    assert (await groups.join("", a.join_request())).error is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    sync = SyncRequest(group="g", member_id=a.member_id, generation=a.generation)
    assert (await groups.sync("", sync)).error is KafkaError.REBALANCE_IN_PROGRESS
    committed = await groups.commit("", a.commit_request({0: 1}))
    assert [one.error for one in committed.partitions] == [KafkaError.COORDINATOR_LOAD_IN_PROGRESS]
    assert await a.commit({0: 1}) == {0: KafkaError.NONE}
    assert a.rebalances == 1


# --- static members ------------------------------------------------------------------------------------------------


async def test_a_static_member_that_restarts_gets_what_it_had_without_a_rebalance(scene: ClassicScene) -> None:
    await scene.join("a")
    [b] = await scene.join("b", instance_id="pod-b")
    a, before = scene.members["a"], rebalances(scene)
    b.stop()
    again = scene.member("b", instance_id="pod-b")
    scene.members["b"] = again
    again.start(scene.cluster.tasks)
    await scene.settled()
    assert (again.owned, again.generation) == (b.owned, a.generation)
    assert (a.rebalances, again.rebalances) == (before["a"], 1)
    # What is left of the process before is fenced, also at the next coordinator: the new id is on record.
    assert await b.heartbeat() is KafkaError.FENCED_INSTANCE_ID
    assert await b.commit({b.owned[0]: 1}) == {b.owned[0]: KafkaError.FENCED_INSTANCE_ID}


# --- the store -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
async def test_nobody_is_told_of_an_assignment_before_its_unknown_outcome_is_known(
    scene: ClassicScene, applied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    faults = scene.cluster.faults["i1"]
    [a] = await scene.join("a")
    lost = faults.inject(LoseAnswer(applied=applied), kinds={"transact"}, times=9, where=writes_group)
    await scene.join("b")
    assert lost.spent
    assert a.generation == 2, "nobody had to join again"
    assert "classic_group_overwritten" not in caplog.text, "it knows its own write"
    found = await scene.cluster.store.get(scene.cluster.keys.kafka_state("g"))
    assert isinstance(found, Found)
    assert decode(ClassicGroupRecord, found.entry.value)[0].generation == 2


async def test_a_write_that_comes_late_changes_no_later_generation(scene: ClassicScene) -> None:
    faults = scene.cluster.faults["i1"]
    await scene.join("a")
    faults.inject(EffectAfter(0.1, 1.0), kinds={"transact"}, times=1, where=writes_group)
    await scene.join("b")
    await scene.until("nothing is under way", lambda: not faults.late_effects)
    await scene.join("c")
    assert len({one.generation for one in scene.members.values()}) == 1


async def test_a_store_that_is_away_for_a_while_costs_nobody_the_membership(scene: ClassicScene) -> None:
    faults = scene.cluster.faults["i1"]
    a, b = await scene.join("a", "b")
    before = rebalances(scene)
    away = faults.inject(Refuse(), kinds={"transact"}, times=None, where=lambda kind, *_: True)
    answers: list[dict[int, KafkaError]] = []

    async def commit() -> None:
        answers.append(await a.commit({a.owned[0]: 8}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(commit)
        await scene.until("the store was asked in vain", lambda: away.hits > 2)
        assert answers == []
        assert await b.heartbeat() is KafkaError.NONE
        away.remove()
    assert answers == [{a.owned[0]: KafkaError.NONE}]
    assert rebalances(scene) == before


# --- kinds ---------------------------------------------------------------------------------------------------------


async def test_members_of_two_kinds_do_not_mix(scene: ClassicScene) -> None:
    await scene.cluster.add_topic(partitions=6)
    consumer = await scene.cluster.join("grpc")
    await scene.cluster.until_counts(grpc=6)
    groups = scene.cluster.instances["i1"].kafka_groups
    answer = await groups.join("", scene.member("classic").join_request())
    assert answer.error is KafkaError.INCONSISTENT_GROUP_PROTOCOL

    # Once the group is empty it may change its kind, and keeps its offsets.
    await consumer.deregister(gates_closed=True)
    await scene.until("it is gone", lambda: not scene.cluster.instances["i1"].mirrors.get("g").state.consumers)  # type: ignore[union-attr]
    await scene.join("classic")
    assert (await groups.describe("", "g")).state is ClassicState.STABLE
    with pytest.raises(GroupKindMismatch):
        await scene.cluster.join("grpc-again")


# --- commits under way -----------------------------------------------------------------------------------------------


def writes_offset(*arguments: object) -> bool:
    return any(isinstance(one, Put) and "/~offsets/" in one.key for one in arguments[2])  # type: ignore[attr-defined]


async def test_a_commit_that_the_store_gets_to_after_the_next_generation_has_no_effect(scene: ClassicScene) -> None:
    """It was admitted when it came. The next owner may have read the offset by now."""
    faults = scene.cluster.faults["i1"]
    [a] = await scene.join("a")
    await a.commit({0: 1})
    late = a.commit_request({0: 99})
    slow = faults.inject(Delay(3.0), kinds={"transact"}, times=1, where=writes_offset)
    groups = scene.cluster.instances["i1"].kafka_groups
    answers: list[CommitAnswer] = []

    async def commit() -> None:
        answers.append(await groups.commit("", late))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(commit)
        await scene.until("it is on its way", lambda: slow.hits == 1)
        await scene.join("b")
        assert answers == [], "the next generation began before the store got to it"
    [answer] = answers
    assert [one.error for one in answer.partitions] == [KafkaError.ILLEGAL_GENERATION]
    assert await offset_of(scene, 0) == 1


async def test_a_commit_goes_on_if_the_record_changed_for_another_reason(scene: ClassicScene) -> None:
    faults = scene.cluster.faults["i1"]
    [a] = await scene.join("a")
    [b] = await scene.join("b", instance_id="pod-b")
    slow = faults.inject(Delay(2.0), kinds={"transact"}, times=1, where=writes_offset)
    errors: list[dict[int, KafkaError]] = []

    async def commit() -> None:
        errors.append(await a.commit({a.owned[0]: 5}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(commit)
        await scene.until("it is on its way", lambda: slow.hits == 1)
        # A static member's new process: its id is written, and the generation goes on.
        b.stop()
        again = scene.member("b", instance_id="pod-b")
        scene.members["b"] = again
        again.start(scene.cluster.tasks)
        await scene.settled()
    assert errors == [{a.owned[0]: KafkaError.NONE}]
    assert await offset_of(scene, a.owned[0]) == 5
