"""A session that registers again may ask for something else: the record says so, and the leader plans anew."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assigner.model.records import GroupOptions, HandoffMode
from tests.support.cluster import BOTH_STORES, Cluster, cluster_on, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


async def register_again(consumer: SteppedConsumer, **changes: Any) -> None:
    assert consumer.instance is not None
    consumer.crash()
    consumer._registration = msgspec.structs.replace(consumer._registration, **changes)
    await consumer.connect(consumer.instance)


async def test_a_capacity_that_changed_changes_the_share(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await any_cluster.join("b")
    await any_cluster.until_counts(a=4, b=4)
    await register_again(a, capacity=3.0)
    await any_cluster.until_counts(a=6, b=2)


async def test_a_rack_that_changed_counts(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2, replica_racks=(("east",), ("west",)))
    await cluster.start_instance()
    a = await cluster.join("a", rack="east")
    b = await cluster.join("b", rack="west")
    await cluster.until("each its own", lambda s: s.owned["a"] == {tp(0)} and not s.handoffs)
    await register_again(a, rack="west")
    await register_again(b, rack="east")
    await cluster.until("each its own", lambda s: s.owned["a"] == {tp(1)} and not s.handoffs)


async def test_what_is_only_kept_and_shown_is_rewritten_and_moves_nothing(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    await any_cluster.start_instance()
    a = await any_cluster.join("a", topics=("t",), pattern="t.*", kind="kafka", client_id="shop", host="10.0.0.1")
    before = await any_cluster.until_counts(a=2)
    record = before.consumers["a"].record
    assert (record.pattern, record.kind, record.client_id, record.host) == ("t.*", "kafka", "shop", "10.0.0.1")
    await register_again(a, pattern="(t|v)", host="10.0.0.2", release_timeout=90.0)
    after = await any_cluster.until_counts(a=2)
    record = after.consumers["a"].record
    assert (record.pattern, record.host, record.release_timeout) == ("(t|v)", "10.0.0.2", 90.0)
    assert after.assignments == before.assignments


# --- no topics at all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(HandoffMode))
@pytest.mark.parametrize("kind", BOTH_STORES)
async def test_a_consumer_that_wants_no_topic_any_more_gives_everything_away(
    kind: str, mode: HandoffMode, request: pytest.FixtureRequest
) -> None:
    options = GroupOptions(debounce=0.1, handoff_mode=mode)
    async with cluster_on(kind, request, options=options) as cluster:
        await cluster.add_topic(partitions=4)
        await cluster.start_instance()
        a = await cluster.join("a", topics=("t",), explicit_topics=True)
        await cluster.join("b", topics=("t",))
        await cluster.until_counts(a=2, b=2)
        await register_again(a, topics=())
        await cluster.until_counts(b=4)
        assert a.ended is None
        await register_again(a, topics=("t",))
        await cluster.until_counts(a=2, b=2)


async def test_what_only_one_wanted_that_wants_nothing_any_more_is_owned_by_nobody(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    await any_cluster.start_instance()
    a = await any_cluster.join("a", topics=("t",), explicit_topics=True)
    await any_cluster.until_counts(a=4)
    await register_again(a, topics=())
    await any_cluster.until("nobody owns it", lambda s: not s.assignments and not s.handoffs)
    await a.until("told", lambda a: not a.owned)


async def test_a_consumer_that_wants_no_topic_is_never_given_any(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    await any_cluster.start_instance()
    idle = await any_cluster.join("idle", explicit_topics=True)
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=4)
    await a.deregister()
    await a.until("drained", lambda a: a.ended == "drained")
    await any_cluster.until("nobody owns it", lambda s: not s.assignments and not s.handoffs and len(s.consumers) == 1)
    assert not any(commands.assigned or commands.warms for commands in idle.heard)
