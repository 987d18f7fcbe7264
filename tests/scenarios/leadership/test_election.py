"""One leader per group, by a key on the instance's lease: won, held, lost, resigned, taken over."""

from __future__ import annotations

import anyio
import pytest

from assigner.clock import LoopClock
from assigner.errors import FailedPrecondition
from assigner.model.records import LeaderRecord, encode
from assigner.testing.faults import Delay, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES
from tests.support.election_cluster import Campaign, ElectionCluster, is_free, taking, write_fenced

pytestmark = pytest.mark.virtual_time


class OddClock(LoopClock):
    """The loop's clock, plus what a suspended machine would add to it."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def now(self) -> float:
        return super().now() + self.slept


# --- winning and waiting -----------------------------------------------------------------------------------------


async def test_the_first_campaigner_leads_and_its_key_has_its_address(votes: ElectionCluster) -> None:
    first = await votes.voter("first")
    term = await first.elector.campaign("orders")
    assert term.held()
    leader = await first.elector.leader("orders")
    assert leader is not None
    assert (leader.holder, leader.address, leader.revision) == ("first", "first:50051", term.revision)


async def test_groups_are_led_independently_on_one_lease(votes: ElectionCluster) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    for group in ("a", "b"):
        await first.elector.campaign(group)
    await second.elector.campaign("c")
    assert [await votes.holder(group) for group in "abc"] == ["first", "first", "second"]
    assert await votes.leader_lease("a") == await votes.leader_lease("b") != await votes.leader_lease("c")
    assert first.counted.requests["grant"] == 1


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_standby_waits_on_the_leader_key_and_writes_nothing(votes: ElectionCluster, campaign: Campaign) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    term = await first.elector.campaign("orders")
    standby = await campaign(second, "orders")
    await standby.watches()
    second.counted.reset()
    await anyio.sleep(votes.ttl * 1.5)
    assert standby.term is None
    assert set(second.counted.requests) <= {"keep_alive"}
    await term.resign()
    assert (await standby.won()).revision > term.revision


async def test_resigning_hands_over_at_once(votes: ElectionCluster, campaign: Campaign) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    term = await first.elector.campaign("orders")
    standby = await campaign(second, "orders")
    await term.resign()
    assert not term.held()
    assert await term.wait_lost() == "resigned"
    await standby.won()
    assert await votes.holder("orders") == "second"


async def test_a_leader_that_goes_between_the_read_and_the_watch_is_still_noticed(
    votes: ElectionCluster, campaign: Campaign
) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    term = await first.elector.campaign("orders")
    second.store.inject(Delay(0.3), kinds=["watch"], where=lambda _, prefix: prefix.endswith("leader"))
    standby = await campaign(second, "orders")
    await term.resign()
    await standby.won()


async def test_a_standby_with_a_severed_watch_still_takes_an_open_election(
    votes: ElectionCluster, campaign: Campaign
) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    term = await first.elector.campaign("orders")
    standby = await campaign(second, "orders")
    await standby.watches()
    before = second.counted.requests["watch"]
    ended = second.store.end_watches()
    await eventually(lambda: second.counted.requests["watch"] == before + ended, within=10 + votes.allowance)
    second.store.compact_watches(1)
    await term.resign()
    await standby.won()


async def test_a_severed_watch_makes_the_standby_read_not_write(votes: ElectionCluster, campaign: Campaign) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    await first.elector.campaign("orders")
    await (await campaign(second, "orders")).watches()
    second.counted.reset()
    second.store.end_watches()
    await eventually(lambda: second.counted.requests["watch"] >= 2, within=10 + votes.allowance)
    assert second.counted.requests["transact"] == 0


async def test_a_foreign_or_unreadable_leader_record_counts_as_held_until_it_is_gone(
    votes: ElectionCluster, campaign: Campaign
) -> None:
    key = votes.keys.group("orders").leader
    await votes.store.put(key, b"\xff not json")
    voter = await votes.voter("only")
    candidate = await campaign(voter, "orders")
    await votes.store.put(key, b'{"holder": "upstream", "lease_id": 1}')
    await anyio.sleep(0.3)
    assert candidate.term is None
    await votes.store.delete(key)
    await candidate.won()


async def test_giving_way_comes_before_taking_each_time_the_group_is_free(votes: ElectionCluster) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    term = await first.elector.campaign("orders")
    asked: list[bool] = []
    go = anyio.Event()

    async def stagger() -> None:
        asked.append(await is_free(votes, "orders"))
        await go.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: second.elector.campaign("orders", stagger=stagger))
        await anyio.sleep(0.1)
        assert asked == []
        await term.resign()
        await eventually(lambda: asked == [True], within=10 + votes.allowance)
        again = await first.elector.campaign("orders")
        before = second.counted.requests["watch"]
        go.set()
        # Its try has failed, and it waits again.
        await eventually(lambda: second.counted.requests["watch"] > before, within=10 + votes.allowance)
        assert await votes.holder("orders") == "first"
        await again.resign()
        await eventually(lambda: asked == [True, True], within=10 + votes.allowance)
        tasks.cancel_scope.cancel()


async def test_campaigning_twice_for_a_group_is_refused(memory: ElectionCluster, campaign: Campaign) -> None:
    first, second = await memory.voter("first"), await memory.voter("second")
    await first.elector.campaign("orders")
    with pytest.raises(FailedPrecondition, match="already leads"):
        await first.elector.campaign("orders")
    await campaign(second, "orders")
    with pytest.raises(FailedPrecondition, match="already campaigns"):
        await second.elector.campaign("orders")


# --- losing ------------------------------------------------------------------------------------------------------


async def test_a_lease_revoked_by_an_operator_is_noticed_and_the_group_campaigned_for_again(
    votes: ElectionCluster,
) -> None:
    first = await votes.voter("first")
    terms = [await first.elector.campaign(group) for group in ("a", "b")]
    await votes.store.revoke(await votes.leader_lease("a"))
    with anyio.fail_after(votes.ttl):
        assert ["gone" in await term.wait_lost() or "deleted" in await term.wait_lost() for term in terms]
    assert not any(term.held() for term in terms)
    again = await first.elector.campaign("a")
    assert again.held()
    assert again.revision > terms[0].revision


async def test_an_election_goes_on_through_repeated_endings_of_terms(votes: ElectionCluster) -> None:
    first = await votes.voter("first")
    revisions = []
    for _ in range(3):
        term = await first.elector.campaign("orders")
        revisions.append(term.revision)
        await votes.store.revoke(await votes.leader_lease("orders"))
        with anyio.fail_after(votes.ttl):
            await term.wait_lost()
    assert revisions == sorted(set(revisions))


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_a_connection_blip_ends_no_term(votes: ElectionCluster) -> None:
    first = await votes.voter("first")
    term = await first.elector.campaign("orders")
    blip = first.store.inject(Refuse(), kinds=["keep_alive"], times=2)
    first.store.end_watches()
    # Which takes twice the TTL.
    await eventually(lambda: first.counted.requests["keep_alive"] >= 6, within=votes.ttl * 3 + votes.allowance)
    assert blip.hits == 2
    assert term.held()


async def test_a_term_is_over_at_two_thirds_of_the_ttl_after_the_last_confirmed_renewal_was_sent(
    memory: ElectionCluster,
) -> None:
    first = await memory.voter("first")
    term = await first.elector.campaign("orders")
    await eventually(lambda: first.counted.requests["keep_alive"] == 1, every=0.001)
    sent = memory.clock.now()
    first.store.freeze()
    await term.wait_lost()
    assert memory.clock.now() - sent == pytest.approx(10.0, abs=0.05)


async def test_a_renewal_answered_late_counts_from_when_it_was_sent(memory: ElectionCluster) -> None:
    first = await memory.voter("first")
    granted = memory.clock.now()
    term = await first.elector.campaign("orders")
    first.store.inject(Delay(2.0), kinds=["keep_alive"], times=1)
    first.store.inject(Refuse(), kinds=["keep_alive"], times=None)
    await term.wait_lost()
    assert memory.clock.now() - granted == pytest.approx(5.0 + 10.0, abs=0.1)


async def test_a_term_is_over_by_the_clock_even_while_the_renewing_task_is_stalled(memory: ElectionCluster) -> None:
    clock = OddClock()
    first = await memory.voter("first", clock=clock)
    term = await first.elector.campaign("orders")
    clock.slept += 9.9
    assert term.held()
    clock.slept += 0.1
    # No task ran in between: only the clock was asked.
    assert not term.held()
    clock.slept -= 5.0
    assert not term.held()


async def test_a_renewal_confirmed_after_the_deadline_does_not_revive_a_term(memory: ElectionCluster) -> None:
    clock = OddClock()
    first = await memory.voter("first", clock=clock)
    term = await first.elector.campaign("orders")
    first.store.inject(Delay(1.0), kinds=["keep_alive"], times=1)
    await anyio.sleep(5.5)
    # The machine sleeps while the renewal is under way; its answer is a success.
    clock.slept += 20.0
    assert "no renewal" in await term.wait_lost()
    assert not term.held()


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_losing_the_lease_ends_all_terms_and_the_instance_leads_again_on_a_new_one(
    votes: ElectionCluster,
) -> None:
    first = await votes.voter("first")
    terms = [await first.elector.campaign(group) for group in ("a", "b", "c")]
    lease = await votes.leader_lease("a")
    cut = first.store.inject(Refuse(), kinds=["keep_alive"], times=None)
    for term in terms:
        await term.wait_lost()
    cut.remove()
    for group in ("a", "b", "c"):
        with anyio.fail_after(votes.ttl * 2 + votes.allowance):
            assert (await first.elector.campaign(group)).held()
    assert await votes.leader_lease("a") != lease
    assert first.elector.statistics().lease.granted == 2


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_sustained_outage_lets_another_instance_lead_after_the_ttl(votes: ElectionCluster) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    term = await first.elector.campaign("orders")
    held_when_another_won: list[bool] = []

    async def stand_by() -> None:
        await second.elector.campaign("orders")
        held_when_another_won.append(term.held())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stand_by)
        await anyio.sleep(0.05)
        first.store.freeze()
        await term.wait_lost()
        await eventually(lambda: bool(held_when_another_won), within=votes.ttl * 2 + votes.allowance)
    assert held_when_another_won == [False]
    assert not await write_fenced(votes, term, b"stale")


async def test_a_frozen_holders_fenced_write_fails_after_another_won(votes: ElectionCluster) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    old = await first.elector.campaign("orders")
    assert await write_fenced(votes, old, b"one")
    await votes.store.revoke(await votes.leader_lease("orders"))
    new = await second.elector.campaign("orders")
    assert not await write_fenced(votes, old, b"two")
    assert await write_fenced(votes, new, b"three")


@pytest.mark.parametrize("replace", [False, True])
async def test_a_leader_key_deleted_or_replaced_by_an_operator_ends_the_term(
    votes: ElectionCluster, replace: bool
) -> None:
    first = await votes.voter("first")
    other = await first.elector.campaign("other")
    term = await first.elector.campaign("orders")
    if replace:
        await votes.store.put(term.fence.key, encode(LeaderRecord(holder="operator")))
    else:
        await votes.store.delete(term.fence.key)
    with anyio.fail_after(2 + votes.allowance):
        assert ("replaced" if replace else "deleted") in await term.wait_lost()
    assert other.held()


async def test_a_leader_key_deleted_while_its_watch_was_severed_ends_the_term(votes: ElectionCluster) -> None:
    first = await votes.voter("first")
    term = await first.elector.campaign("orders")
    first.store.inject(Refuse(), kinds=["watch"], times=1, where=lambda _, prefix: prefix == term.fence.key)
    first.store.end_watches()
    await votes.store.delete(term.fence.key)
    with anyio.fail_after(2 + votes.allowance):
        assert "deleted" in await term.wait_lost()


# --- doubtful outcomes -------------------------------------------------------------------------------------------


async def test_a_win_whose_response_was_lost_is_recognised(votes: ElectionCluster) -> None:
    first = await votes.voter("first")
    first.store.inject(LoseAnswer(applied=True), kinds=["transact"], where=taking)
    term = await first.elector.campaign("orders")
    assert term.held()
    assert await write_fenced(votes, term, b"mine")


async def test_a_win_whose_response_was_lost_and_that_never_happened_is_tried_again(votes: ElectionCluster) -> None:
    first = await votes.voter("first")
    first.store.inject(LoseAnswer(applied=False), kinds=["transact"], where=taking)
    assert (await first.elector.campaign("orders")).held()


async def test_a_win_that_takes_effect_after_it_was_abandoned_is_adopted(
    votes: ElectionCluster, campaign: Campaign
) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    await first.elector.campaign("known")
    other = await second.elector.campaign("orders")
    candidate = await campaign(first, "orders")
    await candidate.watches()
    lease = await votes.leader_lease("known")
    late = encode(LeaderRecord(holder="first", lease_id=lease, address="first:50051"))
    key = votes.keys.group("orders").leader
    # The operator's view of a transaction that sat in a queue: our key appears while we wait for it to go. A win in
    # between would be another one, which the late one then takes away.
    first.store.inject(Refuse(), kinds=["transact"], where=taking, times=None)
    await votes.store.delete(key)
    await votes.store.put(key, late, lease=lease)
    first.store.heal()
    assert (await candidate.won()).held()
    assert not other.held() or "deleted" in await other.wait_lost()


async def test_a_leftover_of_an_earlier_term_is_replaced_so_that_its_fence_is_worth_nothing(
    votes: ElectionCluster,
) -> None:
    first = await votes.voter("first")
    old = await first.elector.campaign("orders")
    fault = first.store.inject(Refuse(), kinds=["transact"], times=None)
    await old.resign()
    assert not await is_free(votes, "orders")
    fault.remove()
    new = await first.elector.campaign("orders")
    assert new.revision > old.revision
    assert not await write_fenced(votes, old, b"late")
    assert await write_fenced(votes, new, b"new")


async def test_a_cancelled_campaign_leaves_nothing_behind(votes: ElectionCluster, campaign: Campaign) -> None:
    first = await votes.voter("first")
    late = first.store.inject(Delay(0.5), kinds=["transact"], where=taking)
    candidate = await campaign(first, "orders")
    await eventually(lambda: late.hits == 1, within=10 + votes.allowance)
    before = first.counted.requests["transact"]
    candidate.scope.cancel()
    await candidate.done.wait()
    # The try comes through, and is taken back.
    await eventually(lambda: first.counted.requests["transact"] == before + 2, within=10 + votes.allowance)
    await eventually(lambda: is_free(votes, "orders"), within=10 + votes.allowance)
    assert (await first.elector.campaign("orders")).held()
