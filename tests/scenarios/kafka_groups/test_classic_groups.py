"""Classic members form a group, on both stores: they join, share partitions, leave, and commit."""

from __future__ import annotations

import anyio
import pytest

from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicOffset,
    ClassicState,
    KafkaError,
    OffsetDeletion,
    PartitionError,
)
from assigner.model.records import Offset, decode
from assigner.store import Found
from tests.scenarios.kafka_groups.conftest import ClassicScene
from tests.support.cluster import tp

pytestmark = pytest.mark.virtual_time


async def stored(scene: ClassicScene, partition: int) -> Offset | None:
    found = await scene.cluster.store.get(scene.cluster.keys.offset("g", tp(partition)))
    return decode(Offset, found.entry.value)[0] if isinstance(found, Found) else None


async def test_three_members_share_the_partitions(scene: ClassicScene) -> None:
    await scene.join("a", "b", "c")
    assert {len(one.owned) for one in scene.members.values()} == {2}


async def test_a_member_that_leaves_gives_its_partitions_to_the_others(scene: ClassicScene) -> None:
    _, b = await scene.join("a", "b")
    del scene.members["b"]
    assert await b.leave() is KafkaError.NONE
    await scene.settled()


async def test_a_member_that_is_killed_is_gone_when_its_session_is_over(scene: ClassicScene) -> None:
    _, b = await scene.join("a", "b", session=6.0)
    b.stop()
    del scene.members["b"]
    await scene.settled()
    assert await b.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID


async def test_a_commit_is_read_by_the_next_owner_and_says_who_made_it(scene: ClassicScene) -> None:
    a, b = await scene.join("a", "b")
    mine = a.owned[0]
    assert await a.commit({mine: 17}) == {mine: KafkaError.NONE}
    assert await b.fetch() == {mine: 17}
    record = await stored(scene, mine)
    assert record is not None
    assert (record.offset, record.generation, record.epoch) == (17, a.generation, 0)


async def test_what_is_left_of_an_older_generation_commits_nothing(scene: ClassicScene) -> None:
    [a] = await scene.join("a")
    late = a.commit_request({0: 5})
    await scene.join("b")
    groups = scene.cluster.instances["i1"].kafka_groups
    answer = await groups.commit("", late)
    assert answer.partitions == (PartitionError("t", 0, KafkaError.ILLEGAL_GENERATION),)
    assert await stored(scene, 0) is None


async def test_each_partition_of_a_commit_has_a_code_of_its_own(scene: ClassicScene) -> None:
    [a] = await scene.join("a")
    groups = scene.cluster.instances["i1"].kafka_groups
    offsets = (
        ClassicOffset(topic="t", partition=0, offset=1),
        ClassicOffset(topic="t", partition=1, offset=1, metadata="x" * 5_000),
        ClassicOffset(topic="no topic", partition=0, offset=1),
        ClassicOffset(topic="t", partition=-1, offset=1),
    )
    commit = ClassicCommit(group="g", offsets=offsets, member_id=a.member_id, generation=a.generation)
    answer = await groups.commit("", commit)
    assert [one.error for one in answer.partitions] == [
        KafkaError.NONE,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await a.fetch() == {0: 1}


async def test_a_consumer_in_no_group_commits_to_a_group_of_its_own(scene: ClassicScene) -> None:
    simple = scene.member("simple", group="alone")
    assert await simple.commit({0: 3}) == {0: KafkaError.NONE}
    assert await simple.fetch() == {0: 3}
    groups = scene.cluster.instances["i1"].kafka_groups
    await scene.until("it is listed", lambda: _names(scene) == {"alone"})
    assert (await groups.describe("", "alone")).state is ClassicState.EMPTY


def _names(scene: ClassicScene) -> frozenset[str]:
    return scene.cluster.instances["i1"].directory.names("classic")


async def test_organizations_have_groups_of_the_same_name_side_by_side(scene: ClassicScene) -> None:
    [a] = await scene.join("a")
    other = scene.member("other", org="acme")
    other.start(scene.cluster.tasks)
    await scene.until("it has all partitions", lambda: other.owned == tuple(range(6)))
    assert a.owned == tuple(range(6))
    await other.commit({0: 9})
    assert await a.fetch() == {}
    groups = scene.cluster.instances["i1"].kafka_groups
    await scene.until("both are known", lambda: _names(scene) == {"g", "acme/g"})
    for org in ("", "acme"):
        assert [(one.group, one.state) for one in (await groups.list_groups(org)).groups] == [
            ("g", ClassicState.STABLE)
        ]
    assert (await groups.list_groups("nobody")).groups == ()
    other.stop()


async def test_a_group_is_described_and_deleted_once_it_is_empty(scene: ClassicScene) -> None:
    [a] = await scene.join("a")
    groups = scene.cluster.instances["i1"].kafka_groups
    await a.commit({0: 3})
    described = await groups.describe("", "g")
    assert (described.state, described.protocol) == (ClassicState.STABLE, "range")
    assert [(one.member_id, one.client_id) for one in described.members] == [(a.member_id, "a")]
    assert await groups.delete("", "g") is KafkaError.NON_EMPTY_GROUP

    del scene.members["a"]
    await a.leave()
    assert await groups.delete("", "g") is KafkaError.NONE
    await scene.until("its leader let go of it", lambda: not groups.leads("", "g"))
    assert await a.fetch() == {}
    gone = await groups.describe("", "g")
    assert (gone.error, gone.state) == (KafkaError.GROUP_ID_NOT_FOUND, ClassicState.DEAD)
    assert await groups.delete("", "g") is KafkaError.GROUP_ID_NOT_FOUND
    left = await scene.cluster.store.list(scene.cluster.keys.kafka_groups())
    assert left.entries == ()


async def test_offsets_of_a_topic_are_deleted_unless_members_read_it(scene: ClassicScene) -> None:
    [a] = await scene.join("a")
    groups = scene.cluster.instances["i1"].kafka_groups
    commit = ClassicCommit(
        group="g",
        offsets=tuple(ClassicOffset(topic=topic, partition=0, offset=1) for topic in ("t", "old")),
        member_id=a.member_id,
        generation=a.generation,
    )
    await groups.commit("", commit)
    answer = await groups.delete_offsets("", OffsetDeletion(group="g", partitions=(("t", 0), ("old", 0))))
    assert [(one.topic, one.error) for one in answer.partitions] == [
        ("t", KafkaError.GROUP_SUBSCRIBED_TO_TOPIC),
        ("old", KafkaError.NONE),
    ]
    assert await a.fetch() == {0: 1}


async def test_a_group_that_nobody_knows_is_answered_as_by_kafka(scene: ClassicScene) -> None:
    stranger = scene.member("x", group="nobody")
    stranger.member_id, stranger.generation = "x-1", 3
    assert await stranger.heartbeat() is KafkaError.UNKNOWN_MEMBER_ID
    assert await stranger.commit({0: 1}) == {0: KafkaError.GROUP_ID_NOT_FOUND}
    assert await stranger.fetch() == {}


async def test_a_name_that_no_group_can_have_is_refused(scene: ClassicScene) -> None:
    groups = scene.cluster.instances["i1"].kafka_groups
    for name in ("", " ", "a\nb", "x" * 300, "consumers"):
        member = scene.member("x", group=name)
        assert (await groups.join("", member.join_request())).error is KafkaError.INVALID_GROUP_ID, name


async def test_who_stops_waiting_leaves_nothing_behind(scene: ClassicScene) -> None:
    await scene.join("a")
    groups = scene.cluster.instances["i1"].kafka_groups
    waiting = scene.member("b")
    with anyio.move_on_after(0.5 + scene.cluster.allowance / 10):
        await waiting.join()
    assert groups.held <= 1
    await scene.join("b")
    await scene.until("nobody waits", lambda: groups.held == 0)


async def test_offsets_that_fit_into_no_answer_are_refused_as_a_whole(
    scene: ClassicScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer leaves out would count as not committed."""
    [a] = await scene.join("a")
    await a.commit(dict.fromkeys(range(6), 1))
    groups = scene.cluster.instances["i1"].kafka_groups
    monkeypatch.setattr("assigner.offsets.fetch.MAX_PAGE", 2)
    every = ClassicFetch(group="g", every=True)
    assert len((await groups.fetch("", every)).offsets) == 6
    named = ClassicFetch(group="g", partitions=tuple(("t", number) for number in range(7)))
    assert [one.offset for one in (await groups.fetch("", named)).offsets] == [1] * 6 + [-1]
    monkeypatch.setattr("assigner.kafka_groups.service.MAX_FETCHED", 5)
    assert (await groups.fetch("", every)).error is KafkaError.MESSAGE_TOO_LARGE
