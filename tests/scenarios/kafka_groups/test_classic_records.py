"""What is kept of classic groups, and for how long: large groups, offsets that expire, assignments of the service."""

from __future__ import annotations

import pytest

from assigner.core.kafka_groups.classic.consumer_protocol import Subscription, encode_subscription
from assigner.gateway.settings import GatewaySettings
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicMemberRecord, ClassicState, KafkaError
from assigner.model.records import Assignor, GroupOptions, decode, encode
from assigner.storage.groups import make_known
from assigner.storage.kinds import CLASSIC
from assigner.store import Delete, Found, Put
from assigner.testing.faults import Delay, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from tests.scenarios.kafka_groups.conftest import ClassicScene
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time
RETENTION = 1_000.0


# --- large groups --------------------------------------------------------------------------------------------------


def large(count: int) -> ClassicGroupRecord:
    """A group whose members take more than one block."""
    metadata = encode_subscription(Subscription(topics=("t",), user_data=b"x" * 20_000, version=0))
    members = tuple(
        ClassicMemberRecord(
            member_id=f"m-{number}",
            instance_id=f"pod-{number}",
            session_timeout=600_000,
            rebalance_timeout=600_000,
            protocols=(("range", metadata),),
            assignment=b"a" * 100,
        )
        for number in range(count)
    )
    return ClassicGroupRecord(
        generation=7, reserved=20, protocol_type="consumer", protocol="range", leader="m-0", members=members
    )


async def blocks(cluster: Cluster) -> list[str]:
    prefix = cluster.keys.kafka_members("g")
    return sorted(entry.key[len(prefix) :] for entry in (await cluster.store.list(prefix)).entries)


async def start_with(scene: ClassicScene, record: ClassicGroupRecord) -> None:
    """Have the group be on record, in one piece, and its leader load it."""
    cluster = scene.cluster
    await cluster.store.put(cluster.keys.kafka_state("g"), encode(record))
    await make_known(cluster.store, cluster.keys, "g", CLASSIC)
    await scene.until("the group is loaded", lambda: len(scene.leaders()) == 1)


async def test_a_group_that_fits_into_no_record_is_kept_in_blocks_and_loaded_again(scene: ClassicScene) -> None:
    cluster = scene.cluster
    await start_with(scene, large(30))
    groups = cluster.instances["i1"].kafka_groups
    # A static member's new process: what is on record changes by one member.
    again = scene.member("again", instance_id="pod-3", session=600.0, rebalance=600.0)
    again.metadata = large(1).members[0].protocols
    joined = await groups.join("", again.join_request())
    assert (joined.error, joined.generation) == (KafkaError.NONE, 7)
    first = await blocks(cluster)
    assert len(first) > 1

    await scene.start("i2")
    await cluster.stop_instance("i1")
    await scene.until("the other leads", lambda: scene.leaders() == ["i2"])
    described = await cluster.instances["i2"].kafka_groups.describe("", "g")
    assert (described.state, described.generation, len(described.members)) == (ClassicState.STABLE, 7, 30)
    assert joined.member_id in {one.member_id for one in described.members}


async def test_blocks_that_an_interrupted_write_left_are_deleted(scene: ClassicScene) -> None:
    cluster = scene.cluster
    await cluster.store.put(cluster.keys.kafka_members("g", 99), b"{}")
    await start_with(scene, large(2))
    described = await cluster.instances["i1"].kafka_groups.describe("", "g")
    assert len(described.members) == 2
    assert await blocks(cluster) == []


@pytest.mark.parametrize("fault", [LoseAnswer(applied=True), LoseAnswer(applied=False), Refuse()], ids=str)
async def test_a_block_that_could_not_be_written_for_certain_leaves_no_half_of_a_generation(
    scene: ClassicScene, fault: LoseAnswer | Refuse
) -> None:
    cluster = scene.cluster
    await start_with(scene, large(30))

    def writes_a_block(*arguments: object) -> bool:
        return any(isinstance(one, Put) and "/members/" in one.key for one in arguments[2])  # type: ignore[attr-defined]

    injected = cluster.faults["i1"].inject(fault, kinds={"transact"}, times=5, where=writes_a_block)
    again = scene.member("again", instance_id="pod-3", session=600.0, rebalance=600.0)
    again.metadata = large(1).members[0].protocols
    groups = cluster.instances["i1"].kafka_groups

    async def is_in() -> bool:
        joined = await groups.join("", again.join_request())
        return joined.error is KafkaError.NONE

    await eventually(is_in, within=cluster.patience + cluster.allowance, every=0.1)
    assert injected.spent
    found = await cluster.store.get(cluster.keys.kafka_state("g"))
    assert isinstance(found, Found)
    state = decode(ClassicGroupRecord, found.entry.value)[0]
    assert [str(number) for number in sorted(state.blocks)] == sorted(await blocks(cluster), key=int)


# --- expiry --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def keeping(cluster: Cluster) -> ClassicScene:
    """In memory alone: hours pass."""
    await cluster.start_instance("i1", gateway=GatewaySettings(offsets_retention=RETENTION, min_session_timeout=1.0))
    return ClassicScene(cluster)


async def test_offsets_of_a_group_without_members_expire_and_then_the_group_is_gone(keeping: ClassicScene) -> None:
    scene, clock = keeping, keeping.cluster.clock
    [a] = await scene.join("a")
    await a.commit({0: 5})
    groups = scene.cluster.instances["i1"].kafka_groups
    await eventually(lambda: clock.now() > 3 * RETENTION, within=4 * RETENTION, every=50)
    assert await a.fetch() == {0: 5}, "members keep what they read"

    await a.leave()
    left = clock.now()
    del scene.members["a"]

    async def is_gone() -> bool:
        return (await groups.describe("", "g")).error is KafkaError.GROUP_ID_NOT_FOUND

    await eventually(is_gone, within=3 * RETENTION, every=10)
    assert RETENTION <= clock.now() - left <= 1.3 * RETENTION
    assert await a.fetch() == {}
    scene.stop()


async def test_offsets_of_consumers_in_no_group_expire_each_by_itself(keeping: ClassicScene) -> None:
    scene, clock = keeping, keeping.cluster.clock
    simple = scene.member("simple", group="g")
    await simple.commit({0: 5})
    began = clock.now()
    await eventually(lambda: clock.now() > began + RETENTION / 2, within=RETENTION, every=10)
    await simple.commit({1: 6})

    async def first_is_gone() -> bool:
        return await simple.fetch() == {1: 6}

    await eventually(first_is_gone, within=RETENTION, every=10)
    # Commits are dated by whole seconds.
    assert clock.now() - began > RETENTION - 1


async def test_an_offset_that_is_committed_again_while_it_expires_stays(keeping: ClassicScene) -> None:
    scene, cluster = keeping, keeping.cluster
    faults = await scene.start("i2")
    await cluster.stop_instance("i1")
    simple = scene.member("simple", group="g")
    await simple.commit({0: 5})
    began = cluster.clock.now()
    # It is seen as expired, and the deletion is on its way.
    slow = faults.inject(Delay(3.0), kinds={"transact"}, times=1, where=deletes_an_offset)
    await eventually(lambda: slow.hits == 1, within=2 * RETENTION, every=0.5)
    assert cluster.clock.now() - began > RETENTION - 1
    await simple.commit({0: 6})
    await eventually(lambda: cluster.clock.now() > began + 1.4 * RETENTION, within=RETENTION, every=10)
    assert await simple.fetch() == {0: 6}


def deletes_an_offset(*arguments: object) -> bool:
    return any(isinstance(one, Delete) and "/~offsets/" in one.key for one in arguments[2])  # type: ignore[attr-defined]


async def test_a_group_without_offsets_is_gone_soon_after_its_last_member(keeping: ClassicScene) -> None:
    """Consumers that name a new group each time, such as those of a console, would fill the index otherwise."""
    scene, clock = keeping, keeping.cluster.clock
    [a] = await scene.join("a")
    await a.leave()
    left = clock.now()
    groups = scene.cluster.instances["i1"].kafka_groups

    async def is_gone() -> bool:
        return (await groups.describe("", "g")).error is KafkaError.GROUP_ID_NOT_FOUND

    await eventually(is_gone, within=RETENTION, every=5)
    assert clock.now() - left < RETENTION / 3


# --- assignments of the service ------------------------------------------------------------------------------------


async def test_the_service_assigns_where_the_options_say_so(scene: ClassicScene) -> None:
    cluster = scene.cluster
    await cluster.add_topic("t", 6)
    options = GroupOptions(assignor=Assignor.SERVER)
    await cluster.store.put(cluster.group.options, encode(options))
    a, b, c = await scene.join("a", "b", "c")
    assert [len(one.owned) for one in (a, b, c)] == [2, 2, 2]
    assert {one.led for one in (a, b, c)} == {0}, "no member was asked to assign"
    # By the group's strategy: who stays keeps what it has.
    kept = {one.name: set(one.owned) for one in (a, b)}
    del scene.members["c"]
    await c.leave()
    await scene.settled()
    assert all(kept[one.name] <= set(one.owned) for one in (a, b))
    # Its topics are on record, and its partitions have no owners there.
    assert [one.group for one in cluster.instances["i1"].snapshots()] == []


async def test_members_assign_for_themselves_where_the_service_can_not(scene: ClassicScene) -> None:
    cluster = scene.cluster
    await cluster.add_topic("t", 6)
    await cluster.store.put(cluster.group.options, encode(GroupOptions(assignor=Assignor.SERVER)))
    odd = scene.member("odd")
    odd.metadata = (("range", b"not a subscription"),)
    scene.members["odd"] = odd
    odd.start(cluster.tasks)
    await scene.settled()
    assert odd.led > 0


async def test_a_topic_that_grows_is_assigned_anew(scene: ClassicScene) -> None:
    """Where the service assigns, no member watches the topics."""
    cluster = scene.cluster
    await cluster.add_topic("t", 4)
    await cluster.store.put(cluster.group.options, encode(GroupOptions(assignor=Assignor.SERVER)))
    for name in ("a", "b"):
        scene.members[name] = scene.member(name)
        scene.members[name].start(cluster.tasks)
    a, b = scene.members["a"], scene.members["b"]
    await scene.until("four are shared", lambda: len(a.owned) == len(b.owned) == 2)
    generation = a.generation
    await cluster.instances["i1"].operations.set_topic("g", "t", 6)
    await scene.settled()
    assert a.generation == generation + 1, "one rebalance did"


async def test_an_operator_may_have_everybody_join_again(scene: ClassicScene) -> None:
    a, b = await scene.join("a", "b")
    generation = a.generation
    await scene.cluster.instances["i1"].operations.rebalance("g")
    await scene.until("they have joined again", lambda: a.generation == b.generation == generation + 1)
    assert a.lost == b.lost == 0


async def test_who_assigns_may_change_while_members_are_there(scene: ClassicScene) -> None:
    cluster = scene.cluster
    await cluster.add_topic("t", 6)
    a, b = await scene.join("a", "b")
    operations, before = cluster.instances["i1"].operations, (a.rebalances, b.rebalances)
    await operations.set_options("g", {"assignor": "server"})
    assert await a.commit({a.owned[0]: 1}) == {a.owned[0]: KafkaError.NONE}
    assert (a.rebalances, b.rebalances) == before, "it takes effect with the next rebalance"
    led = a.led + b.led
    await operations.rebalance("g")
    await scene.until("they have joined again", lambda: a.rebalances > before[0] and b.rebalances > before[1])
    await scene.settled()
    assert a.led + b.led == led, "the service assigned"
