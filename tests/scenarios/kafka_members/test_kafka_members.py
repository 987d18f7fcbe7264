"""Kafka 4 members in assigner groups, by hand-made requests: beside other consumers, and alone."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from assigner.auth.identity import principal
from assigner.core.kafka_groups.modern.holds import patience
from assigner.core.kafka_groups.modern.requests import member_name
from assigner.gateway.codec import milliseconds
from assigner.gateway.requests import Interruption
from assigner.model.records import GroupOptions, HandoffMode
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.gateway.modern_members import DESCRIBE, Connection, KafkaMember, Told, commit, fetch


def name_of(member_id: str) -> str:
    return member_name("app", member_id, None)


pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.cluster(options=GroupOptions(debounce=0.1, handoff_mode=HandoffMode.EXCLUSIVE), etcd_ttl=12.0),
]


async def test_the_first_member_is_told_all_partitions_by_the_answer_to_its_join(
    cluster: Cluster, gateways: Any
) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    member = KafkaMember(gateway)

    told = await member.join()
    assert (told.error, told.member_id) == (0, "m1")
    assert told.assignment == frozenset(tp(number) for number in range(4)), "it was held until the plan was there"
    owners = await cluster.owners()
    assert set(owners.values()) == {name_of("m1")}
    assert (await member.ack()).assignment is None


async def test_a_kafka_member_shares_a_group_with_other_consumers(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 6)
    other = await any_cluster.join("grpc")
    await any_cluster.until_counts(grpc=6)

    member = KafkaMember(gateway)
    await member.start()
    await member.has_all(3)
    state = await any_cluster.until_counts(grpc=3, **{name_of("m1"): 3})
    assert state.owned[name_of("m1")] == member.has
    await other.deregister(gates_closed=True)
    await member.has_all(6)


async def test_a_revocation_has_two_steps_and_nobody_has_a_partition_meanwhile(
    any_cluster: Cluster, gateways: Any
) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    first = KafkaMember(gateway, "m1")
    await first.enter(4)
    second = KafkaMember(gateway, "m2")
    joined = await second.join()
    assert joined.assignment == frozenset(), "the other one still has everything"
    assert joined.interval < 1, "it is to come back soon"

    epoch = first.epoch
    told = await first.news()
    assert told.assignment is not None
    assert len(told.assignment) == 2
    assert told.epoch == epoch, "nothing was given"
    taken = {tp(number) for number in range(4)} - told.assignment
    assert await first.commit(dict.fromkeys(taken, 7)) == dict.fromkeys(taken, 0), "before it lets go"
    assert {owner for one, owner in (await any_cluster.owners()).items() if one in taken} == {name_of("m1")}

    await first.ack()
    assert set((await first.commit(dict.fromkeys(taken, 8))).values()) == {113}, "after it has let go"
    await eventually(lambda: _has(second, taken), within=any_cluster.patience)
    assert await second.fetch(*sorted(taken)) == (0, dict.fromkeys(sorted(taken), 7))


@pytest.mark.cluster(options=GroupOptions(debounce=0.1, handoff_mode=HandoffMode.OVERLAP))
async def test_a_kafka_member_stops_before_the_next_owner_begins_in_a_group_of_any_mode(
    any_cluster: Cluster, gateways: Any
) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    await member.enter(4)
    other = await any_cluster.join("grpc")
    told = await member.news()
    assert told.assignment is not None
    taken = {tp(number) for number in range(4)} - told.assignment
    assert len(taken) == 2
    assert await member.commit(dict.fromkeys(taken, 7)) == dict.fromkeys(taken, 0)
    assert not other.owned

    await member.ack()
    await any_cluster.until_counts(**{name_of("m1"): 2, "grpc": 2})
    assert other.owned.keys() == taken


async def _has(member: KafkaMember, wanted: set[Any]) -> bool:
    await member.poll()
    return member.has == wanted


async def test_a_held_answer_comes_as_soon_as_there_is_news(cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    first = KafkaMember(gateway, "m1")
    await first.join()
    await first.ack()
    began = anyio.current_time()
    assert (await first.poll()).assignment is None
    took = anyio.current_time() - began
    assert took == pytest.approx(patience(gateway.parts.interval), abs=0.05), "there was no news"

    second = KafkaMember(gateway, "m2")
    await first.start()
    await anyio.sleep(0.5)
    began = anyio.current_time()
    await second.start()
    await second.has_all(2)
    assert anyio.current_time() - began < 1, "neither waited for an interval"


async def test_another_request_on_the_connection_ends_the_hold(cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    await member.join()
    await member.ack()
    answers: list[Told] = []

    async def beat() -> None:
        answers.append(await member.beat())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        await anyio.sleep(0.3)
        before = list(answers)
        assert member.held is not None
        member.held.interrupt(Interruption.FOLLOWED)
        await anyio.sleep(0.05)
        after = list(answers)
    assert not before
    assert [(one.error, one.assignment) for one in after] == [(0, None)]
    assert after[0].interval <= 1, "it is held again soon"


async def test_a_lost_answer_is_made_good(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    other = await any_cluster.join("grpc")
    member = KafkaMember(gateway)
    await member.start()
    await member.has_all(2)
    member.crash()
    before = member.has
    await other.deregister(gates_closed=True)
    await any_cluster.until_counts(**{name_of("m1"): 4})

    lost = await member.beat()
    assert lost.assignment == frozenset(tp(number) for number in range(4))
    assert lost.epoch > member.epoch
    assert (await member.beat()).error == 110, "it is behind and does not say what it has"
    again = await member.full()
    assert (again.error, again.epoch, again.assignment) == (0, lost.epoch, lost.assignment)
    assert member.has == before


async def test_a_gateway_that_does_not_know_a_member_resumes_it(any_cluster: Cluster, gateways: Any) -> None:
    start = gateways(any_cluster)
    first, second = await start(), await start()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(first)
    await member.enter(4)
    epochs = {one: held.record.epoch for one, held in (await any_cluster.state()).assignments.items()}

    member.reconnect(second)
    told = await member.poll()
    assert (told.error, told.epoch, told.assignment) == (0, member.epoch, member.has), "nothing to call back for"
    assert await member.commit({tp(0): 5}) == {tp(0): 0}
    after = {one: held.record.epoch for one, held in (await any_cluster.state()).assignments.items()}
    assert after == epochs, "nothing moved"

    member.reconnect(first)
    assert await member.commit({tp(0): 6}) == {tp(0): 0}, "a commit finds it too"
    assert (await member.poll()).error == 0


async def test_a_gateway_that_a_member_comes_back_to_knows_what_another_one_told_it(
    any_cluster: Cluster, gateways: Any
) -> None:
    start = gateways(any_cluster)
    first, second = await start(), await start()
    await any_cluster.add_topic("t", 4)
    other = await any_cluster.join("grpc")
    member = KafkaMember(first)
    await member.start()
    await member.has_all(2)
    member.crash()

    member.reconnect(second)
    await member.poll()
    await other.deregister(gates_closed=True)
    await eventually(lambda: _has_count(member, 4), within=any_cluster.patience)
    member.reconnect(first)
    told = await member.poll()
    assert (told.error, told.epoch, told.assignment) == (0, member.epoch, member.has)
    assert not member.lost


async def test_a_resumed_member_lets_go_only_of_what_it_was_told_to(any_cluster: Cluster, gateways: Any) -> None:
    start = gateways(any_cluster)
    first, second = await start(), await start()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(first)
    await member.enter(4)
    other = KafkaMember(second, "m2")
    await other.join()
    await any_cluster.until("two handoffs", lambda state: len(state.handoffs) == 2)

    member.reconnect(second)
    told = await member.poll()
    assert told.assignment is not None
    assert len(told.assignment) == 2
    for held in (await any_cluster.state()).assignments.values():
        assert held.record.owner == member.name, "it has not said that it let go"
    await member.ack()
    await any_cluster.until_counts(**{name_of("m1"): 2, name_of("m2"): 2})


async def test_an_unknown_member_is_told_to_join_again(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    member = KafkaMember(gateway)
    assert (await member.beat(5)).error == 25, "there is no such group"
    assert (await member.leave()).error == 25
    await any_cluster.add_topic("t", 4)
    assert (await member.beat(5)).error == 25
    assert (await member.leave()).error == 25
    await member.enter(4)
    assert (await member.leave()).error == 0
    assert (await member.beat()).error == 25


async def test_a_static_member_that_comes_back_has_its_partitions_at_once(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    other = KafkaMember(gateway, "m9")
    await other.start()
    before = KafkaMember(gateway, "m1", instance_id="pod-1")
    await before.start()
    await before.has_all(2)
    await any_cluster.until_counts(**{"pod-1": 2, name_of("m9"): 2})
    before.crash()
    usurper = KafkaMember(gateway, "m2", instance_id="pod-1")
    assert (await usurper.full(0)).error == 111, "it has not left"

    assert (await before.leave(-2)).epoch == -2
    assert (await before.beat()).error == 25
    after = KafkaMember(gateway, "m3", instance_id="pod-1")
    await after.start()
    await after.has_all(2)
    assert after.has == before.has
    assert len(other.assigned) == len({frozenset(one) for one in other.assigned})
    assert (await before.beat(instance_id="pod-1")).error == 82
    assert (await before.beat(instance_id="pod-7")).error == 25
    assert (await before.leave(-1)).error == 82


async def test_a_member_that_is_silent_loses_its_lease_and_its_connections(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    await member.enter(4)
    patience = any_cluster.ttl + any_cluster.patience
    await eventually(lambda: gateway.fetchers.closed == [("app", "10.0.0.1")], within=patience, what="it is cut off")

    assert set((await member.commit({tp(0): 1})).values()) == {25}
    assert (await member.poll()).error == 25
    await member.enter(4)


async def test_who_can_not_be_told_from_another_member_keeps_its_connections(cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    silent, alive = KafkaMember(gateway, "m1"), KafkaMember(gateway, "m2")
    await silent.join()
    await alive.start()
    await alive.has_all(4, within=cluster.ttl + cluster.patience)

    assert (await silent.poll()).error == 25
    assert not gateway.fetchers.closed


async def test_a_subscription_of_nothing_is_none(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(gateway, names=())
    assert (await member.join()).assignment == frozenset()
    assert not await any_cluster.owners()

    member.names = ("t",)
    member.take(await member.full())
    await eventually(lambda: _has_count(member, 4), within=any_cluster.patience)
    member.names = ()
    member.take(await member.full())
    assert member.has == frozenset()
    await member.ack()
    await eventually(lambda: _has_count(member, 0), within=any_cluster.patience)
    await any_cluster.until("nobody owns anything", lambda state: not state.assignments)


async def _has_count(member: KafkaMember, count: int) -> bool:
    await member.poll()
    return len(member.has) == count


async def test_a_pattern_follows_a_topic_that_appears(any_cluster: Cluster, gateways: Any) -> None:
    upstream = {"t1": 2, "other": 2}
    await any_cluster.add_topic("t1", 2)
    await any_cluster.add_topic("t2", 3)
    gateway = await gateways(any_cluster)(upstream=upstream)
    member = KafkaMember(gateway, names=None, pattern="t[0-9]")
    await member.start()
    await member.has_all(2)

    upstream["t2"] = 3
    await member.has_all(5)
    (record,) = (await any_cluster.state()).consumers.values()
    assert (record.record.topics, record.record.pattern) == (("t1", "t2"), "t[0-9]")


async def test_a_topic_that_is_named_before_it_exists_is_followed_also_by_another_gateway(
    any_cluster: Cluster, gateways: Any
) -> None:
    upstream = {"t1": 2}
    await any_cluster.add_topic("t1", 2)
    start = gateways(any_cluster)
    first, second = await start(upstream=upstream), await start(upstream=upstream)
    member = KafkaMember(first, names=("t1", "t2"))
    await member.enter(2)

    member.reconnect(second)
    await member.poll()
    await any_cluster.add_topic("t2", 3)
    upstream["t2"] = 3
    await eventually(lambda: _has_count(member, 5), within=any_cluster.patience)


async def test_a_topic_that_is_deleted_in_kafka_is_taken_from_its_member_until_it_is_back(
    cluster: Cluster, gateways: Any
) -> None:
    upstream = {"t1": 2, "t2": 3}
    await cluster.add_topic("t1", 2)
    await cluster.add_topic("t2", 3)
    gateway = await gateways(cluster)(upstream=upstream)
    member = KafkaMember(gateway, names=("t1", "t2"))
    await member.start()
    await member.has_all(5)

    del upstream["t2"]
    await member.has_all(2, within=120)
    upstream["t2"] = 3
    await member.has_all(5)


@pytest.mark.parametrize("pattern", ["(", "a{1,2000}", "x" * 5000], ids=["unbalanced", "costly", "long"])
async def test_a_pattern_that_is_none_is_refused(cluster: Cluster, gateways: Any, pattern: str) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)

    assert (await KafkaMember(gateway, pattern=pattern).full(0)).error == 128


async def test_nobody_commits_for_another(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    one, two = KafkaMember(gateway, "m1"), KafkaMember(gateway, "m2")
    await one.start()
    await two.start()
    await one.has_all(2)
    await two.has_all(2)
    await any_cluster.until_counts(**{name_of("m1"): 2, name_of("m2"): 2})
    mine, others = min(one.has), min(two.has)

    assert await one.commit({mine: 5, others: 6, tp(77): 7, tp(0, "nowhere"): 8}) == {
        mine: 0,
        others: 113,
        tp(77): 3,
        tp(0, "nowhere"): 3,
    }
    assert await one.commit({mine: 5}, version=8) == {mine: 35}
    assert await one.commit({mine: 5}, epoch=one.epoch + 1) == {mine: 113}
    assert await commit(one.connection, GROUP, {mine: 5}, "m7", 3) == {mine: 25}
    assert await commit(one.connection, "g2", {mine: 5}, "m7", 3) == {mine: 25}
    assert await commit(one.connection, GROUP, {mine: 9}) == {mine: 25}, "nobody's, and it has an owner"
    assert await one.commit({mine: 6, tp(0, "nowhere"): 1}, version=10) == {mine: 0, tp(0, "nowhere"): 100}
    assert await two.fetch(mine, others) == (0, {mine: 6, others: -1})
    assert await two.fetch(mine, epoch=two.epoch + 1) == (113, {})
    assert (await fetch(one.connection, GROUP, [mine]))[0] == 0
    assert await fetch(one.connection, GROUP, [mine], "m7", 3) == (25, {})
    assert await fetch(one.connection, GROUP, None) == (0, {mine: 6})
    assert await fetch(one.connection, GROUP, [mine, tp(0, "nowhere")], version=10) == (
        0,
        {mine: 6, tp(0, "nowhere"): -1100},
    )
    assert await fetch(one.connection, "g2", [mine], "m7", 3) == (0, {mine: -1})


async def test_who_is_no_member_commits_while_nobody_owns_the_partition(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    tool = Connection(gateway, "tool")

    assert await commit(tool, GROUP, {tp(0): 42, tp(9): 1, tp(0, "nowhere"): 2}, version=6) == {
        tp(0): 0,
        tp(9): 3,
        tp(0, "nowhere"): 3,
    }
    assert await fetch(tool, GROUP, [tp(0), tp(1)]) == (0, {tp(0): 42, tp(1): -1})
    member = KafkaMember(gateway)
    await member.join()
    assert await member.fetch(tp(0)) == (0, {tp(0): 42})


async def test_a_denied_client_is_told_so(cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    member.connection = Connection(gateway, "app", "", GROUP)

    assert (await member.full(0)).error == 30
    assert await member.commit({tp(0): 1}) == {tp(0): 30}
    assert await member.fetch(tp(0)) == (30, {})
    assert not (await cluster.state()).consumers


async def test_nobody_acts_for_a_member_of_another_identity(any_cluster: Cluster, gateways: Any) -> None:
    start = gateways(any_cluster)
    gateway, elsewhere = await start(), await start()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    member.connection.client.principal = principal("alice", organization="acme")
    await member.enter(4)
    for place in (gateway, elsewhere):
        thief = KafkaMember(place)
        thief.connection.client.principal = principal("mallory", organization="acme")
        thief.epoch = member.epoch
        assert (await thief.beat()).error == 30
        assert await thief.commit({tp(0): 1}) == {tp(0): 30}
        assert (await thief.fetch(tp(0)))[0] == 30
        assert (await thief.full(0)).error == 30
        assert (await thief.leave()).error == 30

    assert (await member.poll()).error == 0
    assert await member.commit({tp(0): 2}) == {tp(0): 0}


async def test_a_group_is_described_as_kafka_describes_it(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    tool = Connection(gateway, "tool")
    (empty, unknown) = (
        await tool.call(DESCRIBE, 1, group_ids=(GROUP, "g2"), include_authorized_operations=False)
    ).groups
    assert (empty.group_state, int(empty.error_code.value), empty.members) == ("Empty", 0, ())
    assert int(unknown.error_code.value) == 69

    member = KafkaMember(gateway, rack="r1")
    await member.enter(4)
    (group,) = (await tool.call(DESCRIBE, 1, group_ids=(GROUP,), include_authorized_operations=False)).groups
    (described,) = group.members
    assert (group.group_state, group.assignor_name) == ("Stable", "sticky_balanced")
    assert (described.member_id, described.instance_id, described.rack_id) == ("m1", None, "r1")
    assert (described.client_id, described.client_host, described.member_type) == ("app", "/10.0.0.1", 1)
    assert [len(topic.partitions) for topic in described.assignment.topic_partitions] == [4]
    (classic,) = (await tool.call(15, 6, groups=(GROUP,), include_authorized_operations=False)).groups
    assert (int(classic.error_code.value), classic.group_state) == (69, "Dead")
    listed = await tool.call(16, 5, states_filter=(), types_filter=("consumer",))
    assert [(one.group_id, one.group_type, one.group_state) for one in listed.groups] == [(GROUP, "consumer", "Stable")]
    assert not (await tool.call(16, 5, states_filter=(), types_filter=("classic",))).groups


async def test_a_group_is_deleted_once_it_is_empty(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    await member.enter(4)
    tool = Connection(gateway, "tool")
    await member.commit({tp(0): 5})

    async def delete(group: str) -> int:
        (result,) = (await tool.call(42, 2, groups_names=(group,))).results
        return int(result.error_code.value)

    assert await delete("g2") == 69
    assert await delete(GROUP) == 68
    await member.leave()
    await any_cluster.until("nobody owns anything", lambda state: not state.assignments, any_cluster.ttl * 4)
    assert await delete(GROUP) == 0
    assert await fetch(tool, GROUP, [tp(0)]) == (0, {tp(0): -1})


async def test_a_group_has_a_most_of_members(cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    for number in range(50):
        await cluster.put_consumer(f"c{number}")

    assert (await KafkaMember(gateway).full(0)).error == 81


async def test_a_member_that_is_evicted_is_fenced_and_joins_again_under_its_id(
    any_cluster: Cluster, gateways: Any
) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    stuck, other = KafkaMember(gateway, "m1", timeout=2_000), KafkaMember(gateway, "m2")
    await stuck.start()
    await other.start()
    await stuck.has_all(2)
    await any_cluster.until_counts(**{name_of("m1"): 2, name_of("m2"): 2})
    stuck.lets_go = False
    await gateway.instance.operations.drain(GROUP, stuck.name)
    within = any_cluster.patience + any_cluster.allowance
    await eventually(lambda: 110 in stuck.lost, within=within, what="it did not let go in its own time")

    stuck.lets_go = True
    await any_cluster.until_counts(**{name_of("m1"): 2, name_of("m2"): 2})
    await stuck.has_all(2)
    await other.has_all(2)
    assert not other.lost


async def test_a_member_that_leaves_may_join_again_at_once_under_its_id(any_cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(any_cluster)()
    await any_cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    for _ in range(3):
        await member.enter(4)
        left = await member.beat(-1, owned=frozenset(), subscribed_topic_names=())
        assert (left.error, left.epoch) == (0, -1)
    assert not (await any_cluster.state()).consumers


async def test_a_member_that_comes_back_for_more_topics_is_told_all_of_them_at_once(
    cluster: Cluster, gateways: Any
) -> None:
    """Partitions of a group without members stay its last owners', who may be the same session as the newcomer."""
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    await cluster.add_topic("u", 4)
    member = KafkaMember(gateway)
    await member.join()
    await member.ack()
    await member.leave()

    member.names = ("t", "u")
    assert len((await member.join()).assignment or ()) == 8


async def test_a_member_that_subscribes_to_more_is_told_soon(cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    await cluster.add_topic("u", 4)
    member = KafkaMember(gateway)
    await member.join()
    await member.ack()
    await anyio.sleep(10)
    began = anyio.current_time()
    member.names = ("t", "u")
    told = await member.full()
    assert told.interval < 1
    member.take(told)
    await member.start()
    await member.has_all(8)
    assert anyio.current_time() - began < 1


async def test_in_version_0_the_gateway_makes_the_member_id(cluster: Cluster, gateways: Any) -> None:
    gateway = await gateways(cluster)()
    await cluster.add_topic("t", 4)
    member = KafkaMember(gateway, "")
    told = await member.beat(
        0,
        version=0,
        owned=frozenset(),
        rebalance_timeout=milliseconds(60_000),
        subscribed_topic_names=("t",),
    )
    assert (told.error, len(told.assignment or ())) == (0, 4)
    assert told.member_id
    member.member_id = told.member_id
    member.take(told)
    assert (await member.beat(version=0, owned=member.has)).error == 0


async def test_while_the_store_is_away_a_member_keeps_what_it_has(cluster: Cluster, gateways: Any) -> None:
    faulty = await cluster.start_faulty("i1")
    gateway = await gateways(cluster)(cluster.instances["i1"])
    await cluster.add_topic("t", 4)
    member = KafkaMember(gateway)
    await member.join()
    await member.ack()
    await anyio.sleep(cluster.ttl / 3)

    faulty.inject(Refuse(), times=None)
    assert (await member.beat()).error == 14
    assert set((await member.commit({tp(0): 1})).values()) == {14}
    assert (await member.fetch(tp(0)))[0] == 14
    assert (await KafkaMember(gateway, "m2").beat(5)).error in (14, 25)
    faulty.heal()
    await eventually(lambda: _is_served(member), within=cluster.patience)
    assert not member.lost
    assert await member.commit({tp(0): 1}) == {tp(0): 0}


async def _is_served(member: KafkaMember) -> bool:
    return (await member.beat()).error == 0
