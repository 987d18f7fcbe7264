"""Handoffs that are replaced, resumed or made again while something is on its way for the one before: what was decided
on a handoff that is no longer there is not done, and who comes back finds its part of the one that is.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
import pytest

from assigner.core.group import GroupState
from assigner.instance import Instance
from assigner.model.keys import HandoffKey, TopicPartition
from assigner.model.records import GroupOptions, Handoff, HandoffMode, Phase, Status, Step, Stored, decode, encode
from assigner.store import Conflict, Delete, Operation, Put, Store
from assigner.testing.waiting import eventually
from tests.support.cluster import Cluster, tp
from tests.support.faulty_stores import HoldingStore, TakesLess
from tests.support.frozen_moves import until_led
from tests.support.stepped_consumer import SteppedConsumer

EXCLUSIVE = GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE, debounce=0.1)
FROZEN = [Step.FREEZING] * 2
pytestmark = pytest.mark.virtual_time


async def warming(
    cluster: Cluster, at: Instance | None = None
) -> tuple[SteppedConsumer, SteppedConsumer, TopicPartition]:
    """`a` owns both partitions, and `b` was just asked to warm one. Neither answers unless told to."""
    await cluster.add_topic(partitions=2)
    if not cluster.instances:
        await cluster.start_instance()
    await until_led(cluster)
    a = await cluster.join("a", at, answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", at, answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    return a, b, moving


async def die(cluster: Cluster, consumer: SteppedConsumer) -> None:
    """The process is gone, and so is its lease."""
    consumer.crash()
    await cluster.store.revoke((await cluster.state()).consumers[consumer.name].lease)


async def start_holding(cluster: Cluster, holds: Callable[[Operation], bool]) -> HoldingStore:
    """Start an instance whose first transaction with such an operation does not arrive before it is let go."""
    ways: list[HoldingStore] = []

    def wrap(store: Store) -> Store:
        ways.append(HoldingStore(store))
        ways[-1].holds = holds
        return ways[-1]

    await cluster.start_instance(wrap=wrap)
    return ways[0]


async def made_again(cluster: Cluster, moving: TopicPartition, step: Step) -> Stored[Handoff]:
    """Delete the handoff and make another one with the same ends, so that its version counts from one again."""
    before = (await cluster.state()).handoffs[moving]
    again = msgspec.structs.replace(before.record, handoff_id="another", step=step, phase=step.phase)
    await cluster.store.delete(before.key)
    await cluster.store.put(before.key, encode(again))
    return (await cluster.state()).handoffs[moving]


# --- what is late for the handoff before ---------------------------------------------------------------------------


async def test_a_handoff_that_was_made_again_is_not_deleted_in_place_of_the_one_before(any_cluster: Cluster) -> None:
    cluster = any_cluster
    way = await start_holding(
        cluster, lambda one: isinstance(one, Delete) and isinstance(cluster.group.parse(one.key), HandoffKey)
    )
    a, b, moving = await warming(cluster)
    await b.ready(moving)
    await a.until("asked to release", lambda c: moving in c.to_release)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.release, moving)
        await eventually(lambda: bool(way.held), what="the deletion is on its way")
        again = await made_again(cluster, moving, Step.COMPLETE)
        way.let_go()
    assert isinstance(way.outcome, Conflict)
    assert (await cluster.state()).handoffs[moving] == again
    await a.until("asked for the other one", lambda c: c.to_release[moving].handoff_id == "another")
    await a.release(moving)
    await cluster.until_counts(a=1, b=1)


@pytest.mark.cluster(options=GroupOptions(debounce=0.1, freeze_timeout=60.0))
async def test_a_step_that_was_decided_on_a_handoff_that_was_replaced_is_not_taken(any_cluster: Cluster) -> None:
    cluster = any_cluster
    way = await start_holding(cluster, lambda one: isinstance(one, Put) and b'"step":"freezing"' in one.value)
    await cluster.route("r1", acks_freezes=False)
    _, b, moving = await warming(cluster)
    await b.ready(moving)
    await eventually(lambda: bool(way.held), what="the freeze is on its way")
    again = await made_again(cluster, moving, Step.WARMING)
    way.let_go()
    await eventually(lambda: way.outcome is not None, within=cluster.patience, what="it has arrived")
    assert isinstance(way.outcome, Conflict)
    await b.until(
        "asked for the other one", lambda c: moving in c.to_warm and c.to_warm[moving].handoff_id == "another"
    )
    assert (await cluster.state()).handoffs[moving] == again


async def test_a_partition_that_changed_meanwhile_stands_down_alone(any_cluster: Cluster) -> None:
    """The other moves of the plan that shared its transaction are made as they were decided."""
    cluster = any_cluster
    way = await start_holding(cluster, lambda one: isinstance(cluster.group.parse(one.key), HandoffKey))
    await cluster.add_topic(partitions=8)
    await cluster.join("a")
    await cluster.until_counts(a=8)
    b = await cluster.join("b", answers_warm=False)
    await eventually(lambda: bool(way.held), within=cluster.patience, what="the plan is on its way")
    first = dict(handoff_in(cluster, one) for one in way.held if isinstance(one, Put))
    assert len(first) == 4
    changed = min(first)
    held = (await cluster.state()).assignments[changed]
    await cluster.store.put(held.key, held.encode(msgspec.structs.replace(held.record, epoch=70)))
    way.let_go()
    await b.until("asked to warm all four", lambda c: len(c.to_warm) == 4)
    ids = {where: stored.record.handoff_id for where, stored in (await cluster.state()).handoffs.items()}
    assert isinstance(way.outcome, Conflict)
    assert [where for where in first if ids[where] != first[where]] == [changed]
    await b.ready(*b.to_warm)
    state = await cluster.until_counts(a=4, b=4)
    assert state.assignments[changed].record.epoch > 70


def handoff_in(cluster: Cluster, put: Put) -> tuple[TopicPartition, str]:
    key = cluster.group.parse(put.key)
    assert isinstance(key, HandoffKey)
    return key.tp, decode(Handoff, put.value)[0].handoff_id


async def test_a_plan_for_a_store_that_takes_less_than_it_says_is_written_in_smaller_parts(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    await cluster.start_instance(wrap=TakesLess)
    assert cluster.instances["i1"].store.limits.operations > 20
    await cluster.add_topic(partitions=256)
    await cluster.join("a")
    await cluster.until_counts(a=256)
    await cluster.join("b")
    await cluster.until_counts(a=128, b=128)


# --- who comes back ------------------------------------------------------------------------------------------------


async def test_a_target_that_registers_while_its_handoff_warms_is_asked_in_its_first_messages(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    other = await cluster.start_instance("i2")
    _, b, moving = await warming(cluster)
    handoff_id = b.to_warm[moving].handoff_id
    b.crash()
    again = await cluster.join("b", other, session=b.session, answers_warm=False)
    await again.until("asked", lambda c: bool(c.to_warm))
    assert again.to_warm[moving].handoff_id == handoff_id
    assert moving in {warm.tp for commands in again.heard[:2] for warm in commands.warms}
    await again.ready(moving)
    await cluster.consumers["a"].until("asked to release", lambda c: moving in c.to_release)
    await cluster.consumers["a"].release(moving)
    await cluster.until_counts(a=1, b=1)


@pytest.mark.parametrize("session", ["session-of-a", "another"])
async def test_an_old_owner_that_restarts_serves_on_when_its_handoff_is_cancelled(
    any_cluster: Cluster, session: str
) -> None:
    cluster = any_cluster
    a, b, moving = await warming(cluster)
    before = dict(a.owned)
    a.crash()
    again = await cluster.join("a", session=session, answers_release=False)
    await again.until("has its partitions", lambda c: len(c.owned) == 2)
    await die(cluster, b)
    await cluster.until_counts(a=2)
    await again.until("serves on", lambda c: len(c.owned) == 2 and c.owned[moving] > before[moving])
    assert not again.to_release


@pytest.mark.cluster(options=EXCLUSIVE)
async def test_an_old_owner_that_reconnects_while_it_releases_is_asked_again(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a, b, moving = await warming(cluster)
    await b.ready(moving)
    await a.until("asked to release", lambda c: moving in c.to_release)
    a.crash()
    again = await cluster.join("a", session=a.session, answers_release=False)
    await again.until("asked again", lambda c: moving in c.to_release)
    assert again.to_release[moving] == a.to_release[moving]
    assert moving not in b.owned
    await again.release(moving)
    await cluster.until_counts(a=1, b=1)


@pytest.mark.cluster(options=EXCLUSIVE)
@pytest.mark.parametrize("session", ["session-of-a", "another"])
async def test_an_old_owner_that_restarts_after_its_release_is_neither_asked_again_nor_given_the_partition(
    any_cluster: Cluster, session: str
) -> None:
    """The leader has not flipped it yet. A release that is on record while nobody leads is flipped by the next one."""
    cluster = any_cluster
    other = await cluster.start_instance("i2", leads=False)
    await cluster.start_instance("i1")
    a, b, moving = await warming(cluster, at=other)
    await b.ready(moving)
    await a.until("asked to release", lambda c: moving in c.to_release)
    await cluster.stop_instance("i1")
    await a.release(moving)
    assert (await cluster.state()).handoffs[moving].record.at is Step.RELEASED
    a.crash()
    again = await cluster.join("a", other, session=session, answers_release=False)
    assert moving not in again.owned
    assert not again.to_release
    await cluster.start_instance("i3")
    await b.until("has it", lambda c: moving in c.owned)
    state = await cluster.until("over", lambda s: not s.handoffs)
    assert state.assignments[moving].record.owner == "b"
    assert not any(moving in dict(commands.assigned) for commands in again.heard)


# --- who drains ----------------------------------------------------------------------------------------------------


@pytest.mark.cluster(options=EXCLUSIVE)
async def test_a_draining_owner_is_waited_for_until_it_has_released(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a, b, moving = await warming(cluster)
    assert await a.deregister()
    await b.until("asked to warm both", lambda c: len(c.to_warm) == 2)
    await b.ready(*b.to_warm)
    await a.until("asked to release both", lambda c: len(c.to_release) == 2)

    def waits(state: GroupState) -> bool:
        steps = [(h.record.at, h.record.phase) for h in state.handoffs.values()]
        return steps == [(Step.RELEASING, Phase.READY)] * 2

    await anyio.sleep(cluster.a_while)
    state = await cluster.state()
    assert waits(state)
    assert state.consumers["a"].record.status is Status.DRAINING
    assert not b.owned
    await a.release(moving)
    await b.until("has one", lambda c: set(c.owned) == {moving})
    other = tp(1 - moving.partition)
    assert (await cluster.state()).assignments[other].record.owner == "a"
    await a.release(other)
    await cluster.until_counts(b=2)
    await a.until("closed after the drain", lambda c: c.ended == "drained")


@pytest.mark.cluster(options=GroupOptions(debounce=0.1, freeze_timeout=60.0))
async def test_a_frozen_handoff_of_a_draining_owner_outlives_those_who_come_and_go(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    a, b, _ = await warming(cluster)
    assert await a.deregister()
    await b.until("asked to warm both", lambda c: len(c.to_warm) == 2)
    await b.ready(*b.to_warm)
    before = await cluster.until("both frozen", lambda s: [h.record.at for h in s.handoffs.values()] == FROZEN)
    c = await cluster.join("c")
    await die(cluster, c)
    await cluster.until("seen by the leader", lambda s: "c" not in s.consumers)
    await anyio.sleep(0.5)
    state = await cluster.state()
    assert state.handoffs == before.handoffs
    assert state.consumers["a"].record.status is Status.DRAINING
    await router.until("both frozen", lambda r: len(r.frozen) == 2)
    await router.ack(*router.frozen)
    await a.until("asked to release both", lambda c: len(c.to_release) == 2)
    await a.release(*a.to_release)
    await cluster.until_counts(b=2)
