"""Rolling deploys in a running group: each partition moves once, newcomers are not flooded, nothing is left unowned."""

from __future__ import annotations

from collections import Counter
from random import Random

import anyio
import pytest

from assigner.core.group import GroupState
from assigner.core.whatif import changes
from assigner.core.whatif.group_spec import GroupSpec, MemberSpec, TopicSpec
from assigner.core.whatif.report import build_report, solve
from assigner.errors import AssignerError, InvalidInput, InvalidName
from assigner.leader.history import read_history
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Cause, HandoffMode, decode
from assigner.store import PutEvent
from assigner.strategy.registry import load
from tests.support.cluster import EXPIRES, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
OLD, NEW = "v1", "v2"


# --- a fleet and its replacement ---------------------------------------------------------------------------------


async def fleet(cluster: Cluster, count: int, generation: str = OLD, first: int = 0) -> list[SteppedConsumer]:
    return [
        await cluster.join(f"{generation}-{number:02}", generation=generation) for number in range(first, first + count)
    ]


async def old_fleet(cluster: Cluster, count: int, partitions: int, **options: object) -> list[SteppedConsumer]:
    """A fleet of the old generation, at rest."""
    await cluster.set_options(rollout=NEW, **options)
    await cluster.add_topic(partitions=partitions)
    await cluster.start_instance()
    pods = await fleet(cluster, count)
    await at_rest(cluster, count)
    return pods


async def at_rest(cluster: Cluster, owners: int | None = None) -> GroupState:
    """Everything is owned by somebody who is here, by so many, and nothing moves; for long enough to believe it."""

    def holds(state: GroupState) -> bool:
        names = {held.record.owner for held in state.assignments.values()}
        whole = len(state.assignments) == state.partitions() and names <= state.consumers.keys()
        return whole and not state.handoffs and (owners is None or len(names) == owners)

    before = -1
    for _ in range(100):
        state = await cluster.until(f"all is owned, by {owners or 'some'}", holds, within=90)
        if state.plan.generation == before:
            return state
        before = state.plan.generation
        await anyio.sleep(2 * cluster.options.debounce + 0.2)
    raise AssertionError("it does not come to rest")


async def drain(*pods: SteppedConsumer) -> None:
    for pod in pods:
        await pod.deregister()
    for pod in pods:
        await pod.until("drained", lambda c: c.ended == "drained", within=60)


async def crash(cluster: Cluster, *pods: SteppedConsumer) -> None:
    """And wait until they are missed."""
    for pod in pods:
        pod.crash()
    gone = {pod.name for pod in pods}
    await cluster.until("they are gone", lambda state: not gone & state.consumers.keys(), within=90)


async def replace_by_twos(cluster: Cluster, pods: list[SteppedConsumer]) -> None:
    """As a deployment that surges by two does: two come, and when they are ready, two of the old ones are drained."""
    for first in range(0, len(pods), 2):
        await fleet(cluster, 2, NEW, first)
        await at_rest(cluster)
        await drain(*pods[first : first + 2])
    await at_rest(cluster, len(pods))


async def moves(cluster: Cluster, since: int) -> Counter[TopicPartition]:
    """How often each partition changed its owner since a revision, by the store's own history."""
    owners: dict[TopicPartition, str] = {}
    for event in await cluster.history():
        if isinstance(event, PutEvent) and event.entry.key.startswith(cluster.group.assignments):
            record = decode(Assignment, event.entry.value)[0]
            at = TopicPartition(record.topic, record.partition)
            if event.entry.mod_revision <= since:
                owners[at] = record.owner
    counted: Counter[TopicPartition] = Counter(dict.fromkeys(owners, 0))
    for event in await cluster.history():
        if isinstance(event, PutEvent) and event.entry.key.startswith(cluster.group.assignments):
            record = decode(Assignment, event.entry.value)[0]
            at = TopicPartition(record.topic, record.partition)
            if event.entry.mod_revision > since and owners.get(at) != record.owner:
                counted[at] += 1
                owners[at] = record.owner
    return counted


def sizes(state: GroupState) -> dict[str, int]:
    return {name: len(state.owned.get(name, ())) for name in sorted(state.consumers)}


@pytest.mark.parametrize("partitions", [20, 100])
async def test_each_partition_moves_exactly_once_when_a_fleet_is_replaced_two_by_two(
    any_cluster: Cluster, partitions: int
) -> None:
    cluster = any_cluster
    pods = await old_fleet(cluster, 10, partitions)
    before = await cluster.state()

    await replace_by_twos(cluster, pods)

    after = await cluster.state()
    assert set((await moves(cluster, before.revision)).values()) == {1}
    assert all(held.record.epoch > before.assignments[at].record.epoch for at, held in after.assignments.items())
    assert set(sizes(after).values()) == {partitions // 10}


async def test_without_the_policy_partitions_move_more_often(cluster: Cluster) -> None:
    pods = await old_fleet(cluster, 10, 20)
    await cluster.set_options(rollout="")
    before = await cluster.state()
    await replace_by_twos(cluster, pods)
    assert (await moves(cluster, before.revision)).total() > 20


@pytest.mark.parametrize("topics", [{"t": 7, "u": 12, "v": 1}, {"t": 15, "u": 15}])
async def test_several_topics_move_once_each_as_well(cluster: Cluster, topics: dict[str, int]) -> None:
    for topic, count in topics.items():
        await cluster.add_topic(topic, count)
    if len(set(topics.values())) == 1:
        await cluster.set_options(copartitioned=(tuple(topics),))
    pods = await old_fleet(cluster, 10, topics["t"])
    before = await cluster.state()
    await replace_by_twos(cluster, pods)
    counted = await moves(cluster, before.revision)
    assert sum(topics.values()) == len(counted)
    # What a rollout can't put right, because it moves nothing twice, is put right when it is over.
    assert counted.total() <= sum(topics.values()) + 2
    together = sizes(await cluster.state()).values()
    assert max(together) - min(together) <= len(topics) - (len(set(topics.values())) > 1)


async def test_consumers_of_different_capacity_move_once_each_as_well(cluster: Cluster) -> None:
    await cluster.set_options(rollout=NEW)
    await cluster.add_topic(partitions=40)
    await cluster.start_instance()
    pods = [await cluster.join(f"{OLD}-{n:02}", generation=OLD, capacity=1.0 + n % 2) for n in range(6)]
    before = await at_rest(cluster, 6)
    for first in range(0, 6, 2):
        for n in (first, first + 1):
            await cluster.join(f"{NEW}-{n:02}", generation=NEW, capacity=1.0 + n % 2)
        await at_rest(cluster)
        await drain(*pods[first : first + 2])
    after = await at_rest(cluster, 6)
    counted = await moves(cluster, before.revision)
    assert min(counted.values()) == 1
    assert counted.total() <= 42
    assert {4, 5} >= set(list(sizes(after).values())[::2])
    assert {8, 9} >= set(list(sizes(after).values())[1::2])


async def test_a_change_of_leader_in_the_middle_costs_no_move(any_cluster: Cluster) -> None:
    cluster = any_cluster
    pods = await old_fleet(cluster, 4, 8)
    other = await cluster.start_instance("i2", leads=False)
    before = await cluster.state()
    await fleet(cluster, 2, NEW)
    await drain(*pods[:2])
    for consumer in cluster.consumers.values():
        if consumer.ended is None:
            consumer.instance = other
    leader = cluster.instances["i1"].leadership
    assert leader
    await cluster.instances["i1"].stop_leading()
    await cluster.start_instance("i3")
    await cluster.until("another leader", lambda s: bool(s.leader and s.leader.record.holder == "i3"), within=60)
    await fleet(cluster, 2, NEW, 2)
    await at_rest(cluster)
    await drain(*pods[2:])
    await at_rest(cluster, 4)
    assert set((await moves(cluster, before.revision)).values()) == {1}


# --- holds and caps ----------------------------------------------------------------------------------------------


async def test_while_a_rollout_is_on_nothing_moves_for_balance(cluster: Cluster) -> None:
    pods = await old_fleet(cluster, 2, 8)
    before = await cluster.owners()
    await fleet(cluster, 3, NEW)
    await anyio.sleep(100)
    assert await cluster.owners() == before
    assert all(not pod.to_release for pod in pods)


async def test_the_first_newcomer_does_not_get_everything(cluster: Cluster) -> None:
    """Four of ten go at once. The newcomer has its fair share of a fleet of six, and those on hold the rest."""
    pods = await old_fleet(cluster, 10, 20)
    await fleet(cluster, 1, NEW)
    await crash(cluster, *pods[:4])
    state = await at_rest(cluster, 7)
    assert len(state.owned["v2-00"]) in (2, 3, 4)
    assert {count for name, count in sizes(state).items() if name.startswith(OLD)} <= {2, 3}


async def test_a_cap_set_by_hand_is_kept(cluster: Cluster) -> None:
    pods = await old_fleet(cluster, 4, 20, rollout_cap=3)
    await fleet(cluster, 1, NEW)
    for pod in pods[:2]:
        await pod.deregister()
    state = await at_rest(cluster, 3)
    assert sizes(state)["v2-00"] == 3
    assert sorted(sizes(state).values()) == [3, 8, 9]


async def test_who_is_on_hold_gets_nothing_new_while_anyone_else_has_room(cluster: Cluster) -> None:
    await old_fleet(cluster, 4, 8)
    await fleet(cluster, 4, NEW)
    await at_rest(cluster)
    await cluster.add_topic(partitions=12)
    state = await at_rest(cluster)
    assert sizes(state) == {**{f"v1-0{n}": 2 for n in range(4)}, **{f"v2-0{n}": 1 for n in range(4)}}


async def crash_in_the_middle(cluster: Cluster, dying: str) -> None:
    pods = await old_fleet(cluster, 10, 20)
    await fleet(cluster, 2, NEW)
    await drain(*pods[:2])
    crashed = [c for name, c in cluster.consumers.items() if name.startswith(tuple(dying.split())) and not c.ended]
    await crash(cluster, *crashed)
    state = await at_rest(cluster)
    assert not {held.record.owner for held in state.assignments.values()} & {consumer.name for consumer in crashed}
    assert max(sizes(state).values()) < 20


@pytest.mark.parametrize("dying", ["v1", "v2", "v1-02 v1-03 v1-04 v1-05 v1-06 v1-07 v2-01"])
async def test_many_crashes_in_the_middle_leave_nothing_unowned(cluster: Cluster, dying: str) -> None:
    await crash_in_the_middle(cluster, dying)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_crash_on_either_side_leaves_nothing_unowned(any_cluster: Cluster) -> None:
    await crash_in_the_middle(any_cluster, "v1-03 v2-00")


async def test_without_a_consumer_of_the_new_generation_the_old_one_carries_on(cluster: Cluster) -> None:
    await old_fleet(cluster, 3, 9)
    (newcomer,) = await fleet(cluster, 1, NEW)
    await at_rest(cluster)
    await crash(cluster, newcomer)
    assert set(sizes(await at_rest(cluster, 3)).values()) == {3}


async def test_what_one_newcomer_can_not_warm_goes_to_another_and_not_to_one_on_hold(cluster: Cluster) -> None:
    await cluster.set_options(rollout=NEW)
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    pods = await fleet(cluster, 5)
    await at_rest(cluster, 4)
    newcomers = [await cluster.join(f"v2-{number:02}", generation=NEW, answers_warm=False) for number in range(2)]
    await at_rest(cluster, 4)
    await pods[0].deregister()
    await cluster.until("one of them is asked", lambda s: bool(s.handoffs))
    failing, other = newcomers if newcomers[0].to_warm else newcomers[::-1]
    await failing.ready(*failing.to_warm, failure="no disk left")
    # An old one has nothing to do either, and comes first by name.
    await other.until("asked instead", lambda c: bool(c.to_warm))
    await other.ready(*other.to_warm)
    await pods[0].until("drained", lambda c: c.ended == "drained", within=60)
    assert sizes(await at_rest(cluster))[other.name] == 1


async def test_what_is_asked_beforehand_is_what_happens(cluster: Cluster) -> None:
    """`assigner plan --leave` in the middle of a rollout, and then the very consumer dies."""
    pods = await old_fleet(cluster, 4, 26)
    await fleet(cluster, 3, NEW)
    await crash(cluster, pods[0])
    state = await at_rest(cluster, 6)
    solved = solve(changes.leave(spec_of(state), pods[1].name), load(state.options.strategy))
    await crash(cluster, pods[1])
    after = await at_rest(cluster, 5)
    asked = {move.partition: move.new for move in build_report(spec_of(state), solved).planned}
    happened = {str(at): held.record.owner for at, held in after.assignments.items()}
    assert asked == {at: owner for at, owner in happened.items() if at in asked}
    assert len(asked) == len(state.owned[pods[1].name])


def spec_of(state: GroupState) -> GroupSpec:
    members = tuple(
        MemberSpec(
            name=name,
            deployment=stored.record.generation,
            registered_at=stored.record.registered_at,
            owned={"t": tuple(sorted(at.partition for at in state.owned.get(name, ())))},
        )
        for name, stored in state.consumers.items()
    )
    topics = tuple(TopicSpec(name=name, partitions=it.record.partition_count) for name, it in state.topics.items())
    return GroupSpec(members=members, topics=topics, rollout=state.options.rollout)


async def test_when_the_rollout_is_over_the_rest_is_balanced(cluster: Cluster) -> None:
    pods = await old_fleet(cluster, 2, 12)
    await fleet(cluster, 2, NEW)
    await at_rest(cluster)
    await drain(pods[0])
    await fleet(cluster, 1, NEW, 2)
    state = await at_rest(cluster, 3)
    assert sizes(state) == {"v1-01": 6, "v2-00": 3, "v2-01": 3, "v2-02": 0}
    await pods[1].deregister()
    assert sizes(await at_rest(cluster, 3)) == {"v2-00": 4, "v2-01": 4, "v2-02": 4}


@pytest.mark.parametrize("mode", HandoffMode)
@pytest.mark.parametrize("seed", range(4))
async def test_a_deploy_in_which_anything_happens(cluster: Cluster, seed: int, mode: HandoffMode) -> None:
    """When consumers join, drain or crash in any order, everything is owned, and what has a living owner stays with
    it as long as the rollout lasts; then it is shared evenly."""
    dice = Random(seed)
    pods = await old_fleet(cluster, 4, 13, handoff_mode=mode)
    living = [*pods, *await fleet(cluster, 1, NEW)]
    for step in range(12):
        before = await at_rest(cluster)
        leaving = dice.sample(living, k=min(dice.randint(0, 2), len(living) - 2))
        if step % 3 == 0:
            living += await fleet(cluster, 1, dice.choice([OLD, NEW]), 10 + step)
        await (crash(cluster, *leaving) if dice.random() < 0.5 else drain(*leaving))
        living = [one for one in living if one not in leaving]
        state = await at_rest(cluster)
        if {OLD, NEW} == {consumer.record.generation for consumer in state.consumers.values()}:
            for one in living:
                assert before.owned.get(one.name, set()) <= state.owned.get(one.name, set())
    await cluster.set_options(rollout="")
    together = sizes(await at_rest(cluster)).values()
    assert max(together) - min(together) <= 1


# --- which generation is the new one -----------------------------------------------------------------------------


async def test_auto_takes_the_generation_that_registered_last(cluster: Cluster) -> None:
    pods = await old_fleet(cluster, 2, 4)
    await cluster.set_options(rollout="auto")
    await anyio.sleep(1.1)
    await cluster.join("a-later-one", generation="a-name-that-comes-first")
    await at_rest(cluster, 2)
    await pods[0].deregister()
    state = await at_rest(cluster, 2)
    assert sizes(state) == {"a-later-one": 2, "v1-01": 2} | {name: 0 for name in sizes(state) if name == "v1-00"}


async def test_a_generation_that_nobody_has_is_no_rollout(cluster: Cluster) -> None:
    await old_fleet(cluster, 2, 6)
    await cluster.set_options(rollout="v3")
    await fleet(cluster, 1, NEW)
    assert set(sizes(await at_rest(cluster, 3)).values()) == {2}


async def test_a_rollout_switched_off_is_over(cluster: Cluster) -> None:
    await old_fleet(cluster, 2, 6)
    await fleet(cluster, 1, NEW)
    await at_rest(cluster, 2)
    await cluster.instances["i1"].operations.set_options("g", {"rollout": ""})
    assert set(sizes(await at_rest(cluster, 3)).values()) == {2}


# --- causes ------------------------------------------------------------------------------------------------------


async def causes(cluster: Cluster) -> Counter[Cause]:
    await anyio.sleep(2)
    return Counter(move.cause for move in await read_history(cluster.store, cluster.keys.history("g")))


async def test_moves_off_a_drained_member_of_the_old_generation_are_the_rollouts(any_cluster: Cluster) -> None:
    cluster = any_cluster
    pods = await old_fleet(cluster, 2, 4)
    await fleet(cluster, 2, NEW)
    await drain(*pods)
    told = await causes(cluster)
    assert told[Cause.ROLLOUT] == 4
    assert told[Cause.DRAINING] == 0


async def test_moves_off_a_drained_member_of_the_new_generation_and_off_dead_ones_are_not(cluster: Cluster) -> None:
    pods = await old_fleet(cluster, 2, 4)
    new = await fleet(cluster, 2, NEW)
    await crash(cluster, pods[0])
    await at_rest(cluster, 3)
    assert (await causes(cluster))[Cause.LEFT] == 2
    await drain(new[0])
    told = await causes(cluster)
    assert told[Cause.DRAINING] == 1
    assert told[Cause.ROLLOUT] == 0


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"rollout_cap": -1}, InvalidInput, "rollout_cap must be 0 or more"),
        ({"rollout_cap": 10_000_000}, InvalidInput, "at most 1000000"),
        ({"rollout_cap": 1.5}, InvalidInput, "rollout_cap"),
        ({"rollout": "v\n2"}, InvalidName, "can't be printed"),
        ({"rollout": "v" * 300}, InvalidName, "longer than"),
        ({"rollout": 2}, InvalidInput, "rollout"),
        ({"use_loads": "yes"}, InvalidInput, "use_loads"),
        ({"rolout": "auto"}, InvalidInput, "did you mean 'rollout'"),
        ({"strategy": "none-such"}, InvalidInput, "no strategy named 'none-such'"),
        ({"strategy_options": {"weight": True}}, InvalidInput, "weight"),
        ({"strategy_options": {"racks": 3}}, InvalidInput, "racks"),
    ],
)
async def test_nonsense_is_refused_and_changes_nothing(
    cluster: Cluster, change: dict[str, object], error: type[AssignerError], says: str
) -> None:
    instance = await cluster.start_instance()
    await cluster.add_topic(partitions=1)
    before = (await instance.operations.describe("g")).options
    with pytest.raises(error, match=says):
        await instance.operations.set_options("g", change)
    assert (await instance.operations.describe("g")).options == before
    assert tp(0) not in (await cluster.state()).assignments
