"""Every check of the chaos can fail: each one is shown what it must not let pass, and what it must."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import msgspec
import pytest

from assigner.core.coordination.machine import Coordination
from assigner.model.keys import TopicPartition
from assigner.model.records import (
    Assignment,
    Consumer,
    GroupOptions,
    Handoff,
    HandoffMode,
    LeaderRecord,
    Offset,
    Plan,
    Step,
    encode,
)
from assigner.store import CreateRevisionIs, Put
from tests.chaos.checks import Checks, Violation
from tests.chaos.histories.group_life import finite_decisions
from tests.support.cluster import Cluster, cluster_on, tp

pytestmark = pytest.mark.virtual_time
T0 = tp(0)


class Gates:
    """A consumer that believes what it is told to."""

    def __init__(self, name: str, gates: dict[TopicPartition, int]) -> None:
        self.name = name
        self.session = f"s-{name}"
        self._gates = gates

    def open_gates(self) -> dict[TopicPartition, int]:
        return self._gates


class Scene:
    def __init__(self, cluster: Cluster, believers: list[Gates]) -> None:
        self.cluster = cluster
        self.checks = Checks(cluster, lambda: believers)
        self.believers = believers
        self._last = cluster.began

    async def put(self, key: str, record: msgspec.Struct) -> None:
        await self.cluster.store.put(key, encode(record))

    async def assign(self, owner: str, epoch: int) -> None:
        record = Assignment(topic="t", partition=0, owner=owner, session=f"s-{owner}", epoch=epoch)
        await self.put(self.cluster.group.assignment(T0), record)

    async def register(self, *names: str) -> None:
        for name in names:
            await self.put(self.cluster.group.consumer(name), Consumer(consumer_name=name, session=f"s-{name}"))

    async def plan(self, generation: int, floor: int = 0) -> None:
        await self.put(self.cluster.group.plan, Plan(generation=generation, epoch_floor=floor))

    async def commit(self, offset: int, epoch: int) -> None:
        await self.put(self.cluster.keys.offset("g", T0), Offset(offset=offset, epoch=epoch))

    async def handoff(self, step: Step) -> None:
        record = Handoff(topic="t", partition=0, old_owner="a", new_owner="b", step=step, phase=step.phase)
        await self.put(self.cluster.group.handoff(T0), record)

    async def look(self) -> None:
        """At everything since the last look."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.checks.watch)
            await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()


@pytest.fixture(params=[HandoffMode.EXCLUSIVE], ids=["exclusive"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with cluster_on("memory", options=GroupOptions(handoff_mode=request.param)) as cluster:
        yield Scene(cluster, [])


async def violated(scene: Scene, rule: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await scene.look()
    assert caught.group_contains(Violation, match=f"^{rule}:")
    with pytest.raises(Violation, match=f"^{rule}:"):
        scene.checks.raise_violations()


async def test_a_good_course_is_let_pass(scene: Scene) -> None:
    await scene.register("a", "b")
    await scene.assign("a", 1)
    await scene.plan(1, 1)
    await scene.commit(5, 1)
    await scene.assign("b", 2)
    await scene.plan(2, 2)
    await scene.commit(9, 2)
    await scene.cluster.store.delete(scene.cluster.group.assignment(T0))
    await scene.look()
    scene.checks.raise_violations()
    assert scene.checks.seen == {"assignments": 2, "generations": 2, "commits": 2}


@pytest.mark.parametrize("epoch", [1, 2])
async def test_an_epoch_that_does_not_rise(scene: Scene, epoch: int) -> None:
    await scene.register("a", "b")
    await scene.assign("a", 2)
    await scene.assign("b", epoch)
    await violated(scene, "epoch")


async def test_a_generation_that_falls(scene: Scene) -> None:
    await scene.register("a")
    await scene.assign("a", 1)
    await scene.plan(2)
    await scene.plan(1)
    await violated(scene, "generation")


async def test_a_generation_that_changes_nothing(scene: Scene) -> None:
    await scene.register("a")
    await scene.assign("a", 1)
    await scene.plan(1)
    await scene.plan(2)
    await violated(scene, "generation")


async def test_a_floor_that_falls(scene: Scene) -> None:
    await scene.plan(0, 3)
    await scene.plan(0, 2)
    await violated(scene, "floor")


async def test_a_record_removed_above_the_floor(scene: Scene) -> None:
    await scene.register("a")
    await scene.assign("a", 2)
    await scene.plan(1, 1)
    await scene.cluster.store.delete(scene.cluster.group.assignment(T0))
    await violated(scene, "floor")


async def test_a_partition_given_to_somebody_who_is_not_there(scene: Scene) -> None:
    await scene.assign("a", 1)
    await violated(scene, "registered")


async def test_a_commit_under_an_epoch_that_is_over(scene: Scene) -> None:
    await scene.register("a", "b")
    await scene.assign("a", 1)
    await scene.assign("b", 2)
    await scene.commit(5, 1)
    await violated(scene, "commit")


async def test_an_answered_commit_that_is_overwritten_by_an_earlier_one(scene: Scene) -> None:
    await scene.register("a")
    await scene.assign("a", 1)
    await scene.commit(5, 1)
    await scene.look()
    scene.checks.answered(T0, 5, (await scene.cluster.store.get("x")).revision, 5)
    await scene.commit(4, 1)
    scene.checks = _continued(scene.checks)
    await violated(scene, "offset")


def _continued(checks: Checks) -> Checks:
    """A watch begins at the beginning again: what it showed already is not looked at twice."""
    checks._highest.clear()
    checks._assigned.clear()
    return checks


async def test_an_answered_commit_that_is_not_on_record(scene: Scene) -> None:
    with pytest.raises(Violation, match=r"^offset:"):
        scene.checks.answered(T0, 5, 10, 4)


@pytest.mark.parametrize("fenced", [True, False], ids=["of-another-term", "unfenced"])
async def test_a_leaders_write_after_its_term(scene: Scene, fenced: bool) -> None:
    cluster, store = scene.cluster, scene.checks.observed(scene.cluster.store, "i1")
    leader = encode(LeaderRecord(holder="i1"))
    await cluster.store.put(cluster.group.leader, leader)
    current = (await cluster.store.get(cluster.group.leader)).revision
    fence = [CreateRevisionIs(cluster.group.leader, current)] if fenced else []
    await store.transact(fence, [Put(cluster.group.plan, encode(Plan(epoch_floor=1)))])
    if fenced:
        await scene.look()
        scene.checks.raise_violations()
        # A store that does not compare would let this pass.
        scene.checks._note(
            "i1", current + 5, [Put(cluster.group.plan, b"")], [CreateRevisionIs(cluster.group.leader, 1)]
        )
        with pytest.raises(Violation, match=r"^term:"):
            scene.checks._written_by_the_leader(current + 5, [cluster.group.parse(cluster.group.plan)])
    else:
        await violated(scene, "term")


async def test_two_open_gates_in_an_exclusive_group(scene: Scene) -> None:
    scene.believers += [Gates("a", {T0: 1}), Gates("b", {T0: 2})]
    with pytest.raises(Violation, match=r"^gates:.*exclusive"):
        scene.checks.look_at_gates()
    with pytest.raises(Violation, match=r"^gates:.*exclusive"):
        scene.checks.opened(scene.believers[1], T0, 2)


async def test_two_open_gates_with_one_epoch_in_an_overlap_group() -> None:
    async with cluster_on("memory") as cluster:
        scene = Scene(cluster, [Gates("a", {T0: 1}), Gates("b", {T0: 2})])
        scene.checks.look_at_gates()
        scene.believers[1].open_gates()[T0] = 1
        with pytest.raises(Violation, match=r"^gates:"):
            scene.checks.look_at_gates()


async def test_a_gate_open_with_the_epoch_of_another(scene: Scene) -> None:
    await scene.register("a")
    await scene.assign("a", 1)
    await scene.look()
    with pytest.raises(Violation, match=r"^gates:"):
        scene.checks.opened(Gates("b", {T0: 1}), T0, 1)


async def test_a_flip_before_the_release_in_an_exclusive_group(scene: Scene) -> None:
    await scene.handoff(Step.COMPLETE)
    await violated(scene, "gates")


async def test_what_was_flipped_before_a_switch_to_exclusive_may_be_held_by_both_for_a_while() -> None:
    async with cluster_on("memory") as cluster:
        scene = Scene(cluster, [Gates("a", {T0: 1}), Gates("b", {T0: 2})])
        await scene.handoff(Step.COMPLETE)
        await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
        await scene.look()
        await anyio.sleep(3 * cluster.ttl)
        scene.checks.look_at_gates()
        scene.checks._handoff(T0, None)
        await anyio.sleep(cluster.ttl + 1)
        with pytest.raises(Violation, match=r"^gates:.*exclusive"):
            scene.checks.look_at_gates()


async def test_a_leader_that_decides_without_letting_time_pass(cluster: Cluster) -> None:
    core = Coordination((await cluster.state()), term=1, ttl=9.0, now=0.0, offset_key=str)

    def decide_for_ever() -> None:
        with finite_decisions():
            while True:
                core.decide(1.0, 1.0)

    with pytest.raises(Violation, match=r"^loop:"):
        decide_for_ever()
