"""Partitions that their owner has to leave and no consumer can take: they are released, in order, to nobody."""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import msgspec
import pytest

from assigner.core.group import GroupState
from assigner.errors import Evicted
from assigner.instance import Instance
from assigner.model.records import GroupOptions, HandoffMode, Step
from assigner.store import Found
from tests.scenarios.limits.test_limits import most_at_a_time
from tests.support.cluster import BOTH_STORES, EXPIRES, Cluster, cluster_on, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
MODES = [HandoffMode.OVERLAP, HandoffMode.EXCLUSIVE]
U = [tp(0, "u"), tp(1, "u")]


async def two_topics(cluster: Cluster) -> Instance:
    await cluster.add_topic("t", partitions=2)
    await cluster.add_topic("u", partitions=2)
    return await cluster.start_instance()


async def only_subscriber(cluster: Cluster, *, answers_release: bool = True) -> tuple[SteppedConsumer, SteppedConsumer]:
    """`a` has all of `u`, which `b` does not want, and its half of `t`."""
    await two_topics(cluster)
    a = await cluster.join("a", topics=("t", "u"))
    await cluster.until_counts(a=4)
    b = await cluster.join("b", topics=("t",))
    await b.until("has t", lambda c: len(c.owned) == 2)
    state = await cluster.until("settled", lambda s: not s.handoffs and len(s.owned["b"]) == 2)
    assert state.owned["a"] == set(U)
    a.answers_release = answers_release
    return a, b


def owned(state: GroupState, tps: Iterable[object] = U) -> list[object]:
    return [tp for tp in tps if tp in state.assignments]


async def until_drained(consumer: SteppedConsumer) -> None:
    await consumer.until("drained", lambda c: c.ended == "drained", within=40.0)


# --- a drain ends ------------------------------------------------------------------------------------------------


async def test_the_only_subscriber_of_a_topic_is_drained_and_asked_to_release_it(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a, _ = await only_subscriber(cluster)
    assert await a.deregister(), "b is there, and ready"
    await until_drained(a)
    released = [release.tp for commands in a.heard for release in commands.releases if not release.new_owner]
    assert sorted(released) == U, "so that work under way ends and is committed"
    state = await cluster.until("released", lambda s: not owned(s) and not s.handoffs)
    highest = state.plan.epoch_floor
    c = await cluster.join("c", topics=("u",))
    await c.until("has u", lambda c: len(c.owned) == 2)
    assert min(c.owned.values()) > highest >= 1


async def test_a_drain_of_the_only_subscriber_ends_in_either_mode(cluster_in_either_mode: Cluster) -> None:
    a, _ = await only_subscriber(cluster_in_either_mode)
    await a.deregister()
    await until_drained(a)
    await cluster_in_either_mode.until_counts(b=2)


async def test_rule_8_a_partition_released_to_nobody_has_its_owner_until_the_ack(
    cluster_in_either_mode: Cluster,
) -> None:
    a, _ = await only_subscriber(cluster_in_either_mode, answers_release=False)
    await a.deregister()
    await a.until("told to release", lambda c: len(c.to_release) == 2)
    c = await cluster_in_either_mode.join("c", topics=("u",))
    await anyio.sleep(5)
    assert not c.owned
    assert owned(await cluster_in_either_mode.state()) == U
    await a.release(*U)
    await until_drained(a)
    await c.until("has u", lambda c: sorted(c.owned) == U)


async def test_an_owner_that_does_not_release_is_evicted(cluster_in_either_mode: Cluster) -> None:
    a, _ = await only_subscriber(cluster_in_either_mode, answers_release=False)
    await a.deregister()
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted), within=90.0)
    await cluster_in_either_mode.until(
        "nobody has it", lambda s: not owned(s) and not s.handoffs, within=4 * cluster_in_either_mode.ttl
    )


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_an_owner_that_dies_while_it_releases_is_waited_for_no_longer_than_its_lease(
    any_cluster: Cluster,
) -> None:
    cluster = any_cluster
    a, _ = await only_subscriber(cluster, answers_release=False)
    await a.deregister()
    await a.until("told to release", lambda c: len(c.to_release) == 2)
    a.crash()
    await cluster.until("nobody has it", lambda s: not owned(s) and not s.handoffs, within=4 * cluster.ttl + 10)
    c = await cluster.join("c", topics=("u",))
    await c.until("has u", lambda c: sorted(c.owned) == U)
    assert min(c.owned.values()) > 1


async def test_a_new_leader_continues_a_release_to_nobody(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a, _ = await only_subscriber(cluster, answers_release=False)
    second = await cluster.start_instance("i2")
    await a.deregister()
    await a.until("told to release", lambda c: len(c.to_release) == 2)
    a.crash()
    await cluster.stop_instance("i1")
    await a.connect(second)
    await a.until("told again", lambda c: len(c.to_release) == 2)
    await a.release(*U)
    await until_drained(a)
    await cluster.until("released", lambda s: not owned(s) and not s.handoffs)


async def test_a_new_process_under_the_name_gets_what_the_old_one_was_releasing(
    cluster_in_either_mode: Cluster,
) -> None:
    a, _ = await only_subscriber(cluster_in_either_mode, answers_release=False)
    await a.deregister()
    await a.until("told to release", lambda c: len(c.to_release) == 2)
    a.crash()
    again = await cluster_in_either_mode.join("a", session="another", topics=("t", "u"))
    await again.until("has u", lambda c: set(U) <= set(c.owned), within=4 * cluster_in_either_mode.ttl)
    state = await cluster_in_either_mode.until("settled", lambda s: not s.handoffs)
    assert set(U) <= state.owned["a"]


async def test_when_all_drain_at_once_all_are_drained(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=8)
    instance = await cluster.start_instance()
    names = ("a", "b", "c")
    consumers = [await cluster.join(name) for name in names]
    await cluster.until("all is owned", lambda s: len(s.assignments) == 8 and not s.handoffs)
    for name in names:
        await instance.operations.drain("g", name)
    for consumer in consumers:
        await until_drained(consumer)
    await cluster.until("nobody is left", lambda s: not s.consumers and not s.handoffs)
    d = await cluster.join("d")
    await d.until("has all", lambda c: len(c.owned) == 8)
    assert min(d.owned.values()) > 1


async def test_an_operator_who_waits_for_a_drain_sees_its_end(cluster_in_either_mode: Cluster) -> None:
    a, b = await only_subscriber(cluster_in_either_mode)
    assert a.instance
    await a.instance.operations.drain("g", "a")
    left = [count async for count in a.instance.operations.drain_progress("g", "a")]
    assert left[-1] == 0
    await until_drained(a)
    assert b.ended is None


async def test_a_consumer_that_warms_when_the_last_taker_leaves_releases_instead(
    cluster_in_either_mode: Cluster,
) -> None:
    """The handoff that was under way loses its target, and no plan names another."""
    await cluster_in_either_mode.add_topic(partitions=1)
    await cluster_in_either_mode.start_instance()
    a = await cluster_in_either_mode.join("a")
    await cluster_in_either_mode.until_counts(a=1)
    b = await cluster_in_either_mode.join("b", answers_warm=False)
    await a.deregister()
    await b.until("warms", lambda c: bool(c.to_warm))
    await b.deregister()
    await until_drained(a)
    await until_drained(b)
    await cluster_in_either_mode.until("nobody has anything", lambda s: not s.assignments and not s.handoffs)


async def test_the_topics_of_a_set_are_released_together(cluster_in_either_mode: Cluster) -> None:
    await cluster_in_either_mode.set_options(copartitioned=(("t", "u"),))
    await two_topics(cluster_in_either_mode)
    await cluster_in_either_mode.add_topic("v", partitions=1)
    a = await cluster_in_either_mode.join("a", topics=("t", "u"))
    await cluster_in_either_mode.join("b", topics=("v",))
    await cluster_in_either_mode.until_counts(a=4, b=1)
    await a.deregister()
    await until_drained(a)
    by_handoff: dict[str, set[str]] = {}
    for commands in a.heard:
        for release in commands.releases:
            by_handoff.setdefault(release.handoff_id, set()).add(release.tp.topic)
    assert sorted(map(sorted, by_handoff.values())) == [["t", "u"], ["t", "u"]]


# --- quarantine --------------------------------------------------------------------------------------------------


async def test_a_partition_that_nobody_could_warm_does_not_keep_its_owner_from_draining(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(quarantine_after=2)
    await cluster.add_topic(partitions=1)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    others = [await cluster.join(name, answers_warm=False) for name in ("b", "c", "d")]
    await a.deregister()
    for _ in range(2):
        await cluster.until("somebody warms", lambda s: any(h.record.at is Step.WARMING for h in s.handoffs.values()))
        await anyio.sleep(0.1)
        (asked,) = [c for c in others if c.to_warm]
        await asked.ready(tp(0), failure="corrupt")
    await until_drained(a)
    state = await cluster.until("quarantined", lambda s: bool(s.plan.quarantined) and not s.handoffs)
    assert not state.assignments, "it is for an operator to try again"
    for other in others:
        other.answers_warm = True
    await instance.operations.rebalance("g")
    await cluster.until("given", lambda s: len(s.assignments) == 1 and not s.plan.quarantined)


async def test_a_quarantined_partition_moves_with_its_owner_leaving_and_not_for_balance(
    cluster_in_either_mode: Cluster,
) -> None:
    await cluster_in_either_mode.set_options(quarantine_after=1)
    await cluster_in_either_mode.add_topic(partitions=2)
    await cluster_in_either_mode.start_instance()
    a = await cluster_in_either_mode.join("a")
    await cluster_in_either_mode.until_counts(a=2)
    b = await cluster_in_either_mode.join("b", answers_warm=False)
    await b.until("warms", lambda c: bool(c.to_warm))
    (bad,) = b.to_warm
    await b.ready(bad, failure="corrupt")
    b.answers_warm = True
    await cluster_in_either_mode.until("quarantined", lambda s: bool(s.plan.quarantined) and not s.handoffs)
    await anyio.sleep(100)
    assert (await cluster_in_either_mode.owners())[bad] == "a", "not for balance"
    await a.deregister()
    await until_drained(a)
    state = await cluster_in_either_mode.until_counts(b=2)
    assert state.plan.quarantined, "where it is now it stays"


async def test_the_one_other_consumer_that_can_not_warm_it_does_not_keep_the_owner_from_draining(
    cluster_in_either_mode: Cluster,
) -> None:
    await cluster_in_either_mode.add_topic(partitions=1)
    await cluster_in_either_mode.start_instance()
    a = await cluster_in_either_mode.join("a")
    await cluster_in_either_mode.until_counts(a=1)
    b = await cluster_in_either_mode.join("b", answers_warm=False)
    await a.deregister()
    await b.until("warms", lambda c: bool(c.to_warm))
    await b.ready(tp(0), failure="no space")
    await until_drained(a)
    await cluster_in_either_mode.until_counts(b=1)


# --- topics that are gone ----------------------------------------------------------------------------------------


async def delete_topic(cluster: Cluster, topic: str) -> None:
    await cluster.store.delete(cluster.group.topic(topic))


async def test_a_deleted_topic_is_taken_from_its_owners_and_keeps_nobody_from_draining(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await two_topics(cluster)
    a = await cluster.join("a")
    await cluster.join("b")
    await cluster.until_counts(a=2, b=2)
    before = (await cluster.state()).assignments
    await delete_topic(cluster, "u")
    await cluster.until("forgotten", lambda s: not owned(s) and not s.handoffs)
    await a.until("told", lambda c: not any(tp.topic == "u" for tp in c.owned))
    await a.deregister()
    await until_drained(a)
    await cluster.add_topic("u", partitions=2)
    state = await cluster.until_counts(b=4)
    assert all(state.assignments[tp].record.epoch > before[tp].record.epoch for tp in U)


@pytest.mark.parametrize("mode", MODES)
async def test_a_topic_that_is_deleted_and_made_again_at_once_has_one_owner_at_a_time(mode: HandoffMode) -> None:
    async with cluster_on("memory", options=GroupOptions(debounce=0.1, handoff_mode=mode)) as cluster:
        await two_topics(cluster)
        a = await cluster.join("a", topics=("u",), answers_release=False)
        await cluster.until_counts(a=2)
        await delete_topic(cluster, "u")
        await anyio.sleep(1)
        await cluster.add_topic("u", partitions=2)
        b = await cluster.join("b", topics=("u",))
        await anyio.sleep(5)
        if mode is HandoffMode.EXCLUSIVE:
            assert not set(a.owned) & set(b.owned)
            assert sorted(a.to_release) == U, "what it was asked to release when the topic went"
            await a.release(*U)
        a.answers_release = True
        state = await cluster.until_counts(a=1, b=1)
        assert all(state.assignments[tp].record.epoch > 1 for tp in U)


async def test_rule_15_a_topic_whose_config_can_not_be_read_is_left_alone_and_a_drain_ends(
    cluster_in_either_mode: Cluster,
) -> None:
    await two_topics(cluster_in_either_mode)
    a = await cluster_in_either_mode.join("a", topics=("u",))
    await cluster_in_either_mode.join("b", topics=("t",))
    await cluster_in_either_mode.until_counts(a=2, b=2)
    await cluster_in_either_mode.store.put(cluster_in_either_mode.group.topic("u"), b"[]")
    await anyio.sleep(60)
    assert owned(await cluster_in_either_mode.state()) == U, "nothing is destroyed on doubt"
    await a.deregister()
    await until_drained(a)
    assert owned(await cluster_in_either_mode.state()) == U
    assert isinstance(await cluster_in_either_mode.store.get(cluster_in_either_mode.group.assignment(U[0])), Found)


async def test_handoffs_of_a_deleted_topic_hold_no_room(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(max_concurrent_handoffs=3)
    await cluster.add_topic("u", partitions=6)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=6)
    b = await cluster.join("b", answers_warm=False)
    await b.until("warms as much as it may", lambda c: len(c.to_warm) == 3)
    await delete_topic(cluster, "u")
    await cluster.add_topic("t", partitions=9)
    b.answers_warm = True
    c = await cluster.join("c")
    await c.until("has its share", lambda c: len(c.owned) == 3)
    await cluster.until_counts(a=3, b=3, c=3)
    assert (await most_at_a_time(cluster))[0] <= 3


async def test_what_is_being_released_takes_up_no_room_either(cluster_in_either_mode: Cluster) -> None:
    await cluster_in_either_mode.set_options(max_concurrent_handoffs=2)
    await cluster_in_either_mode.add_topic("t", partitions=4)
    await cluster_in_either_mode.add_topic("u", partitions=6)
    await cluster_in_either_mode.start_instance()
    a = await cluster_in_either_mode.join("a", topics=("t", "u"), answers_release=False)
    await cluster_in_either_mode.until_counts(a=10)
    await cluster_in_either_mode.join("b", topics=("t",))
    await a.deregister()
    await a.until("told to let u go", lambda c: sum(tp.topic == "u" for tp in c.to_release) == 6)
    t_only = [partition for partition in a.to_release if partition.topic == "t"]
    while t_only:
        await a.release(*t_only)
        await anyio.sleep(2)
        t_only = [partition for partition in a.to_release if partition.topic == "t"]
    await cluster_in_either_mode.until("b has t", lambda s: len(s.owned["b"]) == 4)


async def test_a_group_that_becomes_exclusive_while_a_consumer_drains_goes_on(cluster_in_either_mode: Cluster) -> None:
    a, _ = await only_subscriber(cluster_in_either_mode, answers_release=False)
    await a.deregister()
    await a.until("told to release", lambda c: len(c.to_release) == 2)
    other = next(mode for mode in MODES if mode is not cluster_in_either_mode.options.handoff_mode)
    await cluster_in_either_mode.set_options(handoff_mode=other)
    await anyio.sleep(3)
    await a.release(*U)
    await until_drained(a)
    await cluster_in_either_mode.until_counts(b=2)


# --- subscriptions -----------------------------------------------------------------------------------------------


async def subscribe(consumer: SteppedConsumer, *topics: str) -> None:
    """The same session registers again with these topics."""
    assert consumer.instance
    consumer.crash()
    consumer._registration = msgspec.structs.replace(consumer._registration, topics=topics)
    await consumer.connect(consumer.instance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", BOTH_STORES)
async def test_a_consumer_that_wants_fewer_topics_loses_the_others_although_nobody_else_wants_them(
    kind: str, mode: HandoffMode, request: pytest.FixtureRequest
) -> None:
    options = GroupOptions(debounce=0.1, handoff_mode=mode)
    async with cluster_on(kind, request, options=options) as cluster:
        await two_topics(cluster)
        a = await cluster.join("a", topics=("t", "u"))
        await cluster.until_counts(a=4)
        await subscribe(a, "t")
        state = await cluster.until_counts(a=2)
        assert not owned(state)
        await subscribe(a, "t", "u")
        await cluster.until_counts(a=4)
        await a.until("told, with higher epochs", lambda c: all(c.owned.get(tp, 0) > 1 for tp in U))


async def test_what_a_consumer_no_longer_wants_is_released_before_another_gets_it(
    cluster_in_either_mode: Cluster,
) -> None:
    await two_topics(cluster_in_either_mode)
    a = await cluster_in_either_mode.join("a", topics=("t", "u"), answers_release=False)
    await cluster_in_either_mode.until_counts(a=4)
    await subscribe(a, "t")
    await a.until("told to release", lambda c: sorted(c.to_release) == U)
    b = await cluster_in_either_mode.join("b", topics=("u",))
    await anyio.sleep(5)
    assert not b.owned
    await a.release(*U)
    await b.until("has u", lambda c: sorted(c.owned) == U)
    await cluster_in_either_mode.until_counts(a=2, b=2)


async def test_what_a_consumer_no_longer_wants_goes_to_one_that_does(cluster_in_either_mode: Cluster) -> None:
    await two_topics(cluster_in_either_mode)
    a = await cluster_in_either_mode.join("a", topics=("t", "u"))
    await cluster_in_either_mode.join("b", topics=("t", "u"))
    await cluster_in_either_mode.until_counts(a=2, b=2)
    await subscribe(a, "t")
    state = await cluster_in_either_mode.until("b has u", lambda s: set(U) <= s.owned["b"] and not s.handoffs)
    assert len(state.owned["a"] | state.owned["b"]) == 4


async def test_a_target_that_no_longer_wants_the_topic_is_not_given_it(cluster_in_either_mode: Cluster) -> None:
    await two_topics(cluster_in_either_mode)
    await cluster_in_either_mode.join("a", topics=("t", "u"))
    await cluster_in_either_mode.until_counts(a=4)
    b = await cluster_in_either_mode.join("b", topics=("t", "u"), answers_warm=False)
    await b.until("warms", lambda c: len(c.to_warm) == 2)
    asked = {partition for partition in b.to_warm if partition.topic == "u"}
    assert asked
    b.answers_warm = True
    await subscribe(b, "t")
    state = await cluster_in_either_mode.until_counts(a=2, b=2)
    assert {partition.topic for partition in state.owned["b"]} == {"t"}
    moved = [release.tp for commands in b.heard for release in commands.releases]
    assert not moved, "it was never made the owner of what it does not want"
