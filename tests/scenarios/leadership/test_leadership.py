"""Instances share the leadership of many groups: evenly, patiently, each group on its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from assigner.core.leader_spread import SpreadSettings
from assigner.election import Term
from assigner.errors import Superseded
from assigner.leader.leadership import Leadership, LeadershipSettings
from assigner.model.records import GroupIndex, encode
from assigner.storage.groups import make_known
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.election_cluster import ON_BOTH_STORES, ElectionCluster, Voter, election_cluster

pytestmark = pytest.mark.virtual_time

GROUPS = [f"group-{number}" for number in range(100)]
PATIENT = LeadershipSettings()
HASTY = LeadershipSettings(spread=SpreadSettings(settle=0.5, batch=20, pause=0.2, stagger=0.2))
"""For real time."""
Work = Callable[[Term], Awaitable[None]]


async def forever(_: Term) -> None:
    await anyio.sleep_forever()


class Captain:
    """An instance that leads."""

    def __init__(self, cluster: ElectionCluster, voter: Voter, work: Work, settings: LeadershipSettings) -> None:
        self.voter = voter
        self.working: set[str] = set()
        self.won: list[str] = []
        self.kinds: list[str] = []
        """Of the groups of `won`."""
        self.ended: list[tuple[float, str]] = []
        self._world = cluster
        self._work = work
        self.leadership = Leadership(
            voter.store, cluster.keys, voter.elector, voter.presence, cluster.clock, self._run_term, settings
        )
        self.task = asyncio.create_task(self.leadership.run())

    @property
    def led(self) -> set[str]:
        return set(self.leadership.led)

    async def _run_term(self, term: Term, kind: str) -> None:
        self.kinds.append(kind)
        self.working.add(term.group)
        self.won.append(term.group)
        try:
            await self._work(term)
        finally:
            self.working.discard(term.group)
            self.ended.append((self._world.clock.now(), term.group))

    async def stop(self) -> None:
        await self.leadership.stop()
        await self.voter.elector.close()


class Fleet:
    def __init__(self, cluster: ElectionCluster, settings: LeadershipSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.captains: list[Captain] = []

    async def join(self, name: str, work: Work = forever, settings: LeadershipSettings | None = None) -> Captain:
        captain = Captain(self.cluster, await self.cluster.voter(name), work, settings or self.settings)
        self.captains.append(captain)
        return captain

    async def know(self, *groups: str) -> None:
        for group in groups:
            await make_known(self.cluster.store, self.cluster.keys, group)

    async def holders(self, groups: list[str]) -> Counter[str | None]:
        return Counter([await self.cluster.holder(group) for group in groups])

    async def close(self) -> None:
        for captain in self.captains:
            captain.task.cancel()
        await asyncio.gather(*(captain.task for captain in self.captains), return_exceptions=True)


@pytest.fixture(params=ON_BOTH_STORES)
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    async with election_cluster(request.param, request) as cluster:
        fleet = Fleet(cluster, PATIENT if request.param == "memory" else HASTY)
        yield fleet
        await fleet.close()


@pytest.fixture
async def memory_fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    async with election_cluster("memory", request) as cluster:
        fleet = Fleet(cluster, PATIENT)
        yield fleet
        await fleet.close()


# --- sharing -----------------------------------------------------------------------------------------------------


async def test_a_hundred_groups_over_three_instances_started_one_by_one_end_with_25_to_42_each(
    fleet: Fleet,
) -> None:
    await fleet.know(*GROUPS)
    first = await fleet.join("assigner-0")
    await eventually(lambda: len(first.led) == 100, within=30 + fleet.cluster.allowance)
    second = await fleet.join("assigner-1")
    await eventually(lambda: len(second.led) >= 45, within=60 + fleet.cluster.allowance)
    third = await fleet.join("assigner-2")
    crew = [first, second, third]

    def are_even() -> bool:
        # Each instance counts what it sees as misplaced, and may not have seen the third one yet.
        return (
            all(captain.leadership.statistics().misplaced == 0 for captain in crew)
            and all(captain.led == captain.working for captain in crew)
            and all(25 <= len(captain.led) <= 42 for captain in crew)
            and sum(len(captain.led) for captain in crew) == 100
        )

    async def have_holders() -> bool:
        return (await fleet.holders(GROUPS))[None] == 0

    await eventually(are_even, within=90 + fleet.cluster.allowance)
    await eventually(have_holders, within=30 + fleet.cluster.allowance)

    await third.stop()
    await eventually(lambda: first.led | second.led == set(GROUPS), within=30 + fleet.cluster.allowance)
    await eventually(
        lambda: (
            all(captain.leadership.statistics().misplaced == 0 for captain in crew[:2])
            and first.led | second.led == set(GROUPS)
        ),
        within=90 + fleet.cluster.allowance,
    )
    await eventually(have_holders, within=30 + fleet.cluster.allowance)


async def test_the_groups_of_a_dead_instance_go_to_their_homes_without_a_second_move(memory_fleet: Fleet) -> None:
    await memory_fleet.know(*GROUPS)
    crew = [await memory_fleet.join(f"assigner-{number}") for number in range(3)]
    await eventually(lambda: Counter(map(bool, [captain.led for captain in crew]))[True] == 3, within=60)
    await anyio.sleep(60)
    survivors, dead = crew[:2], crew[2]
    orphans, before = dead.led, {captain: len(captain.won) for captain in survivors}
    dead.voter.store.freeze()
    await eventually(lambda: survivors[0].led | survivors[1].led == set(GROUPS), within=memory_fleet.cluster.ttl + 2)
    await anyio.sleep(60)
    taken = sum(len(captain.won) - before[captain] for captain in survivors)
    # The bounded load moves a few groups between the survivors; no orphan goes the wrong way first.
    assert len(orphans) <= taken <= len(orphans) + 6


async def test_handover_waits_until_the_instances_are_stable_and_moves_a_few_groups_at_a_time(
    memory_fleet: Fleet,
) -> None:
    await memory_fleet.know(*GROUPS)
    first = await memory_fleet.join("assigner-0")
    await eventually(lambda: len(first.led) == 100)
    await anyio.sleep(30)
    second = await memory_fleet.join("assigner-1")
    joined = memory_fleet.cluster.clock.now()
    await anyio.sleep(9.9)
    assert first.ended == []
    await eventually(lambda: len(second.led) >= 45, within=60)
    given_up = [when - joined for when, _ in first.ended]
    assert min(given_up) >= 10.0
    assert max(Counter(map(int, given_up)).values()) <= 2 * 5
    assert len(given_up) / (max(given_up) - min(given_up) + 1) <= 5.5


async def test_a_group_handed_over_is_without_a_leader_only_for_a_moment(memory_fleet: Fleet) -> None:
    cluster = memory_fleet.cluster
    await memory_fleet.know(*GROUPS[:20])
    first = await memory_fleet.join("assigner-0")
    await eventually(lambda: len(first.led) == 20)
    second = await memory_fleet.join("assigner-1")
    gaps: Counter[bool] = Counter()
    while cluster.clock.now() < 1000 + 60:
        gaps[len(first.led | second.led) == 20] += 1
        await anyio.sleep(0.1)
    assert second.led
    assert gaps[False] <= 2


async def test_nothing_is_handed_to_a_draining_instance(memory_fleet: Fleet) -> None:
    await memory_fleet.know(*GROUPS)
    first = await memory_fleet.join("assigner-0")
    await eventually(lambda: len(first.led) == 100)
    leaving = await memory_fleet.cluster.voter("assigner-1")
    await leaving.elector.drain()
    await anyio.sleep(60)
    assert len(first.led) == 100
    assert first.ended == []


async def test_a_group_whose_preferred_leader_does_not_take_it_returns_and_is_offered_ever_more_rarely(
    memory_fleet: Fleet,
) -> None:
    await memory_fleet.know(*GROUPS[:10])
    first = await memory_fleet.join("assigner-0")
    await eventually(lambda: len(first.led) == 10)
    # Present and renewing, but it campaigns for nothing.
    await memory_fleet.cluster.voter("assigner-1")
    await anyio.sleep(600)
    assert len(first.led) == 10
    offers = Counter(group for _, group in first.ended)
    assert offers
    assert max(offers.values()) == 4


async def test_a_new_group_is_led_and_the_term_of_a_deleted_one_ends(fleet: Fleet) -> None:
    captain = await fleet.join("assigner-0")
    await fleet.know("orders", "payments")
    await eventually(lambda: captain.working == {"orders", "payments"}, within=10 + fleet.cluster.allowance)
    await fleet.cluster.store.delete(fleet.cluster.keys.group_index("orders"))
    # The work stops first; a term is led until its leader key is gone.
    await eventually(lambda: captain.led == {"payments"}, within=10 + fleet.cluster.allowance)
    assert captain.working == {"payments"}
    assert await fleet.cluster.holder("orders") is None


async def test_groups_of_another_kind_are_left_alone(memory_fleet: Fleet) -> None:
    await make_known(memory_fleet.cluster.store, memory_fleet.cluster.keys, "theirs", "kafka")
    await memory_fleet.know("ours")
    captain = await memory_fleet.join("assigner-0")
    await eventually(lambda: captain.led == {"ours"})


async def test_a_group_that_is_of_another_kind_now_is_led_in_another_term(fleet: Fleet) -> None:
    await fleet.know("orders")
    captain = await fleet.join("assigner-0")
    await eventually(lambda: captain.kinds == ["assigner"], within=10 + fleet.cluster.allowance)
    classic = encode(GroupIndex(group="orders", kind="classic"))
    await fleet.cluster.store.put(fleet.cluster.keys.group_index("orders"), classic)
    await eventually(lambda: captain.kinds == ["assigner", "classic"], within=10 + fleet.cluster.allowance)
    assert captain.leadership.statistics().crashes == 0


# --- trouble -----------------------------------------------------------------------------------------------------


async def test_work_that_fails_ends_the_term_of_its_group_alone_and_is_tried_again_later(memory_fleet: Fleet) -> None:
    fails = 3

    async def work(term: Term) -> None:
        nonlocal fails
        if term.group == "bad" and fails:
            fails -= 1
            raise RuntimeError("on purpose")
        await anyio.sleep_forever()

    await memory_fleet.know("bad", "good")
    captain = await memory_fleet.join("assigner-0", work)
    await eventually(lambda: captain.working == {"bad", "good"}, within=30)
    assert Counter(captain.won) == {"bad": 4, "good": 1}
    assert captain.leadership.statistics().crashes == 3


async def test_work_that_fails_on_one_instance_goes_on_at_another(memory_fleet: Fleet) -> None:
    async def fail(_: Term) -> None:
        raise RuntimeError("on purpose")

    await memory_fleet.know("orders")
    await memory_fleet.join("assigner-0", fail)
    await anyio.sleep(1)
    healthy = await memory_fleet.join("assigner-1")
    await eventually(lambda: healthy.working == {"orders"}, within=30)


async def test_work_that_ends_by_itself_gives_the_group_up(memory_fleet: Fleet) -> None:
    async def brief(_: Term) -> None:
        return

    await memory_fleet.know("orders")
    captain = await memory_fleet.join("assigner-0", brief)
    await eventually(lambda: len(captain.won) >= 2, within=30)


async def test_a_lost_term_stops_its_work_and_the_group_is_led_again(fleet: Fleet) -> None:
    await fleet.know("orders", "payments")
    captain = await fleet.join("assigner-0")
    await eventually(lambda: captain.working == {"orders", "payments"}, within=10 + fleet.cluster.allowance)
    old = captain.leadership.led["orders"]
    await fleet.cluster.store.delete(old.fence.key)
    await eventually(lambda: [group for _, group in captain.ended] == ["orders"], within=10 + fleet.cluster.allowance)
    await eventually(lambda: captain.working == {"orders", "payments"}, within=10 + fleet.cluster.allowance)
    assert captain.leadership.led["orders"].revision > old.revision
    assert captain.leadership.statistics().terms_lost == 1


async def test_after_an_outage_of_the_store_every_group_is_led_again(memory_fleet: Fleet) -> None:
    await memory_fleet.know(*GROUPS[:10])
    captain = await memory_fleet.join("assigner-0")
    await eventually(lambda: len(captain.working) == 10)
    captain.voter.store.freeze()
    captain.voter.store.end_watches()
    await eventually(lambda: not captain.working, within=11)
    await anyio.sleep(120)
    captain.voter.store.thaw()
    await eventually(lambda: len(captain.working) == 10, within=20)


async def test_an_instance_that_starts_while_the_store_refuses_leads_once_it_answers(memory_fleet: Fleet) -> None:
    await memory_fleet.know("orders")
    captain = await memory_fleet.join("assigner-0")
    fault = captain.voter.store.inject(Refuse(), kinds=["list", "get", "transact"], times=None)
    await anyio.sleep(60)
    assert not captain.led
    fault.remove()
    await eventually(lambda: captain.working == {"orders"})


async def test_an_instance_whose_name_was_taken_over_stops_leading_and_ends(fleet: Fleet) -> None:
    await fleet.know("orders")
    older = await fleet.join("same")
    await eventually(lambda: older.working == {"orders"}, within=10 + fleet.cluster.allowance)
    newer = await fleet.join("same")
    with pytest.raises(Superseded, match="a name of its own"):
        await asyncio.wait_for(older.task, fleet.cluster.ttl)
    assert not older.working
    await eventually(lambda: newer.working == {"orders"}, within=10 + fleet.cluster.allowance)


# --- stopping ----------------------------------------------------------------------------------------------------


async def test_stopping_abdicates_so_that_the_others_lead_within_a_second(fleet: Fleet) -> None:
    await fleet.know(*GROUPS[:20])
    first = await fleet.join("assigner-0")
    await eventually(lambda: len(first.working) == 20, within=10 + fleet.cluster.allowance)
    second = await fleet.join("assigner-1")
    await eventually(lambda: len(second.leadership.groups) == 20, within=10 + fleet.cluster.allowance)
    elections = second.voter.elector.statistics
    await eventually(lambda: elections().campaigning + elections().led == 20, within=10 + fleet.cluster.allowance)
    await first.leadership.stop()
    assert not first.working
    assert first.task.done()
    await eventually(lambda: len(second.working) == 20, within=1 + fleet.cluster.allowance)


async def test_stopping_is_bounded_while_the_store_hangs(memory_fleet: Fleet) -> None:
    await memory_fleet.know(*GROUPS[:5])
    captain = await memory_fleet.join("assigner-0")
    await eventually(lambda: len(captain.working) == 5)
    captain.voter.store.freeze()
    began = memory_fleet.cluster.clock.now()
    await captain.stop()
    assert memory_fleet.cluster.clock.now() - began <= 21
    assert captain.task.done()


async def test_work_that_does_not_stop_in_time_does_not_keep_its_group(memory_fleet: Fleet) -> None:
    async def stubborn(_: Term) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(100)

    await memory_fleet.know("orders")
    first = await memory_fleet.join("assigner-0", stubborn)
    await eventually(lambda: first.working == {"orders"})
    second = await memory_fleet.join("assigner-1")
    began = memory_fleet.cluster.clock.now()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.leadership.stop)
        await eventually(lambda: second.working == {"orders"}, within=8)
    assert memory_fleet.cluster.clock.now() - began <= 17


# --- cost --------------------------------------------------------------------------------------------------------


async def test_a_thousand_idle_groups_cost_an_instance_nothing_but_its_renewals(memory_fleet: Fleet) -> None:
    await memory_fleet.know(*[f"group-{number}" for number in range(1000)])
    crew = [await memory_fleet.join(f"assigner-{number}") for number in range(2)]
    await eventually(lambda: sum(len(captain.led) for captain in crew) == 1000, within=60)
    await eventually(
        lambda: all(captain.leadership.statistics().misplaced == 0 for captain in crew), within=600, every=1
    )
    await anyio.sleep(5)
    for captain in crew:
        captain.voter.counted.reset()
    await anyio.sleep(3600)
    for captain in crew:
        assert set(captain.voter.counted.requests) == {"keep_alive"}
        assert captain.voter.counted.requests["keep_alive"] <= 3600 / 5 + 1
