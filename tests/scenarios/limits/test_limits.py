"""How much of a plan is under way at a time: so many handoffs in a group, so many warms at a consumer, so much news."""

from __future__ import annotations

from collections import Counter

import pytest

from assigner.core.group import GroupState
from assigner.errors import InvalidInput
from assigner.members import streams
from assigner.model.keys import HandoffKey
from assigner.model.records import Handoff, Step, decode
from assigner.store import DeleteEvent, PutEvent
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time


async def most_at_a_time(cluster: Cluster) -> tuple[int, int]:
    """The most handoffs there were in the group, and the most a single consumer was warming."""
    in_flight: dict[object, Handoff] = {}
    most = most_warms = 0
    for event in await cluster.history():
        key = cluster.group.parse(event.entry.key if isinstance(event, PutEvent) else event.key)
        if not isinstance(key, HandoffKey):
            continue
        if isinstance(event, DeleteEvent):
            in_flight.pop(key.tp, None)
        else:
            in_flight[key.tp] = decode(Handoff, event.entry.value)[0]
        warms = Counter(handoff.new_owner for handoff in in_flight.values() if handoff.at is Step.WARMING)
        most, most_warms = max(most, len(in_flight)), max([most_warms, *warms.values()])
    return most, most_warms


async def test_no_more_handoffs_are_in_flight_than_the_group_allows(any_cluster: Cluster) -> None:
    await any_cluster.set_options(max_concurrent_handoffs=3)
    await any_cluster.add_topic(partitions=24)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    await any_cluster.until_counts(a=24)
    await any_cluster.join("b")
    await any_cluster.until_counts(a=12, b=12)
    assert (await most_at_a_time(any_cluster))[0] == 3


async def test_no_consumer_warms_more_than_the_group_allows(any_cluster: Cluster) -> None:
    await any_cluster.set_options(warm_concurrency=2)
    await any_cluster.add_topic(partitions=24)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    await any_cluster.until_counts(a=24)
    b = await any_cluster.join("b", answers_warm=False)
    await any_cluster.join("c")
    await any_cluster.until("c has its share", lambda state: len(state.owned["c"]) == 8)
    assert len(b.to_warm) == 2
    assert (await most_at_a_time(any_cluster))[1] == 2


async def test_a_change_of_many_partitions_is_sent_in_parts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_AT_ONCE", 5)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.add_topic(partitions=24)

    def told(state: GroupState) -> bool:
        return len(a.owned) == 24

    await cluster.until("everything is sent", told)
    assert max(len(said.assigned) for said in a.heard) == 5


@pytest.mark.parametrize(
    "change", [{"max_concurrent_handoffs": 0}, {"warm_concurrency": 1_000_001}, {"release_timeout": 604_801.0}]
)
async def test_an_option_out_of_range_is_refused(cluster: Cluster, change: dict[str, float]) -> None:
    instance = await cluster.start_instance()
    with pytest.raises(InvalidInput, match="must be"):
        await instance.operations.set_options("g", change, create=True)
