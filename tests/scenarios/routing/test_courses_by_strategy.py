"""Whole courses of a group with two routers, by a strategy that keeps owners and by one that computes them anew.

At the end of each the plan is carried out, nothing is frozen, and the table of either router is what is stored.
"""

from __future__ import annotations

import pytest

from assigner.core.group import GroupState
from assigner.model.records import GroupOptions
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, GROUP, Cluster
from tests.support.frozen_moves import owners, until_led
from tests.support.stepped_router import SteppedRouter

PARTITIONS = 24
"""So many that a hash gives something to each of four."""
OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


class Group:
    """A cluster, and the routers of its group."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.routers: list[SteppedRouter] = []

    async def start(self, **routers: bool) -> None:
        """Start an instance, and routers that ack by themselves or not."""
        await self.cluster.add_topic(partitions=PARTITIONS)
        await self.cluster.start_instance()
        await until_led(self.cluster)
        await self.route(**routers)

    async def route(self, **routers: bool) -> None:
        for name, acks in (routers or {"r1": True, "r2": True}).items():
            self.routers.append(await self.cluster.route(name, acks_freezes=acks))

    async def settled(self, *names: str, within: float | None = None) -> GroupState:
        """Wait until these own everything, each something, and the routers know it."""

        def holds(state: GroupState) -> bool:
            shown = [router.owners() == owners(state) and not router.frozen for router in self.routers]
            return (
                {name for name, held in state.owned.items() if held} == set(names)
                and len(state.assignments) == PARTITIONS
                and not state.handoffs
                and all(shown)
                and self._has_nothing_left_to_do()
            )

        return await self.cluster.until(f"settled among {names}", holds, within)

    def _has_nothing_left_to_do(self) -> bool:
        active = [instance.coordinators.active.get(GROUP) for instance in self.cluster.instances.values()]
        return any(one is not None and one.core.settled for one in active)

    async def kill(self, name: str) -> None:
        """The process is gone, and so is its lease."""
        self.cluster.consumers[name].crash()
        await self.cluster.store.revoke((await self.cluster.state()).consumers[name].lease)

    def acked(self) -> list[list[tuple[int, str]]]:
        """By router: the partition and the handoff of every ack, in order of partitions. A repeated ack, as of a router
        that hears of a freeze anew while it acks it, is idempotent and no other cutover."""
        return [sorted({(ack.tp.partition, ack.handoff_id) for ack in router.acked}) for router in self.routers]


@pytest.fixture(params=["sticky_balanced", "jump_hash"])
async def group(any_cluster: Cluster, request: pytest.FixtureRequest) -> Group:
    await any_cluster.set_options(strategy=request.param)
    return Group(any_cluster)


# --- joining -------------------------------------------------------------------------------------------------------


async def test_one_consumer_gets_every_partition(group: Group) -> None:
    await group.start()
    await group.cluster.join("a")
    await group.settled("a")
    assert group.acked() == [[], []]


async def test_a_second_consumer_gets_what_it_has_warmed_and_the_first_releases_it_after_the_cutover(
    group: Group,
) -> None:
    await group.start()
    a = await group.cluster.join("a")
    await group.settled("a")
    b = await group.cluster.join("b")
    moved = (await group.settled("a", "b")).owned["b"]
    assert {warm.tp for commands in b.heard for warm in commands.warms} == moved
    assert {release.tp for commands in a.heard for release in commands.releases} == moved
    assert [{partition for partition, _ in acks} for acks in group.acked()] == [{tp.partition for tp in moved}] * 2


async def test_a_move_waits_for_either_router_and_both_make_the_same_cutovers(group: Group) -> None:
    await group.start(r1=True, r2=False)
    prompt, slow = group.routers
    await group.cluster.join("a")
    await group.settled("a")
    b = await group.cluster.join("b")
    await eventually(lambda: bool(slow.frozen) and len(prompt.acked) == len(slow.frozen), within=group.cluster.patience)
    assert not b.owned
    slow.acks_freezes = True
    await slow.ack(*slow.frozen)
    await group.settled("a", "b")
    first, second = group.acked()
    assert first == second


async def test_consumers_that_join_in_quick_succession_all_get_a_share(group: Group) -> None:
    await group.start()
    names = ["p0", "p1", "p2", "p3"]
    for name in names:
        await group.cluster.join(name)
    await group.settled(*names)


async def test_consumers_that_join_while_another_one_warms_are_planned_for_together_and_around_it(
    group: Group,
) -> None:
    """Warming takes longer than the debounce window, in which both of them join."""
    await group.start()
    await group.cluster.join("a")
    await group.settled("a")
    b = await group.cluster.join("b", answers_warm=False)
    first = await group.cluster.until("planned", lambda s: bool(s.incoming["b"]) and s.plan.generation > 1)
    await group.cluster.set_options(debounce=2.0)
    for name in ("c", "d"):
        await group.cluster.join(name, answers_warm=False)
    second = await group.cluster.until(
        "planned again", lambda s: s.plan.generation > first.plan.generation and bool(s.incoming["c"] | s.incoming["d"])
    )
    assert second.plan.generation == first.plan.generation + 1
    for partition in first.incoming["b"]:
        assert second.handoffs[partition].record == first.handoffs[partition].record
    for name in ("b", "c", "d"):
        consumer = group.cluster.consumers[name]
        consumer.answers_warm = True
        if consumer.to_warm:
            await consumer.ready(*consumer.to_warm)
    assert b.ended is None
    await group.settled("a", "b", "c", "d")


async def test_consumers_that_were_there_before_the_service_get_their_shares_when_it_starts(group: Group) -> None:
    await group.cluster.add_topic(partitions=PARTITIONS)
    for name in ("a", "b", "c"):
        await group.cluster.put_consumer(name, lease_ttl=600.0)
    await group.cluster.start_instance()
    await group.route()
    await group.settled("a", "b", "c")


# --- leaving -------------------------------------------------------------------------------------------------------


async def test_the_partitions_of_a_consumer_that_dies_go_to_the_others_under_higher_epochs(group: Group) -> None:
    await group.start()
    for name in ("a", "b", "c"):
        await group.cluster.join(name)
    before = await group.settled("a", "b", "c")
    await group.kill("b")
    after = await group.settled("a", "c")
    for tp in before.owned["b"]:
        assert after.assignments[tp].record.epoch > before.assignments[tp].record.epoch


async def test_a_target_that_dies_while_it_warms_leaves_everything_where_it_was(group: Group) -> None:
    await group.start()
    a = await group.cluster.join("a")
    before = await group.settled("a")
    b = await group.cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    await group.kill("b")
    after = await group.settled("a")
    assert after.assignments.keys() == before.assignments.keys()
    assert not any(commands.releases or commands.unassigned for commands in a.heard)
    assert group.acked() == [[], []]


async def test_the_last_of_three_consumers_ends_with_everything(group: Group) -> None:
    await group.start()
    for name in ("a", "b", "c"):
        await group.cluster.join(name)
    await group.settled("a", "b", "c")
    await group.kill("c")
    await group.settled("a", "b")
    await group.kill("a")
    await group.settled("b")


async def test_a_consumer_that_drains_hands_everything_over_and_each_freeze_is_acked_once(group: Group) -> None:
    await group.start()
    a = await group.cluster.join("a")
    await group.cluster.join("b")
    await group.settled("a", "b")
    before = [set(acks) for acks in group.acked()]
    leaving = (await group.cluster.state()).owned["a"]
    await a.deregister()
    await group.settled("b")
    await a.until("closed after the drain", lambda c: c.ended == "drained")
    for earlier, acks in zip(before, group.acked(), strict=True):
        assert len(set(acks)) == len(acks)
        assert {partition for partition, _ in set(acks) - earlier} == {tp.partition for tp in leaving}


async def test_a_rolling_update_ends_at_the_new_consumers(group: Group) -> None:
    await group.start()
    names = ["old1", "old2", "old3"]
    for name in names:
        await group.cluster.join(name)
    await group.settled(*names)
    for number in (1, 2, 3):
        names.append(f"new{number}")
        await group.cluster.join(names[-1])
        await group.settled(*names)
        leaving = names.pop(0)
        await group.cluster.consumers[leaving].deregister()
        await group.settled(*names)
    assert names == ["new1", "new2", "new3"]


# --- another leader ------------------------------------------------------------------------------------------------


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_the_leader_after_one_that_crashed_moves_nothing_and_plans_for_who_joins(group: Group) -> None:
    await group.cluster.add_topic(partitions=PARTITIONS)
    await group.cluster.start_faulty("first")
    await until_led(group.cluster)
    serving = await group.cluster.start_instance("serving", leads=False)
    group.routers = [await group.cluster.route(name, serving) for name in ("r1", "r2")]
    for name in ("a", "b"):
        await group.cluster.join(name, serving)
    before = await group.settled("a", "b")
    group.cluster.crash_instance("first")
    await group.cluster.start_instance("second")
    patience = 3 * group.cluster.ttl + group.cluster.patience
    after = await group.settled("a", "b", within=patience)
    assert owners(after) == owners(before)
    await group.cluster.join("c", serving)
    await group.settled("a", "b", "c", within=patience)
