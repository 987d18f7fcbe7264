"""Records of an empty group are removed only from under owners that are still away when the removal takes effect."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from assigner.model.keys import AssignmentKey, TopicPartition
from assigner.model.records import Assignment, HandoffMode
from assigner.store import Delete, DeleteEvent, Operation
from assigner.testing.faults import Delay, Injected
from tests.support.cluster import EXPIRES, Cluster, tp
from tests.support.faulty_stores import key_of
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
MODES = pytest.mark.parametrize("mode", list(HandoffMode), ids=[mode.value for mode in HandoffMode])


async def removals_on_their_way(cluster: Cluster, *consumers: SteppedConsumer) -> Injected:
    """Everybody is gone for good, as far as the leader `i1` can tell, and what it removes takes a while to arrive."""

    def removes(_kind: str, _compares: object, operations: Sequence[Operation]) -> bool:
        removed = (cluster.group.parse(op.key) for op in operations if isinstance(op, Delete))
        return any(isinstance(key, AssignmentKey) for key in removed)

    late = cluster.faults["i1"].inject(Delay(1.0), kinds={"transact"}, times=None, where=removes)
    for consumer in consumers:
        consumer.crash()
    await cluster.until("removals are on their way", lambda _: late.hits > 0, within=6 * cluster.ttl)
    return late


async def removed(cluster: Cluster) -> list[str]:
    """Assignments that were ever deleted."""
    keys = [key_of(event) for event in await cluster.history() if isinstance(event, DeleteEvent)]
    return [key for key in keys if isinstance(cluster.group.parse(key), AssignmentKey)]


async def records(cluster: Cluster) -> dict[TopicPartition, Assignment]:
    return {one: held.record for one, held in (await cluster.state()).assignments.items()}


@MODES
async def test_rule_5_an_owner_that_is_back_before_the_removal_keeps_its_partitions(
    cluster: Cluster, mode: HandoffMode
) -> None:
    await cluster.set_options(handoff_mode=mode)
    await cluster.add_topic(partitions=2)
    await cluster.start_faulty("i1")
    other = await cluster.start_instance("i2", leads=False)
    z = await cluster.join("z")
    await cluster.until_counts(z=2)
    before = await records(cluster)
    late = await removals_on_their_way(cluster, z)
    await z.connect(other)
    assert set(z.owned) == {tp(0), tp(1)}, "it was sent that it owns them, and its gates are open"
    await anyio.sleep(2.0)
    late.remove()
    await anyio.sleep(cluster.ttl)
    assert await records(cluster) == before
    assert not await removed(cluster)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_nobody_gets_what_an_owner_that_is_back_holds_exclusively(any_cluster: Cluster) -> None:
    """It renews and its gates are open; that its stream says nothing any more must not matter."""
    cluster = any_cluster
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.add_topic(partitions=2)
    await cluster.start_faulty("i1")
    other = await cluster.start_instance("i2", leads=False)
    z = await cluster.join("z")
    await cluster.until_counts(z=2)
    late = await removals_on_their_way(cluster, z)
    await z.connect(other)
    gates = dict(z.owned)
    assert set(gates) == {tp(0), tp(1)}
    z.hears = False
    a = await cluster.join("a", cluster.instances["i1"])
    await anyio.sleep(2.0)
    late.remove()
    await anyio.sleep(cluster.ttl)
    assert not a.owned, f"two gates are open: {a.owned} and {gates}"
    z.crash()
    await cluster.until_counts(a=2, within=4 * cluster.ttl)


@MODES
async def test_an_end_of_a_handoff_that_is_back_before_the_removal_keeps_its_partition(
    cluster: Cluster, mode: HandoffMode
) -> None:
    await cluster.set_options(handoff_mode=mode)
    await cluster.add_topic(partitions=1)
    await cluster.start_faulty("i1")
    other = await cluster.start_instance("i2", leads=False)
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    b = await cluster.join("b", answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    late = await removals_on_their_way(cluster, a, b)
    b.answers_warm = True
    await b.connect(other)
    assert set(b.to_warm) | set(b.owned) or b.heard[-1].warms, "it was sent the next command"
    await anyio.sleep(2.0)
    late.remove()
    await b.until("owns it", lambda c: tp(0) in c.owned, within=4 * cluster.ttl)
    assert not await removed(cluster)
    assert (await records(cluster))[tp(0)].owner == "b"
    assert not (await cluster.state()).handoffs


async def test_partitions_that_exist_no_more_are_removed_while_consumers_are_registered(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance("i1")
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    await cluster.add_topic(partitions=2)
    await cluster.until_counts(a=2)
    await a.until("was sent it", lambda c: set(c.owned) == {tp(0), tp(1)})


async def test_an_empty_group_is_forgotten_although_the_leader_sees_nothing_for_a_while(cluster: Cluster) -> None:
    """A removal that is refused is tried again, and no faster than the mirror can follow."""
    await cluster.add_topic(partitions=2)
    await cluster.start_faulty("i1")
    z = await cluster.join("z")
    await cluster.until_counts(z=2)
    late = await removals_on_their_way(cluster, z)
    # Somebody comes and goes while the removals are under way.
    lease = await cluster.put_consumer("z")
    await anyio.sleep(1.5)
    await cluster.store.revoke(lease)
    tried = late.hits
    late.remove()
    await cluster.until("forgotten", lambda s: not s.assignments, within=6 * cluster.ttl)
    assert tried < 20
