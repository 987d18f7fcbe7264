"""A consumer that steps out is back soon, as another session: its partitions wait for it, and nobody else takes its
name meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from assigner.api import Registration
from assigner.errors import Evicted, NotRegistered, PermissionDenied, SessionHeld, StoreUnavailable, Superseded
from assigner.instance import Instance
from assigner.model.records import GroupOptions, HandoffMode
from assigner.store import LeaseGone
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import BOTH_STORES, EXPIRES, GROUP, TTL, Cluster, cluster_on
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
MODES = list(HandoffMode)


async def step_out(consumer: SteppedConsumer) -> None:
    assert consumer.instance is not None
    consumer.crash()
    await consumer.instance.members.step_out(GROUP, consumer.name, consumer.session)


async def owner_of_all(cluster: Cluster, session: str = "old", **how: Any) -> SteppedConsumer:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    consumer = await cluster.join("a", session=session, **how)
    await cluster.until_counts(a=4)
    return consumer


async def register(instance: Instance, session: str) -> None:
    registration = Registration(group=GROUP, name="a", session=session, renews=True, takeover=False)
    await (await instance.members.register(registration, lambda: 0.0)).leave()


# --- coming back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", BOTH_STORES)
async def test_the_next_session_has_everything_at_once_and_nothing_moves(
    kind: str, mode: HandoffMode, request: pytest.FixtureRequest
) -> None:
    options = GroupOptions(debounce=0.1, handoff_mode=mode)
    async with cluster_on(kind, request, options=options) as cluster:
        await cluster.add_topic(partitions=4)
        instance = await cluster.start_instance()
        a = await cluster.join("a", session="old")
        b = await cluster.join("b")
        before = await cluster.until_counts(a=2, b=2)
        await cluster.until_quiet()
        moves = (await instance.operations.describe(GROUP)).history
        lease = before.consumers["a"].lease
        await step_out(a)
        began = cluster.clock.now()
        again = await cluster.join("a", session="new", takeover=False)
        await again.until("has its own", lambda c: c.owned.keys() == before.owned["a"])
        assert cluster.clock.now() - began < cluster.ttl / 4
        assert isinstance(await cluster.store.remaining(lease), LeaseGone)
        after = await cluster.until_counts(a=2, b=2)
        assert after.owned == before.owned
        assert (await instance.operations.describe(GROUP)).history == moves
        assert not b.to_warm
        assert {held.record.session for held in after.assignments.values()} == {"new", "session-of-b"}


async def test_in_an_exclusive_group_the_end_of_the_old_lease_is_not_waited_for(cluster: Cluster) -> None:
    """Not even if it can't be revoked."""
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.add_topic(partitions=4)
    store = await cluster.start_faulty("i1")
    a = await cluster.join("a", session="old")
    await cluster.until_counts(a=4)
    await step_out(a)
    store.inject(Refuse(), kinds={"revoke"}, times=None)
    began = cluster.clock.now()
    again = await cluster.join("a", session="new", takeover=False)
    await again.until("has its own", lambda c: len(c.owned) == 4)
    assert cluster.clock.now() - began < 1


async def test_the_same_session_that_comes_back_is_no_longer_away(any_cluster: Cluster) -> None:
    a = await owner_of_all(any_cluster)
    await step_out(a)
    assert (await any_cluster.state()).consumers["a"].record.away
    assert a.instance is not None
    await a.connect(a.instance)
    assert len(a.owned) == 4
    assert not (await any_cluster.state()).consumers["a"].record.away
    with pytest.raises(SessionHeld):
        await register(a.instance, "new")


async def test_the_session_that_stepped_out_is_displaced_for_good(any_cluster: Cluster) -> None:
    a = await owner_of_all(any_cluster)
    await step_out(a)
    await any_cluster.join("a", session="new")
    assert a.instance is not None
    with pytest.raises(Superseded):
        await a.connect(a.instance)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_the_lease_of_one_that_does_not_come_back_ends_and_others_get_its_partitions(
    any_cluster: Cluster,
) -> None:
    a = await owner_of_all(any_cluster)
    await any_cluster.join("b")
    await any_cluster.until_counts(a=2, b=2)
    began = any_cluster.clock.now()
    await step_out(a)
    await any_cluster.until_counts(b=4, within=any_cluster.ttl + 10)
    assert any_cluster.clock.now() - began >= any_cluster.ttl / 2


# --- while it is out -------------------------------------------------------------------------------------------------


async def test_meanwhile_it_keeps_what_it_has_and_gets_nothing(cluster_in_either_mode: Cluster) -> None:
    cluster = cluster_in_either_mode
    a = await owner_of_all(cluster)
    await step_out(a)
    await cluster.join("b")
    await cluster.add_topic("u", partitions=4)
    await cluster.until_counts(a=4, b=4)
    await cluster.join("a", session="new")
    await cluster.until_counts(a=4, b=4)


async def test_what_it_was_asked_to_release_counts_as_released(cluster_in_either_mode: Cluster) -> None:
    cluster = cluster_in_either_mode
    a = await owner_of_all(cluster, answers_release=False)
    await cluster.join("b")
    await a.until("asked to release", lambda a: len(a.to_release) == 2)
    began = cluster.clock.now()
    await step_out(a)
    await cluster.until_counts(a=2, b=2)
    assert cluster.clock.now() - began < TTL / 4


async def test_what_it_was_to_release_to_nobody_is_free(cluster: Cluster) -> None:
    a = await owner_of_all(cluster, answers_release=False)
    await a.deregister()
    await a.until("asked to release", lambda a: len(a.to_release) == 4)
    await step_out(a)
    await cluster.until("free", lambda s: not s.assignments and not s.handoffs)


# --- who may take the name -------------------------------------------------------------------------------------------


async def test_a_held_name_is_not_taken_over_and_its_holder_goes_on(any_cluster: Cluster) -> None:
    a = await owner_of_all(any_cluster)
    other = await any_cluster.start_instance("i2", leads=False)
    before = (await any_cluster.state()).consumers["a"]
    for instance in (a.instance, other):
        assert instance is not None
        with pytest.raises(SessionHeld, match="registered by another session"):
            await register(instance, "new")
    assert (await any_cluster.state()).consumers["a"] == before
    assert a.ended is None
    await any_cluster.instances["i1"].members.renew(GROUP, "a", "old")


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_name_whose_lease_is_gone_is_free(any_cluster: Cluster) -> None:
    a = await owner_of_all(any_cluster)
    a.crash()
    await any_cluster.until("gone", lambda s: not s.consumers, within=any_cluster.ttl + 10)
    assert a.instance is not None
    await register(a.instance, "new")


async def test_an_evicted_session_does_not_hold_its_name(cluster: Cluster) -> None:
    await cluster.set_options(release_timeout=5.0)
    a = await owner_of_all(cluster, answers_release=False)
    await cluster.join("b")
    await a.until("evicted", lambda a: isinstance(a.ended, Evicted), within=10)
    assert a.instance is not None
    await register(a.instance, "new")


async def test_an_instance_that_lags_behind_asks_the_store_who_holds_the_name(any_cluster: Cluster) -> None:
    a = await owner_of_all(any_cluster)
    behind = await any_cluster.start_faulty("i2", leads=False)
    other = any_cluster.instances["i2"]
    async with other.mirrors.of(GROUP) as mirror:
        # That of the index and that of the group.
        await eventually(lambda: behind.open_watches == 2)
        whole = any_cluster.group.prefix
        behind.inject(Refuse(), kinds={"list", "watch"}, times=None, where=lambda _, prefix, *__: prefix == whole)
        behind.end_watches()
        await step_out(a)
        assert not mirror.state.consumers["a"].record.away
        # It is written, and then waited for in a mirror that will not show it.
        with pytest.raises(StoreUnavailable, match="is mirrored up to revision"):
            await register(other, "new")
        assert (await any_cluster.state()).consumers["a"].record.session == "new"
        with pytest.raises(SessionHeld):
            await register(other, "third")


# --- rules -----------------------------------------------------------------------------------------------------------


async def test_only_a_registered_session_steps_out(any_cluster: Cluster) -> None:
    a = await owner_of_all(any_cluster)
    assert a.instance is not None
    members = a.instance.members
    with pytest.raises(NotRegistered):
        await members.step_out(GROUP, "a", "another")
    with pytest.raises(NotRegistered):
        await members.step_out(GROUP, "nobody", "old")
    await any_cluster.join("a", session="new")
    with pytest.raises(Superseded):
        await members.step_out(GROUP, "a", "old")
    assert not (await any_cluster.state()).consumers["a"].record.away


async def test_no_other_identity_lets_a_consumer_step_out(cluster: Cluster) -> None:
    a = await owner_of_all(cluster, principal="acme/shop")
    assert a.instance is not None
    with pytest.raises(PermissionDenied):
        await a.instance.members.step_out(GROUP, "a", "old", principal="acme/other")
    await a.instance.members.step_out(GROUP, "a", "old", principal="acme/shop")


async def test_stepping_out_twice_is_stepping_out(any_cluster: Cluster) -> None:
    a = await owner_of_all(any_cluster)
    await step_out(a)
    before = (await any_cluster.state()).consumers["a"]
    assert a.instance is not None
    await a.instance.members.step_out(GROUP, "a", "old")
    assert (await any_cluster.state()).consumers["a"] == before
