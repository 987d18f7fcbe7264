"""Standbys: who holds a copy of what is on record, told to the holders, and looked at when a partition moves."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from assigner.api import Registration
from assigner.core.group import GroupState
from assigner.model.records import Assignment, GroupOptions, HandoffMode, Standbys, encode
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, Cluster, tp
from tests.support.faulty_stores import key_of
from tests.support.stepped_consumer import SteppedConsumer

WARMTH = ("warm", "cold")
OPTIONS = GroupOptions(debounce=0.1, standby_count=1)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


def copies(state: GroupState) -> Counter[str]:
    return Counter(name for record in state.standbys.values() for name in record.record.holders)


def is_even(state: GroupState, *names: str) -> bool:
    """Everything is owned and copied once by these, evenly, and nobody copies its own."""
    total = state.partitions()
    owned = {name: len(tps) for name, tps in state.owned.items() if tps}
    share = {name: total // len(names) for name in names}
    apart = all(
        held.record.owner not in state.standbys[tp].record.holders
        for tp, held in state.assignments.items()
        if tp in state.standbys
    )
    return not state.handoffs and owned == share and dict(copies(state)) == share and apart


async def even(cluster: Cluster, *names: str) -> GroupState:
    return await cluster.until(f"even over {names}", lambda s: is_even(s, *names), within=100)


async def told(cluster: Cluster, *consumers: SteppedConsumer) -> None:
    """Wait until each consumer was sent exactly what is on record."""
    records = await cluster.standbys()
    for consumer in consumers:
        wanted = {tp for tp, holders in records.items() if consumer.name in holders}
        await consumer.until(f"told of {len(wanted)}", lambda c, wanted=wanted: c.standbys == wanted)  # type: ignore[misc]


async def three(cluster: Cluster, partitions: int = 12) -> tuple[SteppedConsumer, SteppedConsumer, SteppedConsumer]:
    await cluster.add_topic(partitions=partitions)
    await cluster.start_instance()
    a, b, c = [await cluster.join(name) for name in "abc"]
    await even(cluster, "a", "b", "c")
    return a, b, c


def actives(cluster: Cluster) -> tuple[float, float]:
    """Partitions given to holders of a copy, and to others although there was one."""
    registry = cluster.instances["i1"].metrics.registry
    warm, cold = (registry.get_sample_value(f"assigner_{kind}_actives_total", {"group": "g"}) for kind in WARMTH)
    return warm or 0.0, cold or 0.0


# --- placed and told ---------------------------------------------------------------------------------------------


async def test_standbys_are_placed_evenly_and_sent_to_their_holders(any_cluster: Cluster) -> None:
    consumers = await three(any_cluster)
    await told(any_cluster, *consumers)
    assert all(not consumer.standbys & consumer.owned.keys() for consumer in consumers)


async def test_the_first_message_lists_every_standby(any_cluster: Cluster) -> None:
    a, *_ = await three(any_cluster)
    await told(any_cluster, a)
    standbys, heard = set(a.standbys), len(a.heard)
    a.crash()
    other = await any_cluster.start_instance("i2", leads=False)
    await a.connect(other)
    assert a.heard[heard].full
    assert set(a.heard[heard].standbys_added) == standbys


async def test_a_slow_reader_is_sent_each_standby_once_and_only_the_present_ones(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance(leads=False)
    stream = await instance.members.register(
        Registration(group="g", name="slow", session="s", renews=True), cluster.clock.now
    )
    commands = stream.commands()
    await anext(commands)
    for turn in range(100):
        for number in range(2):
            holders = ("slow",) if (turn + number) % 2 else ("x",)
            record = Standbys(topic="t", partition=number, holders=holders)
            await cluster.store.put(cluster.group.standby(tp(number)), encode(record))
    await eventually(lambda: stream.backlog == 2, what="both are in the outbox")
    mirror = instance.mirrors.get("g")
    assert mirror
    await mirror.wait_for((await cluster.state()).revision)
    update = await anext(commands)
    assert (update.standbys_added, update.standbys_removed) == ((tp(0),), ())
    await stream.leave()


async def test_only_what_changes_is_written(cluster: Cluster) -> None:
    await three(cluster)
    await anyio.sleep(1.5)
    before = (await cluster.state()).revision
    for _ in range(3):
        await cluster.instances["i1"].operations.rebalance("g")
        await anyio.sleep(0.5)
    assert {key_of(event) for event in await cluster.history(before)} == {cluster.group.options}


async def test_a_change_of_leader_rewrites_nothing(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=12)
    await any_cluster.start_instance("i1")
    other = await any_cluster.start_instance("i2", leads=False)
    for name in "abc":
        await any_cluster.join(name, other)
    await even(any_cluster, "a", "b", "c")
    revision = await any_cluster.until_quiet()
    await any_cluster.stop_instance("i1")
    await any_cluster.start_instance("i3")
    await any_cluster.until("another leader", lambda s: bool(s.leader and s.leader.record.holder == "i3"))
    await anyio.sleep(2)
    assert {key_of(event) for event in await any_cluster.history(revision)} == {any_cluster.group.leader}


# --- promoted ----------------------------------------------------------------------------------------------------


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_the_partitions_of_a_dead_owner_go_to_those_that_hold_copies(any_cluster: Cluster) -> None:
    a, b, c = await three(any_cluster)
    await told(any_cluster, b, c)
    records = await any_cluster.standbys()
    lost = set(a.owned)
    heard = {one.name: len(one.heard) for one in (b, c)}
    warm, cold = actives(any_cluster)
    a.crash()
    state = await even(any_cluster, "b", "c")
    for partition in lost:
        assert state.assignments[partition].record.owner in records[partition]
    for one in (b, c):
        dropped = {tp for message in one.heard[heard[one.name] :] for tp in message.standbys_removed}
        assert not dropped & one.owned.keys(), "a copy that was promoted was taken away"
    await told(any_cluster, b, c)
    assert actives(any_cluster) == (warm + len(lost), cold)

    async def in_history() -> bool:
        history = (await any_cluster.instances["i1"].operations.describe("g")).history
        return {tp(move.partition) for move in history[-len(lost) :] if move.warm} == lost

    await eventually(in_history, within=30, what="the moves in the history, each warm")


@pytest.mark.parametrize("mode", HandoffMode)
async def test_a_draining_owners_partitions_are_handed_to_holders_and_marked_warm(
    any_cluster: Cluster, mode: HandoffMode
) -> None:
    await any_cluster.set_options(handoff_mode=mode)
    a, b, c = await three(any_cluster)
    for one in (b, c):
        one.answers_warm = False
    records = await any_cluster.standbys()
    mine = set(a.owned)
    await a.deregister()
    await any_cluster.until("all on their way", lambda s: len(s.handoffs) == 4)
    for partition in mine:
        handoff = await any_cluster.handoff(partition)
        assert handoff
        assert handoff.warm == (handoff.new_owner in records[partition])
        assert handoff.warm
    for one in (b, c):
        await one.until("asked to warm", lambda o: bool(o.to_warm))
        assert all(warm.standby for warm in one.to_warm.values())
        assert one.to_warm.keys() <= one.standbys, "a target lost the copy it starts from"
        one.answers_warm = True
        await one.ready(*one.to_warm)
    await even(any_cluster, "b", "c")
    await told(any_cluster, b, c)


async def test_a_former_owner_is_asked_to_keep_its_copy_as_it_releases(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=12)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=12)
    b = await any_cluster.join("b")
    await even(any_cluster, "a", "b")
    await told(any_cluster, a, b)
    released = [release for message in a.heard for release in message.releases]
    assert len(released) == 6
    assert all(release.standby for release in released)
    assert a.standbys == {release.tp for release in released}


async def test_a_move_that_is_abandoned_leaves_the_target_its_copy(cluster: Cluster) -> None:
    await cluster.set_options(warming_timeout=5.0, balance_backoff=1_000.0)
    a, b, c = await three(cluster)
    await told(cluster, a, b, c)
    stuck = [await cluster.join("d", answers_warm=False)]
    await cluster.until("on their way", lambda s: len(s.handoffs) == 3)
    await cluster.until("given up", lambda s: not s.handoffs)
    state = await cluster.state()
    assert all(len(record.record.holders) >= 1 for record in state.standbys.values())
    for partition, held in state.assignments.items():
        others = set(state.standbys[partition].record.holders) - {held.record.owner}
        assert others, f"{partition} has no copy left"
    assert stuck[0].ended is None


# --- holders come and go -----------------------------------------------------------------------------------------


async def test_a_holder_that_restarts_within_its_ttl_keeps_its_copies(any_cluster: Cluster) -> None:
    _, _, c = await three(any_cluster)
    before = {tp: record.mod_revision for tp, record in (await any_cluster.state()).standbys.items()}
    c.crash()
    again = await any_cluster.join("c", session="another")
    await any_cluster.until(
        "taken over", lambda s: all(s.assignments[p].record.session == "another" for p in s.owned["c"])
    )
    await anyio.sleep(1)
    assert {tp: record.mod_revision for tp, record in (await any_cluster.state()).standbys.items()} == before
    await told(any_cluster, again)
    assert len(again.standbys) == 4


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_the_copies_of_a_dead_holder_are_replaced(any_cluster: Cluster) -> None:
    a, b, c = await three(any_cluster)
    c.crash()
    state = await even(any_cluster, "a", "b")
    assert "c" not in copies(state)
    await told(any_cluster, a, b)


async def test_one_consumer_alone_has_nobody_to_stand_by_for_it(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    b = await cluster.join("b")
    await even(cluster, "a", "b")
    b.crash()
    await cluster.until_counts(100, a=4)
    await cluster.until("no records", lambda s: not s.standbys)
    await a.until("no standbys", lambda c: not c.standbys)


async def test_an_outage_of_the_service_drops_no_copy_if_the_holders_rejoin(cluster: Cluster) -> None:
    consumers = await three(cluster)
    before = await cluster.standbys()
    for one in consumers:
        one.crash()
    await cluster.stop_instance("i1")
    await cluster.until("nobody is registered", lambda s: not s.consumers, within=100)
    await cluster.start_instance("i2")
    revision = (await cluster.state()).revision
    for name in "abc":
        await cluster.join(name, session="new")
        await anyio.sleep(3)
    await anyio.sleep(60)
    assert await cluster.standbys() == before
    touched = {key_of(event) for event in await cluster.history(revision)}
    assert not {key for key in touched if "/standbys/" in key}


async def test_who_stays_away_after_an_outage_loses_its_copies(cluster: Cluster) -> None:
    consumers = await three(cluster)
    for one in consumers:
        one.crash()
    await cluster.stop_instance("i1")
    await cluster.until("nobody is registered", lambda s: not s.consumers, within=100)
    await cluster.start_instance("i2")
    await cluster.join("a", session="new")
    await cluster.join("b", session="new")
    state = await cluster.until("even", lambda s: is_even(s, "a", "b"), within=100)
    assert set(copies(state)) == {"a", "b"}


# --- switched off, shrunk, deleted -------------------------------------------------------------------------------


async def test_a_count_of_zero_removes_every_record_and_notifies_the_holders(any_cluster: Cluster) -> None:
    consumers = await three(any_cluster)
    await told(any_cluster, *consumers)
    await any_cluster.set_options(standby_count=0)
    await any_cluster.until("no records", lambda s: not s.standbys)
    for one in consumers:
        await one.until("no standbys", lambda c: not c.standbys)
        assert len(one.owned) == 4


async def test_a_higher_count_adds_copies_and_takes_none_away(any_cluster: Cluster) -> None:
    await three(any_cluster)
    before = await any_cluster.standbys()
    await any_cluster.set_options(standby_count=2)
    await any_cluster.until("two each", lambda s: copies(s) == {"a": 8, "b": 8, "c": 8})
    after = await any_cluster.standbys()
    assert all(set(before[partition]) < set(after[partition]) for partition in before)


async def test_a_topic_that_shrinks_loses_the_records_of_what_is_gone(any_cluster: Cluster) -> None:
    a, *_ = await three(any_cluster)
    await any_cluster.add_topic(partitions=6)
    state = await even(any_cluster, "a", "b", "c")
    assert set(state.standbys) == {tp(number) for number in range(6)}
    await told(any_cluster, a)


async def test_a_deleted_topic_loses_its_records_and_its_return_brings_new_ones(any_cluster: Cluster) -> None:
    consumers = await three(any_cluster)
    await any_cluster.store.delete(any_cluster.group.topic("t"))
    await any_cluster.until("no records", lambda s: not s.standbys)
    for one in consumers:
        await one.until("no standbys", lambda c: not c.standbys)
    await any_cluster.add_topic(partitions=12)
    await even(any_cluster, "a", "b", "c")
    await told(any_cluster, *consumers)


async def test_a_topic_made_anew_has_its_copies_dropped_and_asked_for_again(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=12, topic_id="first")
    await any_cluster.start_instance()
    consumers = [await any_cluster.join(name) for name in "abc"]
    await even(any_cluster, "a", "b", "c")
    await told(any_cluster, *consumers)
    standbys = {one.name: set(one.standbys) for one in consumers}
    heard = {one.name: len(one.heard) for one in consumers}
    await any_cluster.add_topic(partitions=12, topic_id="second")
    await any_cluster.until(
        "of the new topic",
        lambda s: len(s.standbys) == 12 and all(r.record.topic_id == "second" for r in s.standbys.values()),
    )
    for one in consumers:
        await told(any_cluster, one)
        await one.until(
            "told to drop what it had",
            lambda c: {p for m in c.heard[heard[c.name] :] for p in m.standbys_removed} == standbys[c.name],
        )


async def test_a_topic_whose_config_cannot_be_read_keeps_its_records(cluster: Cluster) -> None:
    await three(cluster)
    before = await cluster.standbys()
    await cluster.store.put(cluster.group.topic("t"), b"no JSON")
    await anyio.sleep(100)
    assert await cluster.standbys() == before


async def test_a_group_that_stays_empty_forgets_its_standbys_with_its_assignments(cluster: Cluster) -> None:
    for one in await three(cluster):
        one.crash()
    await cluster.until("forgotten", lambda s: not (s.assignments or s.standbys), within=200)


async def test_while_a_group_is_paused_its_standbys_stay(cluster: Cluster) -> None:
    await three(cluster)
    before = await cluster.standbys()
    await cluster.set_options(paused=True, standby_count=0)
    await anyio.sleep(100)
    assert await cluster.standbys() == before
    await cluster.set_options(paused=False)
    await cluster.until("no records", lambda s: not s.standbys)


# --- bad records -------------------------------------------------------------------------------------------------


async def test_a_record_that_cannot_be_read_is_left_alone_and_asked_about_no_more_than_once(
    cluster: Cluster,
) -> None:
    key = cluster.group.standby(tp(3))
    await cluster.store.put(key, b"[]")
    await cluster.add_topic(partitions=12)
    instance = await cluster.start_instance()
    for name in "abc":
        await cluster.join(name)
    await cluster.until("the others", lambda s: len(s.standbys) == 11 and not s.handoffs)
    revision = (await cluster.state()).revision
    await anyio.sleep(100)
    assert all("standbys" not in key_of(event) for event in await cluster.history(revision))
    assert any(line.startswith(key) for line in (await instance.operations.describe("g")).unreadable)
    await cluster.store.delete(key)
    await even(cluster, "a", "b", "c")


async def test_a_record_written_by_another_hand_is_set_right(cluster: Cluster) -> None:
    await three(cluster)
    strange = Standbys(topic="t", partition=0, holders=("nobody", "nobody", "a", "b", "c"))
    await cluster.store.put(cluster.group.standby(tp(0)), encode(strange))
    await cluster.instances["i1"].operations.rebalance("g")
    await even(cluster, "a", "b", "c")


async def test_an_owner_named_by_its_own_record_is_sent_nothing(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    instance = await cluster.start_instance(leads=False)
    a = await cluster.join("a", instance)
    await cluster.store.put(cluster.group.standby(tp(0)), encode(Standbys(topic="t", partition=0, holders=("a",))))
    await a.until("standing by", lambda c: c.standbys == {tp(0)})
    owned = Assignment(topic="t", partition=0, owner="a", session=a.session, epoch=1)
    await cluster.store.put(cluster.group.assignment(tp(0)), encode(owned))
    await a.until("the owner", lambda c: tp(0) in c.owned)
    assert not a.heard[-1].standbys_removed
    lost = Assignment(topic="t", partition=0, owner="x", session="x", epoch=2)
    await cluster.store.put(cluster.group.assignment(tp(0)), encode(lost))
    await a.until("standing by again", lambda c: c.standbys == {tp(0)})


# --- cost --------------------------------------------------------------------------------------------------------


async def test_a_group_without_standbys_has_no_record_of_any(cluster: Cluster) -> None:
    await cluster.set_options(standby_count=0)
    await cluster.add_topic(partitions=12)
    await cluster.start_instance()
    a, *_ = [await cluster.join(name) for name in "abc"]
    await cluster.until_counts(a=4, b=4, c=4)
    a.crash()
    await cluster.until_counts(100, b=6, c=6)
    assert not [event for event in await cluster.history() if "/standbys/" in key_of(event)]


async def test_a_failover_to_holders_writes_each_record_once(cluster: Cluster) -> None:
    a, *_ = await three(cluster)
    touched = {p for p, holders in (await cluster.standbys()).items() if p in a.owned or "a" in holders}
    revision = (await cluster.state()).revision
    a.crash()
    await even(cluster, "b", "c")
    written = Counter(key_of(event) for event in await cluster.history(revision) if "/standbys/" in key_of(event))
    assert set(written.values()) == {1}
    assert len(written) <= len(touched)
