"""A group that is switched from overlap to exclusive: who keeps it from that, and from when on it is exclusive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pytest

from assigner.errors import FailedPrecondition
from assigner.model.keys import HandoffKey, TopicPartition
from assigner.model.records import Assignment, Handoff, HandoffMode, Step, decode
from assigner.store import LeaseGone, Operation, Put, PutEvent, Store
from assigner.testing.faults import Delay
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.faulty_stores import LaggingStore
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
EXCLUSIVE = {"handoff_mode": "exclusive"}


async def mode(cluster: Cluster) -> HandoffMode:
    return (await cluster.state()).options.handoff_mode


# --- who keeps it from that --------------------------------------------------------------------------------------


async def test_the_switch_is_refused_while_clients_do_not_renew_and_names_them(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=3)
    operations = (await cluster.start_instance()).operations
    await cluster.join("modern")
    old = await cluster.join("old", renews=False)
    with pytest.raises(FailedPrecondition, match=r"'old' do not renew.*stop them, or replace them"):
        await operations.set_options(GROUP, EXCLUSIVE)
    assert await mode(cluster) is HandoffMode.OVERLAP
    await operations.set_options(GROUP, {"debounce": 0.2})
    await old.deregister(gates_closed=True)
    await cluster.until("old is gone", lambda s: "old" not in s.consumers)
    await operations.set_options(GROUP, EXCLUSIVE)
    assert await mode(cluster) is HandoffMode.EXCLUSIVE


async def test_the_switch_is_refused_for_a_session_that_the_service_made_up(cluster: Cluster) -> None:
    operations = (await cluster.start_instance()).operations
    await cluster.join("nameless", session="")
    with pytest.raises(FailedPrecondition, match="'nameless'"):
        await operations.set_options(GROUP, EXCLUSIVE)


async def test_a_client_that_registers_while_the_switch_is_on_its_way_takes_it_back(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    disturbed = await cluster.start_faulty("i1")
    other = await cluster.start_instance("i2")
    disturbed.inject(Delay(2.0), kinds={"transact"}, times=1, where=_puts(cluster.group.options))
    refused: list[FailedPrecondition] = []

    async def switch() -> None:
        try:
            await cluster.instances["i1"].operations.set_options(GROUP, EXCLUSIVE)
        except FailedPrecondition as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(switch)
        await anyio.sleep(1)
        old = await cluster.join("old", other, renews=False)
    assert "'old'" in str(refused[0])
    assert await mode(cluster) is HandoffMode.OVERLAP
    assert old.ended is None


async def test_an_instance_that_has_not_seen_the_switch_admits_no_client_that_does_not_renew(
    cluster: Cluster,
) -> None:
    await cluster.add_topic(partitions=1)
    first = await cluster.start_instance("i1")
    lagging: list[LaggingStore] = []

    def wrap(store: Store) -> Store:
        lagging.append(LaggingStore(store, cluster.group.prefix))
        return lagging[0]

    late = await cluster.start_instance("i2", wrap=wrap, leads=False)
    await cluster.join("modern", late)
    lagging[0].lag()
    await first.operations.set_options(GROUP, EXCLUSIVE)
    with pytest.raises(FailedPrecondition, match="exclusively"):
        await cluster.join("old", late, renews=False)
    assert "old" not in (await cluster.state()).consumers


# --- from when on it is exclusive --------------------------------------------------------------------------------


def _puts(key: str) -> Callable[..., bool]:
    def fits(_: object, __: object, operations: Sequence[Operation]) -> bool:
        return any(isinstance(operation, Put) and operation.key == key for operation in operations)

    return fits


async def one_ready(cluster: Cluster, instance: str = "i1") -> tuple[SteppedConsumer, SteppedConsumer, TopicPartition]:
    """`a` has both partitions; one of them is being warmed by `b`, who has not answered."""
    await cluster.add_topic(partitions=2)
    a = await cluster.join("a", cluster.instances[instance], answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", cluster.instances[instance], answers_warm=False)
    await b.until("warms", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    return a, b, moving


async def test_a_handoff_that_is_complete_at_the_switch_is_a_condition_until_it_is_over(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    operations = (await cluster.start_instance()).operations
    a, b, moving = await one_ready(cluster)
    await b.ready(moving)
    await a.until("told to release", lambda c: moving in c.to_release)
    await operations.set_options(GROUP, EXCLUSIVE)
    (condition,) = (await operations.describe(GROUP)).conditions
    assert condition.kind == "not_exclusive_yet"
    assert str(moving) in condition.message
    assert "'a'" in condition.message
    await a.release(moving)
    await cluster.until_counts(a=1, b=1)
    assert (await operations.describe(GROUP)).conditions == ()


async def test_rule_5_a_flip_that_was_decided_before_the_switch_does_not_come_after_it(cluster: Cluster) -> None:
    disturbed = await cluster.start_faulty("i1")
    other = await cluster.start_instance("i2")
    a, b, moving = await one_ready(cluster)
    disturbed.inject(Delay(2.0), kinds={"transact"}, times=1, where=_puts(cluster.group.assignment(moving)))
    await b.ready(moving)
    await anyio.sleep(0.5)
    await other.operations.set_options(GROUP, EXCLUSIVE)
    await a.until("told to release", lambda c: moving in c.to_release)
    assert moving not in b.owned, "its flip was on its way"
    await a.release(moving)
    await cluster.until_counts(a=1, b=1)
    steps = [
        decode(Handoff, event.entry.value)[0].at
        for event in await cluster.history()
        if isinstance(event, PutEvent) and isinstance(cluster.group.parse(event.entry.key), HandoffKey)
    ]
    assert Step.COMPLETE not in steps


async def test_a_takeover_that_was_decided_before_the_switch_waits_for_the_old_lease(cluster: Cluster) -> None:
    disturbed = await cluster.start_faulty("i1")
    other = await cluster.start_instance("i2")
    await cluster.add_topic(partitions=1)
    a = await cluster.join("a", other)
    await cluster.until_counts(a=1)
    lease = (await cluster.state()).consumers["a"].lease
    disturbed.inject(Delay(2.0), kinds={"transact"}, times=1, where=_puts(cluster.group.assignment(tp(0))))
    a.crash()
    again = await cluster.join("a", other, session="another")
    await anyio.sleep(0.5)
    await other.operations.set_options(GROUP, EXCLUSIVE)
    await again.until("has it", lambda c: tp(0) in c.owned, within=3 * cluster.ttl)
    restamped = [
        event.entry.mod_revision
        for event in await cluster.history()
        if isinstance(event, PutEvent) and event.entry.key == cluster.group.assignment(tp(0))
        if decode(Assignment, event.entry.value)[0].session == "another"
    ]
    assert len(restamped) == 1
    assert isinstance(await cluster.store.remaining(lease), LeaseGone)
