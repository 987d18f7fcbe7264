"""Freezes that do not end by the last ack: routers that never ack, parties that die, handoffs that others delete."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import RouterRegistration
from assigner.core.group import GroupState
from assigner.core.routers.quorum import NAMED_IN_RECORDS
from assigner.errors import Evicted
from assigner.model.keys import TopicPartition
from assigner.model.names import MAX_NAME_BYTES
from assigner.model.records import FreezeOverdue, GroupOptions, HandoffMode, RouterAck, Step, encode
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, GROUP, Cluster
from tests.support.frozen_moves import moving, owners, until_step, warm_at_b

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
OVERDUE_SOON = GroupOptions(debounce=0.1, freeze_timeout=2.0, balance_backoff=600.0)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


def epoch(state: GroupState, tp: TopicPartition) -> int:
    return state.assignments[tp].record.epoch


# --- routers that never ack --------------------------------------------------------------------------------------


@pytest.mark.cluster(options=OVERDUE_SOON)
async def test_an_overdue_freeze_is_given_up_and_thaws_by_a_higher_epoch_of_the_old_owner(
    any_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = any_cluster
    instance = await cluster.start_instance()
    silent = await cluster.route("silent", acks_freezes=False)
    prompt = await cluster.route("prompt")
    a, _, partition = await moving(cluster)
    await silent.until("frozen", lambda r: partition in r.frozen)
    before = epoch(await cluster.state(), partition)
    state = await cluster.until_counts(a=2)
    assert epoch(state, partition) > before
    assert not state.acks
    for router in (silent, prompt):
        await router.until("thawed", lambda r: r.owners() == owners(state) and not r.frozen)
    assert partition in a.owned
    text = caplog.text
    assert "freeze_overdue" in text
    assert "move_abandoned" in text
    assert "'silent'" in text
    assert "'prompt'" not in text
    assert b'assigner_freezes_overdue_total{group="g",outcome="abandon"} 1.0' in await instance.metrics.render()


@pytest.mark.cluster(options=OVERDUE_SOON)
@pytest.mark.parametrize("mode", list(HandoffMode))
async def test_an_overdue_freeze_goes_on_without_the_routers_where_the_group_says_so_and_names_them(
    any_cluster: Cluster, mode: HandoffMode, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = any_cluster
    await cluster.set_options(freeze_overdue=FreezeOverdue.PROCEED, handoff_mode=mode)
    instance = await cluster.start_instance()
    silent = await cluster.route("silent", acks_freezes=False)
    await cluster.route("prompt")
    _, _, partition = await moving(cluster)
    await until_step(cluster, partition)
    (waiting,) = (await instance.operations.describe(GROUP)).handoffs
    assert waiting.unacked == ("silent",)
    state = await cluster.until_counts(a=1, b=1)
    await silent.until("thawed", lambda r: r.owners() == owners(state) and not r.frozen)
    assert "freeze_overdue" in caplog.text
    history = (await instance.operations.describe(GROUP)).history
    while not any(move.new == "b" for move in history):
        await anyio.sleep(0.5)
        history = (await instance.operations.describe(GROUP)).history
    assert [move.unacked for move in history if move.new == "b"] == [("silent",)]
    assert b'assigner_freezes_overdue_total{group="g",outcome="proceed"} 1.0' in await instance.metrics.render()


@pytest.mark.cluster(options=OVERDUE_SOON)
@pytest.mark.parametrize("mode", list(HandoffMode))
async def test_of_many_routers_that_do_not_ack_some_are_named_wherever_they_are_stored(
    any_cluster: Cluster, mode: HandoffMode
) -> None:
    """Records that name two hundred of them for each of twenty partitions would be more than the store takes."""
    cluster = any_cluster
    await cluster.set_options(freeze_overdue=FreezeOverdue.PROCEED, handoff_mode=mode, warm_concurrency=20)
    instance = await cluster.start_instance()
    silent = [f"{number:03}".ljust(MAX_NAME_BYTES, "x") for number in range(200)]
    for name in silent:
        await instance.routers.register(RouterRegistration(GROUP, name, "s"))
    _, b = await warm_at_b(cluster, partitions=40)
    await b.ready(*b.to_warm)
    await cluster.until_counts(a=20, b=20)
    said = (*silent[:NAMED_IN_RECORDS], f"and {200 - NAMED_IN_RECORDS} more")

    async def moved() -> bool:
        moves = (await instance.operations.describe(GROUP)).history
        return [move.unacked for move in moves if move.new == "b"] == [said] * 20

    await eventually(moved, within=cluster.patience, what="the moves are in the history")


async def test_a_description_names_some_of_many_routers_that_a_move_waits_for(any_cluster: Cluster) -> None:
    cluster = any_cluster
    instance = await cluster.start_instance()
    names = [f"r{number:02}" for number in range(NAMED_IN_RECORDS + 5)]
    for name in names:
        await instance.routers.register(RouterRegistration(GROUP, name, "s"))
    _, _, partition = await moving(cluster)
    await until_step(cluster, partition)

    async def described() -> bool:
        (waiting,) = (await instance.operations.describe(GROUP)).handoffs
        return waiting.unacked == (*names[:NAMED_IN_RECORDS], "and 5 more")

    await eventually(described, within=cluster.patience, what="some are named")


@pytest.mark.cluster(options=OVERDUE_SOON)
async def test_an_owner_that_has_to_leave_is_evicted_and_told_which_routers_did_not_ack(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(freeze_timeout=2.0)
    await cluster.start_instance()
    await cluster.route("silent", acks_freezes=False)
    await cluster.add_topic(partitions=2)
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await a.deregister()
    await cluster.join("b")
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted))
    assert "'silent'" in str(a.ended)


@pytest.mark.cluster(options=OVERDUE_SOON)
async def test_acks_that_arrive_as_the_deadline_passes_win(cluster: Cluster) -> None:
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, _, partition = await moving(cluster)
    await until_step(cluster, partition)
    await router.until("frozen", lambda r: partition in r.frozen)
    await anyio.sleep(OVERDUE_SOON.freeze_timeout - 0.2)
    await router.ack(partition)
    await cluster.until_counts(a=1, b=1)


# --- parties that die, moves that are cancelled ------------------------------------------------------------------


async def test_an_old_owner_that_dies_while_frozen_is_followed_by_the_new_one_without_acks(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    a, _, partition = await moving(cluster)
    await until_step(cluster, partition)
    a.crash()
    await cluster.store.revoke((await cluster.state()).consumers["a"].lease)
    state = await cluster.until_counts(b=2)
    await router.until("thawed", lambda r: r.owners() == owners(state) and not r.frozen)


async def test_a_new_owner_that_dies_while_frozen_leaves_the_old_one_under_a_higher_epoch(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    _, b, partition = await moving(cluster)
    await until_step(cluster, partition)
    before = epoch(await cluster.state(), partition)
    b.crash()
    await cluster.store.revoke((await cluster.state()).consumers["b"].lease)
    state = await cluster.until_counts(a=2)
    assert epoch(state, partition) > before
    await router.until("thawed", lambda r: r.owners() == owners(state) and not r.frozen)


async def test_a_replaced_handoff_thaws_what_the_one_before_it_froze_and_its_acks_do_not_count(
    any_cluster: Cluster,
) -> None:
    """The new owner dies, and another one takes its place: the partition is warmed again, and served meanwhile."""
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    await cluster.route("silent", acks_freezes=False)
    _, b, partition = await moving(cluster)
    first = await until_step(cluster, partition)
    await router.until("acked", lambda r: bool(r.acked))
    c = await cluster.join("c", answers_warm=False)
    b.crash()
    await cluster.store.revoke((await cluster.state()).consumers["b"].lease)
    await c.until("asked to warm", lambda _: bool(c.to_warm))
    (again,) = c.to_warm
    await router.until("thawed", lambda r: not r.frozen)
    await c.ready(again)
    second = await until_step(cluster, again)
    assert second != first
    await router.until("acked again", lambda r: r.acked[-1].handoff_id == second)
    assert again not in c.owned, "the silent one has acked neither"


# --- handoffs that others delete ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(HandoffMode))
async def test_rule_12_a_frozen_handoff_that_others_delete_is_repaired_by_a_higher_epoch(
    any_cluster: Cluster, mode: HandoffMode
) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=mode)
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    a, _, partition = await moving(cluster)
    await router.until("frozen", lambda r: partition in r.frozen)
    await until_step(cluster, partition)
    before = epoch(await cluster.state(), partition)
    await cluster.store.delete(cluster.group.handoff(partition))
    state = await cluster.until("a higher epoch", lambda s: epoch(s, partition) > before)
    assert state.assignments[partition].record.owner == "a"
    await router.until("thawed", lambda r: r.table[partition].epoch > before and not r.frozen)
    await a.until("the epoch", lambda c: c.owned[partition] > before)


async def test_an_owner_that_was_asked_to_release_works_on_if_others_delete_the_handoff(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.start_instance()
    router = await cluster.route("r1")
    await cluster.add_topic(partitions=2)
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    await cluster.join("b")
    await a.until("asked to release", lambda c: bool(c.to_release))
    (partition,) = a.to_release
    before = a.owned[partition]
    await cluster.store.delete(cluster.group.handoff(partition))
    await a.until("a higher epoch", lambda c: c.owned[partition] > before)
    await router.until("thawed", lambda r: r.table[partition].epoch > before and not r.frozen)


async def test_a_new_leader_repairs_what_was_deleted_before_its_term_by_the_acks_that_are_left(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2", leads=False)
    router = await cluster.route("r1", other)
    silent = await cluster.route("silent", other, acks_freezes=False)
    await warm_and_freeze(cluster)
    (partition,) = (await cluster.state()).handoffs
    # Else the next plan may begin another handoff, by which the partition thaws too.
    await cluster.set_options(paused=True)
    await cluster.until("acked", lambda s: "r1" in s.acks.get(partition, {}))
    await silent.until("frozen", lambda r: partition in r.frozen)
    before = epoch(await cluster.state(), partition)
    await cluster.stop_instance("i1")
    await cluster.store.delete(cluster.group.handoff(partition))
    assert (await cluster.state()).acks
    await cluster.start_instance("i3")
    state = await cluster.until("a higher epoch", lambda s: epoch(s, partition) > before and not s.acks)
    assert state.assignments[partition].record.owner == "a"
    for one in (router, silent):
        await one.until("thawed", lambda r: r.table[partition].epoch > before and not r.frozen)


async def warm_and_freeze(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    a = await cluster.join("a", cluster.instances["i2"])
    await cluster.until_counts(a=2)
    b = await cluster.join("b", cluster.instances["i2"])
    await cluster.until("frozen", lambda s: any(h.record.at is Step.FREEZING for h in s.handoffs.values()))
    assert a.ended is None
    assert b.ended is None


async def test_the_deletion_of_a_handoff_that_was_still_warming_changes_no_epoch(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("r1")
    _, b = await warm_at_b(cluster)
    (partition,) = b.to_warm
    await cluster.set_options(paused=True)
    before = epoch(await cluster.state(), partition)
    await cluster.store.delete(cluster.group.handoff(partition))
    await router.until("no handoff", lambda r: not r.table[partition].handoff_id)
    await anyio.sleep(1)
    assert epoch(await cluster.state(), partition) == before


async def test_acks_that_are_left_of_a_handoff_that_ended_are_swept_and_change_no_epoch(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.route("r1")
    _, _, partition = await moving(cluster)
    state = await cluster.until_counts(a=1, b=1)
    await cluster.until_quiet()
    held = (await cluster.state()).assignments[partition]
    left = RouterAck(
        router_name="r1", topic="t", partition=partition.partition, handoff_id="h", epoch=held.record.epoch - 1
    )
    await cluster.store.put(cluster.group.ack(partition, "r1"), encode(left), lease=state.routers["r1"].lease)
    state = await cluster.until("swept", lambda s: not s.acks)
    assert state.assignments[partition].mod_revision == held.mod_revision


# --- changes of leader -------------------------------------------------------------------------------------------


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_crashed_leader_leaves_a_freeze_that_the_next_one_completes(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_faulty("i1")
    other = await cluster.start_instance("i2", leads=False)
    router = await cluster.route("r1", other, acks_freezes=False)
    await warm_and_freeze(cluster)
    (partition,) = (await cluster.state()).handoffs
    await router.until("frozen", lambda r: partition in r.frozen)
    cluster.crash_instance("i1")
    await cluster.start_instance("i3")
    await router.ack(partition)
    await cluster.until_counts(a=1, b=1, within=3 * cluster.ttl)
    await router.until("thawed", lambda r: not r.frozen)
