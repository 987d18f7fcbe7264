"""The numbered safety rules about clients: gates, renewals, grants. Each fails when its rule is switched off.

`tests/chaos/ablation/ablations.py` switches them off. The other rules are in files of other scenarios, named
`test_rules_...` too.
"""

from __future__ import annotations

import anyio
import pytest

from assigner.core.client.gate import Gate, GateClosed, Lease
from assigner.core.client.messages import AckKind, CallAssigned, CallRevoked, Done, Ownership, Start
from assigner.core.client.state import ClientState
from assigner.errors import FailedPrecondition, NotRegistered, StoreError
from assigner.model.commands import Commands, Release
from assigner.model.records import HandoffMode
from assigner.store import Store
from assigner.testing.faults import Refuse
from tests.support.cluster import TTL, Cluster, tp
from tests.support.faulty_stores import LaggingStore
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


# --- 3: the client's own clock closes the gate -------------------------------------------------------------------


async def test_rule_3_a_gate_is_shut_two_thirds_of_the_ttl_after_the_renewal_was_sent(cluster: Cluster) -> None:
    lease = Lease()
    gate = Gate(tp(0), lease)
    gate.open(1)
    sent_at, answered_at = 100.0, 109.0
    lease.renewed(sent_at, 30.0)
    assert gate.admit(answered_at) == 1
    assert gate.admit(119.9) == 1
    with pytest.raises(GateClosed):
        gate.admit(120.0)


async def test_rule_3_renew_is_answered_only_after_the_lease_was_renewed(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty()
    a = await cluster.join("a", renews=True)
    assert a.instance
    faults.inject(Refuse(), kinds={"keep_alive"}, times=None)
    with pytest.raises(StoreError):
        await a.instance.members.renew("g", "a", a.session)


async def test_rule_3_a_client_that_says_it_renews_and_does_not_is_gone_after_its_ttl(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    silent = SteppedConsumer(cluster, "a", renews=True)
    silent.renews = False
    await silent.connect(cluster.instances["i1"])
    await silent.until("is ended", lambda c: isinstance(c.ended, NotRegistered), within=TTL + 2)


async def test_rule_3_exclusive_groups_refuse_clients_that_do_not_renew(cluster: Cluster) -> None:
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.start_instance()
    with pytest.raises(FailedPrecondition, match="Renew"):
        await cluster.join("a", renews=False)


# --- 7: a stale grant never reopens a gate -----------------------------------------------------------------------


def at_work() -> ClientState:
    """A client with a live lease that works on partition 0 with epoch 5."""
    client = ClientState()
    client.renewed(0.0, 30.0)
    client.apply(Commands(full=True, assigned=((tp(0), 5),)))
    client.finished(tp(0), Done())
    assert client.gate(tp(0)).admit(1.0) == 5
    return client


async def test_rule_7_a_released_epoch_stays_released(cluster: Cluster) -> None:
    client = at_work()
    client.apply(Commands(releases=(Release(tp(0), 5, "h1"),)))
    client.finished(tp(0), Done())
    assert [answer.tp for answer in client.pending_acks(AckKind.RELEASED, 10)] == [tp(0)]
    assert client.apply(Commands(full=True, assigned=((tp(0), 5),))) == []
    assert not client.gate(tp(0)).is_open(1.0)


async def test_rule_7_a_higher_epoch_on_a_held_partition_means_revoke_and_then_assign(cluster: Cluster) -> None:
    client = at_work()
    first = client.apply(Commands(assigned=((tp(0), 6),)))
    assert [type(action.call) for action in first if isinstance(action, Start)] == [CallRevoked]
    assert not client.gate(tp(0)).is_open(1.0)
    second = client.finished(tp(0), Done())
    assert second == [Start(tp(0), CallAssigned(Ownership("t", 0, 6)))]


async def test_rule_7_release_and_unassigned_name_the_epoch_that_ends(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    await cluster.join("b")
    await a.until("told to release one", lambda c: bool(c.to_release))
    (release,) = a.to_release.values()
    assert release.epoch == a.owned[release.tp] == 1
    await a.release(release.tp)
    await instance.operations.set_topic("g", "t", 1, force=True)
    await cluster.until("one partition is left", lambda s: len(s.assignments) == 1)
    told = [gone for c in cluster.consumers.values() for commands in c.heard for gone in commands.unassigned]
    assert told in ([(tp(1), 1)], [(tp(1), 2)])


async def test_rule_7_a_snapshot_never_shows_an_ownership_that_was_taken_away(cluster: Cluster) -> None:
    """The instance's watch lags behind: a reconnecting consumer waits rather than hear of the past."""
    lagging: list[LaggingStore] = []

    def wrap(store: Store) -> Store:
        lagging.append(LaggingStore(store, cluster.group.prefix))
        return lagging[0]

    await cluster.add_topic(partitions=1)
    await cluster.start_instance("leader")
    behind = await cluster.start_instance("behind", leads=False, wrap=wrap)
    a = await cluster.join("a", behind)
    await cluster.until_counts(a=1)
    await a.until("owns", lambda c: tp(0) in c.owned)
    lagging[0].lag()
    a.crash()
    await cluster.join("b", cluster.instances["leader"])
    await cluster.until_counts(b=1, within=3 * TTL)
    async with anyio.create_task_group() as tasks:
        heard = len(a.heard)
        tasks.start_soon(a.connect, behind)
        await anyio.sleep(3)
        lagging[0].catch_up()
    assert a.heard[heard].full
    assert a.heard[heard].assigned == ()
