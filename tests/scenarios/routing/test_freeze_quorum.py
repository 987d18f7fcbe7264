"""What a freeze waits for: every router that is registered now, and its ack of this very handoff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from assigner.errors import (
    FailedPrecondition,
    InvalidInput,
    NotRegistered,
    StoreUnavailable,
    Superseded,
    UnknownTopic,
)
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions, HandoffMode, Router, RouterAck, Step, encode
from assigner.model.routes import FreezeAck
from assigner.store import Put
from assigner.testing.faults import Kind, LoseAnswer, Refuse
from tests.support.cluster import EXPIRES, GROUP, Cluster, tp
from tests.support.frozen_moves import moving, owners, until_step, warm_at_b

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


async def revision(cluster: Cluster, tp: TopicPartition) -> int:
    """Of the partition's handoff and acks together, so that a change of either shows."""
    state = await cluster.state()
    acks = [ack.mod_revision for ack in state.acks.get(tp, {}).values()]
    return max([state.handoffs[tp].mod_revision, *acks])


async def test_a_move_waits_for_both_routers_and_both_tables_end_as_the_store_is(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    one = await cluster.route("r1", acks_freezes=False)
    other = await cluster.route("r2", acks_freezes=False)
    _, b, partition = await moving(cluster)
    for router in (one, other):
        await router.until("frozen", lambda r: partition in r.frozen)
    await one.ack(partition)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    await other.ack(partition)
    state = await cluster.until_counts(a=1, b=1)
    for router in (one, other):
        await router.until("the new owner", lambda r: r.owners() == owners(state))
        assert not router.frozen
        assert router.table[partition].address == "10.0.0.2:1"


async def test_exclusively_the_old_owner_works_on_until_every_router_has_acked(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    a, _, partition = await moving(cluster)
    await router.until("frozen", lambda r: partition in r.frozen)
    await anyio.sleep(0.5)
    assert not a.to_release
    assert partition in a.owned
    await router.ack(partition)
    await cluster.until_counts(a=1, b=1)
    await router.until("thawed", lambda r: not r.frozen)


async def test_one_stuck_partition_delays_no_other(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, b = await warm_at_b(cluster, partitions=8)
    stuck, *others = sorted(b.to_warm)
    await b.ready(stuck, *others)
    await router.until("all frozen", lambda r: len(r.frozen) == 4)
    await router.ack(*others)
    await b.until("the others", lambda c: set(others) <= set(c.owned))
    await router.until("one frozen", lambda r: r.frozen == {stuck})
    await router.ack(stuck)
    await cluster.until_counts(a=4, b=4)


async def test_a_batch_of_130_acks_is_recorded_although_no_transaction_takes_it(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(warm_concurrency=200)
    await cluster.start_instance()
    one = await cluster.route("r1", acks_freezes=False)
    other = await cluster.route("r2", acks_freezes=False)
    _, b = await warm_at_b(cluster, partitions=2 * 130)
    await b.ready(*b.to_warm)
    await one.until("all frozen", lambda r: len(r.frozen) == 130)
    await one.ack(*one.frozen)
    state = await cluster.state()
    assert sum(len(acks) for acks in state.acks.values()) == 130
    await other.until("all frozen", lambda r: len(r.frozen) == 130)
    await other.ack(*other.frozen)
    state = await cluster.until_counts(a=130, b=130)
    assert not state.acks


# --- acks that do not count --------------------------------------------------------------------------------------


async def test_an_ack_of_the_handoff_before_changes_nothing_and_is_no_error(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, _, partition = await moving(cluster)
    await until_step(cluster, partition)
    before = await revision(cluster, partition)
    await router.ack(partition, handoff_id="an-earlier-one")
    assert await revision(cluster, partition) == before
    await router.until("frozen", lambda r: partition in r.frozen)
    await router.ack(partition)
    await cluster.until_counts(a=1, b=1)


async def test_rule_5_an_ack_counts_for_the_handoff_that_it_names_and_for_no_later_one(any_cluster: Cluster) -> None:
    """It was left behind by the handoff before, whose deletion had no room for it in its transaction."""
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    stored = (await cluster.state()).routers["r1"]
    before = RouterAck(
        router_name="r1",
        topic=partition.topic,
        partition=partition.partition,
        handoff_id="the-one-before",
        session=router.session,
    )
    await cluster.store.put(cluster.group.ack(partition, "r1"), encode(before), lease=stored.lease)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    await router.until("frozen", lambda r: partition in r.frozen)
    await router.ack(partition)
    await cluster.until_counts(a=1, b=1)


async def test_an_ack_that_comes_twice_is_recorded_once(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    await cluster.route("silent", acks_freezes=False)
    _, _, partition = await moving(cluster)
    await until_step(cluster, partition)
    await router.until("frozen", lambda r: partition in r.frozen)
    await router.ack(partition)
    await cluster.until("acked", lambda s: "r1" in s.acks.get(partition, {}))
    await anyio.sleep(cluster.a_while / 10)
    before = await revision(cluster, partition)
    await router.ack(partition)
    assert await revision(cluster, partition) == before


@pytest.mark.parametrize("refused", ["transact", "get"])
async def test_acks_that_the_store_does_not_take_now_fail_as_a_call_that_is_made_again(
    cluster: Cluster, refused: Kind
) -> None:
    """As refusals of single acks they would look final, and the router would send them with its next renewal only."""
    faulty = await cluster.start_faulty()
    router = await cluster.route("r1", acks_freezes=False)
    _, b = await warm_at_b(cluster, partitions=8)
    await b.ready(*b.to_warm)
    await router.until("all frozen", lambda r: len(r.frozen) == 4)
    for frozen in router.frozen:
        await until_step(cluster, frozen)
    acks = [FreezeAck(frozen, router.table[frozen].handoff_id) for frozen in sorted(router.frozen)]
    refusing = faulty.inject(Refuse(), kinds=[refused], times=None, where=is_about_acks(cluster))
    faulty.inject(LoseAnswer(applied=False), kinds=["transact"], where=is_about_acks(cluster))
    with pytest.raises(StoreUnavailable):
        await router.service.cutover_ack(GROUP, "r1", router.session, acks)
    assert refusing.hits
    faulty.heal()
    assert await router.service.cutover_ack(GROUP, "r1", router.session, acks) == []
    await cluster.until_counts(a=4, b=4)


def is_about_acks(cluster: Cluster) -> Callable[..., bool]:
    """Whether a call reads a handoff, or writes an ack."""
    handoffs, acks = f"{cluster.group.prefix}handoffs/", f"{cluster.group.prefix}handoff_acks/"

    def holds(kind: Kind, *arguments: Any) -> bool:
        if kind == "get":
            return str(arguments[0]).startswith(handoffs)
        return any(isinstance(one, Put) and one.key.startswith(acks) for one in arguments[1])

    return holds


async def test_an_ack_after_the_handoff_is_over_is_no_error(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, _, partition = await moving(cluster)
    await router.until("frozen", lambda r: partition in r.frozen)
    handoff_id = router.table[partition].handoff_id
    await router.ack(partition)
    await cluster.until_counts(a=1, b=1)
    await router.ack(partition, handoff_id=handoff_id)
    assert not (await cluster.state()).acks


@pytest.mark.parametrize("handoff", [{}, {"handoff_id": ""}], ids=["no id", "an empty id"])
async def test_an_ack_on_record_that_names_no_handoff_counts_for_none(
    any_cluster: Cluster, handoff: dict[str, str]
) -> None:
    """Such as one that a service without handoff ids has written."""
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    ack = {"router_name": "r1", "topic": partition.topic, "partition": partition.partition, "session": router.session}
    lease = (await cluster.state()).routers["r1"].lease
    await cluster.store.put(cluster.group.ack(partition, "r1"), msgspec.json.encode({**ack, **handoff}), lease=lease)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    await router.until("frozen", lambda r: partition in r.frozen)
    await router.ack(partition)
    await cluster.until_counts(a=1, b=1)


async def test_an_ack_without_a_handoffs_id_is_refused(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    (rejected,) = await router.service.cutover_ack(
        router.group, router.name, router.session, [FreezeAck(partition, "")]
    )
    assert isinstance(rejected.error, InvalidInput)
    assert partition not in b.owned


async def test_an_ack_of_a_partition_that_does_not_exist_is_refused(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    await moving(cluster)
    with pytest.raises(UnknownTopic, match="not known"):
        await router.ack(tp(0, "no-topic"), handoff_id="h")
    with pytest.raises(UnknownTopic, match="0 to 1"):
        await router.ack(tp(99), handoff_id="h")


async def test_an_ack_of_a_handoff_that_is_still_warming_is_refused(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, b = await warm_at_b(cluster)
    (partition,) = b.to_warm
    with pytest.raises(FailedPrecondition, match="not frozen"):
        await router.ack(partition, handoff_id=b.to_warm[partition].handoff_id)
    assert not (await cluster.state()).acks


async def test_the_ack_of_another_session_is_refused_and_does_not_count(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, b, partition = await moving(cluster)
    handoff_id = await until_step(cluster, partition)
    with pytest.raises(NotRegistered):
        await router.service.cutover_ack(router.group, "r1", "a-strangers", [FreezeAck(partition, handoff_id)])
    with pytest.raises(NotRegistered):
        await router.service.cutover_ack(router.group, "r9", router.session, [FreezeAck(partition, handoff_id)])
    await anyio.sleep(0.5)
    assert partition not in b.owned


async def test_an_ack_of_a_session_that_lost_its_name_meanwhile_does_not_count(any_cluster: Cluster) -> None:
    """The ack was recorded in time; then the name changed hands, and the new process has acked nothing."""
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.route("silent", acks_freezes=False)
    old = await cluster.route("r1", acks_freezes=False)
    _, b, partition = await moving(cluster)
    await old.until("frozen", lambda r: partition in r.frozen)
    await old.ack(partition)
    new = await cluster.route("r1", session="another", acks_freezes=False)
    await old.until("the end", lambda r: isinstance(r.ended, Superseded))
    await old.deregister()
    await cluster.until("one process less", lambda s: not s.displaced_routers)
    silent = await cluster.route("silent", acks_freezes=False)
    await silent.ack(partition)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    await new.ack(partition)
    await cluster.until_counts(a=1, b=1)


# --- routers that come and go -------------------------------------------------------------------------------------


async def test_a_newcomer_while_a_partition_warms_is_told_and_acks_nothing_yet(any_cluster: Cluster) -> None:
    cluster = any_cluster
    _, b = await warm_at_b(cluster)
    (partition,) = b.to_warm
    router = await cluster.route("late")
    assert router.table[partition].handoff_id == b.to_warm[partition].handoff_id
    assert not router.frozen
    assert not (await cluster.state()).acks
    await b.ready(partition)
    await cluster.until_counts(a=1, b=1)
    assert [ack.tp for ack in router.acked] == [partition]


async def test_a_newcomer_while_a_partition_is_frozen_holds_it_from_its_first_table_on(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    first = await cluster.route("r1", acks_freezes=False)
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    newcomer = await cluster.route("late", acks_freezes=False)
    assert newcomer.frozen == {partition}
    await first.until("frozen", lambda r: partition in r.frozen)
    await first.ack(partition)
    await anyio.sleep(0.5)
    assert partition not in b.owned, "the newcomer is waited for too"
    await newcomer.ack(partition)
    await cluster.until_counts(a=1, b=1)


async def test_a_newcomer_while_the_old_owner_releases_holds_it_and_is_not_waited_for(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.start_instance()
    await cluster.route("r1")
    await cluster.add_topic(partitions=2)
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    await cluster.join("b")
    await a.until("asked to release", lambda c: bool(c.to_release))
    (partition,) = a.to_release
    newcomer = await cluster.route("late", acks_freezes=False)
    assert newcomer.frozen == {partition}
    await newcomer.ack(partition)
    assert "late" not in (await cluster.state()).acks.get(partition, {}), "the ack is late and changes nothing"
    await a.release(partition)
    await cluster.until_counts(a=1, b=1)
    await newcomer.until("thawed", lambda r: not r.frozen)


async def test_rule_11_a_router_that_deregisters_is_not_waited_for(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, _, partition = await moving(cluster)
    await until_step(cluster, partition)
    await router.deregister()
    await cluster.until_counts(a=1, b=1)
    await router.until("the end", lambda r: isinstance(r.ended, NotRegistered))


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_router_that_dies_is_waited_for_until_its_lease_ends(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False, renews=False)
    router.crash()
    await moving(cluster)
    await cluster.until_counts(a=1, b=1, within=2 * cluster.ttl)
    assert not (await cluster.state()).routers


async def test_a_router_that_dies_after_its_ack_takes_the_ack_along(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    stays = await cluster.route("stays", acks_freezes=False)
    dies = await cluster.route("dies", acks_freezes=False)
    _, _, partition = await moving(cluster)
    await dies.until("frozen", lambda r: partition in r.frozen)
    await dies.ack(partition)
    lease = (await cluster.state()).routers["dies"].lease
    assert (await cluster.state()).acks[partition]["dies"].lease == lease
    await cluster.store.revoke(lease)
    await cluster.until("no ack", lambda s: not s.acks)
    await stays.ack(partition)
    await cluster.until_counts(a=1, b=1)


async def test_rule_8_a_router_whose_record_cannot_be_read_is_waited_for(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.store.put(cluster.group.router("broken"), b"{")
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    (shown,) = (await cluster.instances["i1"].operations.describe(cluster.group.group)).routers
    assert (shown.name, shown.session, shown.unacked) == ("broken", "", 1)
    await cluster.store.delete(cluster.group.router("broken"))
    await cluster.until_counts(a=1, b=1)


async def test_a_record_under_the_name_of_another_router_cannot_be_read(cluster: Cluster) -> None:
    await cluster.start_instance()
    await cluster.store.put(cluster.group.router("one"), encode(Router(router_name="two")))
    _, _, partition = await moving(cluster)
    await until_step(cluster, partition, Step.FREEZING)
    assert cluster.group.router("one") in (await cluster.state()).unreadable
