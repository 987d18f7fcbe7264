"""A cold consumer has nothing to warm: no Warm is sent, and the leader goes on as if one had been answered."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from assigner.model.keys import HandoffKey
from assigner.model.records import GroupOptions, Handoff, HandoffMode, Standbys, Step, decode, encode
from assigner.store import PutEvent
from tests.support.cluster import BOTH_STORES, Cluster, cluster_on, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
MODES = list(HandoffMode)


def warms(consumer: SteppedConsumer) -> list[object]:
    return [warm for commands in consumer.heard for warm in commands.warms]


async def steps(cluster: Cluster, since: int) -> list[Step]:
    """The steps of all handoffs, in the order in which they were written."""
    puts = [event.entry for event in await cluster.history(since) if isinstance(event, PutEvent)]
    return [decode(Handoff, put.value)[0].at for put in puts if isinstance(cluster.group.parse(put.key), HandoffKey)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", BOTH_STORES)
async def test_a_handoff_to_a_cold_consumer_begins_at_ready(
    kind: str, mode: HandoffMode, request: pytest.FixtureRequest
) -> None:
    options = GroupOptions(debounce=0.1, handoff_mode=mode)
    async with cluster_on(kind, request, options=options) as cluster:
        await cluster.add_topic(partitions=4)
        await cluster.start_instance()
        await cluster.join("a")
        state = await cluster.until_counts(a=4)
        b = await cluster.join("b", cold=True, answers_warm=False)
        await cluster.until_counts(a=2, b=2)
        assert warms(b) == []
        seen = await steps(cluster, state.revision)
        assert seen[0] is Step.READY
        assert not {Step.WARMING, Step.FAILED} & {*seen}


async def test_a_cold_consumer_gets_its_share_at_once_however_few_may_be_warmed_at_a_time(cluster: Cluster) -> None:
    await cluster.set_options(warm_concurrency=1)
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=8)
    await cluster.join("b", cold=True)
    await a.until("asked for its half", lambda a: len(a.to_release) == 4)


async def test_one_that_turns_out_to_be_cold_is_waited_for_no_longer(any_cluster: Cluster) -> None:
    """The same session registers again, while it is asked to warm."""
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    await any_cluster.join("a")
    await any_cluster.until_counts(a=2)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda b: len(b.to_warm) == 1)
    b.crash()
    b.heard.clear()
    b._registration = msgspec.structs.replace(b._registration, cold=True)
    await b.connect(instance)
    await any_cluster.until_counts(a=1, b=1)
    assert warms(b) == []


async def test_what_a_cold_consumer_says_of_a_warm_is_no_failure(cluster: Cluster) -> None:
    """It counts for no quarantine: it was never asked."""
    await cluster.set_options(quarantine_after=1)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", cold=True)
    await a.until("asked to release", lambda a: len(a.to_release) == 1)
    (moving,) = a.to_release
    await b.ready(moving, failure="no")
    await a.release(moving)
    await cluster.until_counts(a=1, b=1)
    assert (await cluster.plan()).quarantined == ()


@pytest.mark.cluster(options=GroupOptions(debounce=0.1, standby_count=1))
async def test_a_cold_consumer_holds_no_copies(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=6)
    await any_cluster.start_instance()
    cold = await any_cluster.join("c", cold=True)
    a = await any_cluster.join("a")
    b = await any_cluster.join("b")
    await any_cluster.until("copies are placed", lambda s: len(s.standbys) == 6 and not s.handoffs)
    holders = {name for names in (await any_cluster.standbys()).values() for name in names}
    assert holders == {"a", "b"}
    assert not cold.standbys
    await a.until("told", lambda a: bool(a.standbys))
    await b.until("told", lambda b: bool(b.standbys))


@pytest.mark.cluster(options=GroupOptions(debounce=0.1, standby_count=1))
async def test_copies_that_a_consumer_had_before_it_was_cold_are_held_by_others(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    for partition in range(4):
        record = Standbys(topic="t", partition=partition, holders=("c",))
        await cluster.store.put(cluster.group.standby(tp(partition)), encode(record))
    await cluster.start_instance()
    await cluster.join("c", cold=True)
    for name in ("a", "b"):
        await cluster.join(name)
    await anyio.sleep(1)
    await cluster.until(
        "others hold them", lambda s: bool(s.standbys) and all("c" not in r.record.holders for r in s.standbys.values())
    )
