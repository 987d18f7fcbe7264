"""Leaders and candidates whose store is away, who are closed, or whose name is taken over."""

from __future__ import annotations

import anyio
import pytest

from assigner.errors import FailedPrecondition, Superseded
from assigner.model.records import InstanceRecord, decode
from assigner.store import Found, read_all
from assigner.testing.faults import Delay, Refuse
from assigner.testing.waiting import eventually
from tests.support.election_cluster import Campaign, ElectionCluster, is_free, taking, write_fenced

pytestmark = pytest.mark.virtual_time


# --- a store that is away ----------------------------------------------------------------------------------------


async def test_a_campaigner_that_cannot_reach_the_store_keeps_trying(
    votes: ElectionCluster, campaign: Campaign
) -> None:
    first = await votes.voter("first")
    first.store.inject(Refuse(), kinds=["get", "transact"], times=5)
    candidate = await campaign(first, "orders")
    assert candidate.term is None
    await candidate.won(within=60.0)


@pytest.mark.parametrize("held", [False, True])
async def test_a_campaign_stops_promptly_while_the_store_is_dark(
    votes: ElectionCluster, campaign: Campaign, held: bool
) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    if held:
        await first.elector.campaign("orders")
        candidate = await campaign(second, "orders")
        second.store.freeze()
    else:
        second.store.freeze()
        candidate = await campaign(second, "orders")
    began = votes.clock.now()
    candidate.scope.cancel()
    await candidate.done.wait()
    assert votes.clock.now() - began < votes.ttl


async def test_opening_waits_for_a_store_that_is_away_and_stops_on_request(memory: ElectionCluster) -> None:
    voter = await memory.stranger("first")
    voter.store.inject(Refuse(), kinds=["grant"], times=5)
    await voter.open(memory.keys, memory.clock)
    assert (await voter.elector.campaign("orders")).held()
    await voter.elector.close()
    dark = await memory.stranger("dark")
    dark.store.freeze()
    began = memory.clock.now()
    with anyio.move_on_after(20) as scope:
        await dark.open(memory.keys, memory.clock)
    assert scope.cancelled_caught
    assert memory.clock.now() - began == pytest.approx(20)


@pytest.mark.parametrize("hanging", [False, True])
async def test_closing_frees_every_group_and_ends_in_time_even_if_the_store_hangs(
    memory: ElectionCluster, hanging: bool
) -> None:
    voter = await (await memory.stranger("first")).open(memory.keys, memory.clock)
    terms = [await voter.elector.campaign(group) for group in ("a", "b")]
    if hanging:
        voter.store.freeze()
    began = memory.clock.now()
    await voter.elector.close()
    assert memory.clock.now() - began <= 5.1
    assert not any(term.held() for term in terms)
    assert await is_free(memory, "a") is not hanging
    await eventually(lambda: is_free(memory, "b"), within=memory.ttl + 1)
    assert (await read_all(memory.store, memory.keys.instances)).entries == ()
    with pytest.raises(FailedPrecondition, match="closed"):
        await voter.elector.campaign("a")


async def test_closing_ends_waiting_campaigns(votes: ElectionCluster, campaign: Campaign) -> None:
    first, second = await votes.voter("first"), await votes.voter("second")
    await first.elector.campaign("orders")
    candidate = await campaign(second, "orders")
    await second.elector.close()
    await candidate.done.wait()
    assert isinstance(candidate.error, FailedPrecondition)


async def test_closing_ends_a_campaign_in_the_middle_of_its_try(votes: ElectionCluster, campaign: Campaign) -> None:
    first = await votes.voter("first")
    first.store.inject(Delay(1.0), kinds=["transact"], where=taking)
    candidate = await campaign(first, "orders")
    await first.elector.close()
    await candidate.done.wait()
    assert isinstance(candidate.error, FailedPrecondition)
    assert await is_free(votes, "orders")


# --- presence ----------------------------------------------------------------------------------------------------


async def presence_of(votes: ElectionCluster, name: str) -> InstanceRecord | None:
    seen = await votes.store.get(votes.keys.instance(name))
    return decode(InstanceRecord, seen.entry.value)[0] if isinstance(seen, Found) else None


async def test_an_instance_is_present_on_its_lease_and_says_when_it_drains(votes: ElectionCluster) -> None:
    first = await votes.voter("first")
    await first.elector.campaign("orders")
    seen = await votes.store.get(votes.keys.instance("first"))
    assert isinstance(seen, Found)
    assert seen.entry.lease == await votes.leader_lease("orders")
    await first.elector.drain()
    instance = await presence_of(votes, "first")
    assert instance is not None
    assert instance.draining
    assert instance.address == "first:50051"


async def test_a_deleted_presence_is_written_again(votes: ElectionCluster) -> None:
    await votes.voter("first")
    await votes.store.delete(votes.keys.instance("first"))

    async def back() -> bool:
        return await presence_of(votes, "first") is not None

    await eventually(back)


async def test_a_restarted_instance_takes_its_name_over_and_frees_the_groups_it_led(votes: ElectionCluster) -> None:
    crashed = await votes.voter("assigner-0")
    await crashed.elector.campaign("orders")
    crashed.store.freeze()
    began = votes.clock.now()
    restarted = await votes.voter("assigner-0")
    assert (await restarted.elector.campaign("orders")).held()
    assert votes.clock.now() - began < votes.ttl


async def test_an_instance_whose_name_was_taken_over_stops_leading_and_says_why(
    votes: ElectionCluster, campaign: Campaign
) -> None:
    older, other = await votes.voter("same"), await votes.voter("other")
    term = await older.elector.campaign("orders")
    await other.elector.campaign("elsewhere")
    waiting = await campaign(older, "elsewhere")
    newer = await votes.voter("same")
    with anyio.fail_after(votes.ttl):
        await term.wait_lost()
        await waiting.done.wait()
    assert isinstance(waiting.error, Superseded)
    assert "a name of its own" in str(waiting.error)
    with pytest.raises(Superseded):
        await older.elector.campaign("more")
    assert not await write_fenced(votes, term, b"stale")
    assert (await newer.elector.campaign("orders")).held()
