"""One life of a router process: it registers, resumes anywhere, renews, loses its name, and ends."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import RouterRegistration
from assigner.core.routers import sessions
from assigner.errors import (
    InvalidInput,
    InvalidName,
    LimitReached,
    NotRegistered,
    PermissionDenied,
    StreamReplaced,
    Superseded,
    UnreadableRecord,
)
from assigner.model.names import session_digest
from assigner.model.records import GroupOptions, HandoffMode
from assigner.store import Found, LeaseGone
from tests.support.cluster import EXPIRES, GROUP, Cluster
from tests.support.frozen_moves import moving, until_step

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


async def test_a_router_registers_under_a_lease_of_its_own(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    stored = (await cluster.state()).routers["r1"]
    assert stored.lease
    assert stored.record.session == router.session
    assert stored.record.ttl == cluster.ttl


async def test_a_router_that_comes_back_within_its_ttl_at_any_instance_changes_nothing(any_cluster: Cluster) -> None:
    """Neither the freeze that waits for it, nor the ack that it has given."""
    cluster = any_cluster
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2")
    router = await cluster.route("r1", cluster.instances["i1"], acks_freezes=False)
    silent = await cluster.route("silent", acks_freezes=False)
    _, _, partition = await moving(cluster)
    handoff_id = await until_step(cluster, partition)
    await router.until("frozen", lambda r: partition in r.frozen)
    await router.ack(partition)
    before = (await cluster.state()).routers["r1"]
    router.crash()
    await router.connect(other)
    state = await cluster.state()
    assert (state.routers["r1"].lease, state.routers["r1"].create_revision) == (before.lease, before.create_revision)
    assert state.routers["r1"].record.registered_at == before.record.registered_at
    assert not state.displaced_routers
    assert router.table[partition].handoff_id == handoff_id
    assert state.handoffs[partition].record.handoff_id == handoff_id
    assert "r1" in state.acks[partition], "its ack still counts"
    await silent.until("frozen", lambda r: partition in r.frozen)
    await silent.ack(partition)
    await cluster.until_counts(a=1, b=1)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_router_that_stops_renewing_is_gone_with_its_lease_and_its_stream_ends(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", renews=False)
    await router.until("the end", lambda r: isinstance(r.ended, NotRegistered), within=2 * cluster.ttl)
    with pytest.raises(NotRegistered, match="hold all requests back"):
        await router.renew()


async def test_a_router_rejoins_under_another_lease_after_its_lease_was_revoked(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    before = (await cluster.state()).routers["r1"].lease
    await cluster.store.revoke(before)
    await router.until("the end", lambda r: isinstance(r.ended, NotRegistered))
    await router.connect(cluster.instances["i1"])
    assert (await cluster.state()).routers["r1"].lease not in (0, before)
    await router.renew()


async def test_rule_3_a_registration_that_somebody_deleted_is_not_renewed_although_its_lease_lives(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    lease = (await cluster.state()).routers["r1"].lease
    await cluster.store.delete(cluster.group.router("r1"))
    with pytest.raises(NotRegistered):
        await router.renew()
    assert not isinstance(await cluster.store.remaining(lease), LeaseGone)
    await router.until("the end", lambda r: isinstance(r.ended, NotRegistered))


async def test_a_renewal_is_confirmed_by_the_store_after_it_was_asked_for(cluster: Cluster) -> None:
    faulty = await cluster.start_faulty()
    router = await cluster.route("r1", renews=False)
    lease = (await cluster.state()).routers["r1"].lease
    await anyio.sleep(cluster.ttl / 2)
    faulty.freeze()
    with anyio.move_on_after(cluster.ttl / 10) as waited:
        await router.renew()
    assert waited.cancelled_caught, "answered without the store"
    faulty.thaw()
    assert await router.renew() == cluster.ttl
    left = await cluster.store.remaining(lease)
    assert not isinstance(left, LeaseGone)
    assert left.ttl > 0.9 * cluster.ttl


async def test_a_later_stream_of_the_session_takes_the_place_of_an_earlier_one(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    first = await cluster.route("r1")
    second = await cluster.route("r1")
    await first.until("the end", lambda r: isinstance(r.ended, StreamReplaced))
    assert second.ended is None
    assert not (await cluster.state()).displaced_routers


# --- two processes with one name ---------------------------------------------------------------------------------


async def test_another_process_takes_the_name_over_and_the_one_that_lost_it_stays_out(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2")
    old = await cluster.route("r1", cluster.instances["i1"])
    new = await cluster.route("r1", other, session="another")
    await old.until("the end", lambda r: isinstance(r.ended, Superseded))
    with pytest.raises(Superseded, match=session_digest("another")):
        await old.service.register(RouterRegistration(GROUP, "r1", old.session))
    with pytest.raises(Superseded):
        await old.renew()
    await new.renew()
    assert new.ended is None


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_rule_2_freezes_wait_for_a_process_that_lost_its_name_until_its_lease_ends(any_cluster: Cluster) -> None:
    """It may still be sending to old owners; nobody renews its lease any more."""
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.route("r1", renews=False)
    began = cluster.clock.now()
    await cluster.route("r1", session="another")
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    shown = (await cluster.instances["i1"].operations.describe(GROUP)).routers
    assert [(one.name, one.unacked) for one in shown] == [("r1", 1)]
    assert partition not in b.owned
    await cluster.until_counts(a=1, b=1, within=2 * cluster.ttl)
    assert cluster.clock.now() - began > 0.5 * cluster.ttl
    assert not (await cluster.state()).displaced_routers


async def test_a_process_that_lost_its_name_may_say_that_it_has_stopped(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    old = await cluster.route("r1")
    await cluster.route("r1", session="another")
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    await old.deregister()
    await cluster.until_counts(a=1, b=1)
    assert "r1" in (await cluster.state()).routers, "that ended the other process too"


async def test_another_identity_may_neither_take_the_name_nor_act_for_the_session(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    service = cluster.instances["i1"].routers
    stream = await service.register(RouterRegistration(GROUP, "r1", "s", principal="us"))
    await stream.leave()
    for session in ("s", "another"):
        with pytest.raises(PermissionDenied):
            await service.register(RouterRegistration(GROUP, "r1", session, principal="them"))
    with pytest.raises(PermissionDenied):
        await service.renew(GROUP, "r1", "s", principal="them")
    with pytest.raises(PermissionDenied):
        await service.deregister(GROUP, "r1", "s", principal="them")
    await service.renew(GROUP, "r1", "s", principal="us")


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", " r", "r\n", "r" * 250])
async def test_a_malformed_name_is_refused(cluster: Cluster, name: str) -> None:
    await cluster.start_instance()
    with pytest.raises(InvalidName):
        await cluster.instances["i1"].routers.register(RouterRegistration(GROUP, name, "s"))


async def test_a_router_without_a_session_is_refused(cluster: Cluster) -> None:
    await cluster.start_instance()
    with pytest.raises(InvalidInput, match="one per process"):
        await cluster.instances["i1"].routers.register(RouterRegistration(GROUP, "r1", ""))
    with pytest.raises(InvalidName):
        await cluster.instances["i1"].routers.register(RouterRegistration(GROUP, "r1", "s" * 250))


async def test_calls_for_a_group_or_a_router_that_is_not_known_say_so(any_cluster: Cluster) -> None:
    cluster = any_cluster
    service = (await cluster.start_instance()).routers
    with pytest.raises(NotRegistered, match="nowhere"):
        await service.renew("nowhere", "r1", "s")
    await cluster.route("r1")
    with pytest.raises(NotRegistered):
        await service.renew(GROUP, "r2", "s")
    with pytest.raises(NotRegistered):
        await service.deregister(GROUP, "r1", "not-its-session")


async def test_a_registration_that_cannot_be_read_is_not_overwritten(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.add_topic()
    await cluster.store.put(cluster.group.router("r1"), b"{")
    with pytest.raises(UnreadableRecord):
        await cluster.instances["i1"].routers.register(RouterRegistration(GROUP, "r1", "s"))
    found = await cluster.store.get(cluster.group.router("r1"))
    assert isinstance(found, Found)
    assert found.entry.value == b"{"


async def test_one_router_too_many_is_refused_and_those_that_are_registered_come_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_ROUTERS", 2)
    instance = await cluster.start_instance()
    await cluster.route("r1")
    router = await cluster.route("r2")
    with pytest.raises(LimitReached, match="2 routers"):
        await instance.routers.register(RouterRegistration(GROUP, "r3", "s"))
    router.crash()
    await router.connect(instance)
    await router.deregister()
    await cluster.until("one less", lambda s: len(s.routers) == 1)
    await cluster.route("r3")


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_name_that_is_taken_over_ever_anew_is_refused_until_those_who_lost_it_are_gone(
    any_cluster: Cluster,
) -> None:
    """Each of them is waited for until its lease ends, and remembered: a router that is restarted in a loop must not
    fill the group, nor have the first of them forgotten."""
    cluster = any_cluster
    instance = await cluster.start_instance()
    await cluster.route("other")
    for number in range(1 + sessions.MOST_DISPLACED):
        await instance.routers.register(RouterRegistration(GROUP, "r1", f"s{number}"))
    with pytest.raises(LimitReached, match=f"'r1' .* was taken over {sessions.MOST_DISPLACED} times"):
        await instance.routers.register(RouterRegistration(GROUP, "r1", "one more"))
    stream = await instance.routers.register(RouterRegistration(GROUP, "r1", f"s{sessions.MOST_DISPLACED}"))
    await cluster.until("gone", lambda s: not s.displaced_routers, within=3 * cluster.ttl)
    assert "other" in (await cluster.state()).routers
    await instance.routers.register(RouterRegistration(GROUP, "r1", "one more"))
    await stream.leave()


async def test_a_name_with_a_slash_is_one_router(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.start_instance()
    await cluster.route("edge/1~a", session="one")
    router = await cluster.route("edge/1~a", session="two")
    state = await cluster.state()
    assert list(state.routers) == ["edge/1~a"]
    assert [key.name for key in state.displaced_routers] == ["edge/1~a"]
    await router.renew()
