"""What any instance tells of classic Kafka groups: the last generation on record, whoever leads the group."""

from __future__ import annotations

import msgspec
import pytest

from assigner.admin.classic import read_classic
from assigner.core.kafka_groups.classic.records import Layout, pack
from assigner.errors import UnknownTopic
from assigner.instance import Instance
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicMemberRecord, ClassicState
from assigner.model.records import GroupIndex, encode
from assigner.storage.kinds import CLASSIC
from tests.support.cluster import Cluster

GROUP = "acme/readers"
RECORD = ClassicGroupRecord(
    generation=7,
    protocol_type="consumer",
    protocol="range",
    leader="m-1",
    members=tuple(
        ClassicMemberRecord(
            member_id=f"m-{number}",
            session_timeout=10_000,
            rebalance_timeout=10_000,
            client_id="app",
            client_host="10.0.0.7",
            protocols=(("sticky", b"s"), ("range", b"r")),
            assignment=b"a",
        )
        for number in range(3)
    ),
)


async def put(cluster: Cluster, record: ClassicGroupRecord) -> None:
    keys = cluster.keys
    await cluster.store.put(keys.group_index(GROUP), encode(GroupIndex(group=GROUP, kind=CLASSIC)))
    packed = pack(record, Layout(), 0)
    for number, block in packed.blocks:
        await cluster.store.put(keys.kafka_members(GROUP, number), encode(block))
    await cluster.store.put(keys.kafka_state(GROUP), encode(packed.state))


@pytest.fixture
async def instance(any_cluster: Cluster) -> Instance:
    return await any_cluster.start_instance("i1", leads=False)


async def test_it_is_listed_and_described_as_on_record(any_cluster: Cluster, instance: Instance) -> None:
    await put(any_cluster, RECORD)
    (listed,) = await instance.operations.groups()
    assert (listed.group, listed.kind, listed.state) == (GROUP, CLASSIC, "Stable")
    assert (listed.consumers, listed.generation, listed.unowned) == (3, 7, 0)
    described = await instance.operations.describe(GROUP)
    assert described.summary == listed
    assert described.classic is not None
    assert described.classic.protocol == "range"
    assert [one.member_id for one in described.classic.members] == ["m-0", "m-1", "m-2"]
    assert {one.metadata for one in described.classic.members} == {b"r"}, "for the protocol that was chosen"


async def test_a_group_that_has_no_members_is_empty(any_cluster: Cluster, instance: Instance) -> None:
    await put(any_cluster, msgspec.structs.replace(RECORD, members=()))
    described = await instance.operations.describe(GROUP)
    assert described.classic is not None
    assert described.classic.state is ClassicState.EMPTY
    await any_cluster.store.delete(any_cluster.keys.kafka_state(GROUP))
    described = await instance.operations.describe(GROUP)
    assert described.classic is not None
    assert described.classic.state is ClassicState.EMPTY


async def test_a_large_group_is_read_from_all_its_records(any_cluster: Cluster, instance: Instance) -> None:
    (member, *_) = RECORD.members
    large = tuple(
        msgspec.structs.replace(member, member_id=f"m-{number}", protocols=(("range", b"r" * 60_000),))
        for number in range(12)
    )
    await put(any_cluster, msgspec.structs.replace(RECORD, members=large))
    found = await read_classic(any_cluster.store, any_cluster.keys, GROUP)
    assert found is not None
    assert [one.member_id for one in found.members] == [one.member_id for one in large]
    assert (await instance.operations.groups())[0].consumers == 12


async def test_a_record_that_can_not_be_read_is_told_of_and_hides_no_other_group(
    any_cluster: Cluster, instance: Instance
) -> None:
    await put(any_cluster, RECORD)
    await any_cluster.store.put(any_cluster.keys.kafka_state(GROUP), b"{")
    await instance.operations.set_topic("other", "t", 1)
    assert {one.group: one.state for one in await instance.operations.groups()} == {GROUP: "Dead", "other": ""}
    described = await instance.operations.describe(GROUP)
    assert any(any_cluster.keys.kafka_state(GROUP) in line for line in described.unreadable)


async def test_a_topic_is_found_as_for_a_consumer(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance("i1", topics={"g": {"t": 5}})
    found = await instance.operations.find_topic("g", "t")
    assert (found.partition_count, found.source) == (5, "settings")
    with pytest.raises(UnknownTopic):
        await instance.operations.find_topic("g", "u")
