"""Calls that groups of both kinds have: every version is understood, and answered by who knows the group."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from assigner.auth.actions import Action
from assigner.auth.identity import Principal
from assigner.clock import SystemClock
from assigner.errors import SourceUnavailable, StoreUnavailable
from assigner.gateway.codec import decode_request, decode_response, encode, make, milliseconds64, nested, request_class
from assigner.gateway.groups import Listed, SharedCalls
from assigner.gateway.requests import Client, Request
from assigner.gateway.topics import KafkaTopic, KafkaTopics
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicGroupDescription,
    ClassicMemberDescription,
    ClassicState,
    CommitAnswer,
    FetchAnswer,
    FetchedOffset,
    KafkaError,
    OffsetDeletion,
    OffsetDeletionAnswer,
    PartitionError,
)

TOPIC_ID = uuid.uuid4()
UNKNOWN_ID = uuid.uuid4()


class Groups:
    """Groups of one kind that remember what they were asked."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls: list[Any] = []
        self.fails = False

    def _note(self, call: Any) -> None:
        self.calls.append(call)
        if self.fails:
            raise StoreUnavailable("the store is away")

    async def commit(self, request: Request, call: ClassicCommit) -> CommitAnswer:
        self._note(call)
        return CommitAnswer(
            partitions=tuple(PartitionError(one.topic, one.partition, KafkaError(0)) for one in call.offsets)
        )

    async def fetch(
        self, request: Request, call: ClassicFetch, member_id: str | None, member_epoch: int
    ) -> FetchAnswer:
        self._note((call, member_id, member_epoch))
        named = call.partitions or (("t", 0),)
        return FetchAnswer(
            offsets=tuple(
                FetchedOffset(topic=topic, partition=partition, offset=42, leader_epoch=3, metadata="m")
                for topic, partition in named
            )
        )

    async def listed(self, request: Request) -> Sequence[Listed]:
        self._note("listed")
        return [Listed(group=f"a {self.kind} group", state="Stable", kind=self.kind)]

    async def describe(self, request: Request, group: str) -> ClassicGroupDescription:
        self._note(group)
        if group == "unknown":
            return ClassicGroupDescription(group=group, error=KafkaError.GROUP_ID_NOT_FOUND)
        member = ClassicMemberDescription(member_id="m", client_id="app", client_host="/10.0.0.1")
        return ClassicGroupDescription(group=group, state=ClassicState.STABLE, members=(member,))

    async def delete(self, request: Request, group: str) -> KafkaError:
        self._note(group)
        return KafkaError.NONE

    async def delete_offsets(self, request: Request, call: OffsetDeletion) -> OffsetDeletionAnswer:
        self._note(call)
        return OffsetDeletionAnswer(partitions=(PartitionError("t", 0), PartitionError("t", 1, KafkaError(86))))


class Access:
    def __init__(self) -> None:
        self.denied: set[Action] = set()

    def reason(
        self,
        principal: Principal | None,
        action: Action,
        org: str,
        *,
        group: str | None = None,
        name: str | None = None,
        topic: str | None = None,
    ) -> str | None:
        return "denied" if action in self.denied else None


class Scene:
    def __init__(self) -> None:
        self.of = {"assigner": Groups("consumer"), "classic": Groups("classic")}
        self.unknown = Groups("unknown")
        self.listed: list[KafkaTopic] | None = None
        """What the brokers list; None: they are away."""
        topics = KafkaTopics(SystemClock(), self._list_topics)
        topics.learn([KafkaTopic("t", TOPIC_ID)])
        self.access = Access()
        self.calls = SharedCalls(self.of, self.unknown, self._kind, topics, lambda group: None)

    async def _list_topics(self) -> Sequence[KafkaTopic]:
        if self.listed is None:
            raise SourceUnavailable("the brokers are away")
        return self.listed

    async def _kind(self, group: str) -> str:
        return {"modern": "assigner", "old": "classic"}.get(group, "")

    async def call(self, api: int, version: int, **fields: Any) -> Any:
        """Call as over the wire: encoded and decoded on both ways."""
        sent = make(request_class(api, version), **fields)
        request = Request(Client(1, "test", "10.0.0.1", "", self.access), api, version, 1, "app", 0.0)
        handled = self.calls.handlers()[api]
        assert handled.first <= version <= handled.last
        answer = handled.handle(request, decode_request(api, version, encode(sent)))
        return decode_response(api, version, encode(await answer))  # type: ignore[misc]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def commit_fields(version: int, group: str = "modern", **more: Any) -> dict[str, Any]:
    schema = request_class(8, version)
    partition = make(
        nested(schema, "OffsetCommitRequestPartition"),
        partition_index=3,
        committed_offset=42,
        committed_leader_epoch=7,
        committed_metadata="m",
    )
    topic = make(nested(schema, "OffsetCommitRequestTopic"), name="t", topic_id=TOPIC_ID, partitions=(partition,))
    given = {
        "group_id": group,
        "generation_id_or_member_epoch": 5,
        "member_id": "m",
        "group_instance_id": None,
        "topics": (topic,),
    }
    if version <= 4:
        given["retention_time"] = milliseconds64(-1)
    return {**given, **more}


@pytest.mark.parametrize("version", range(2, 11))
async def test_commits_of_every_version(scene: Scene, version: int) -> None:
    answer = await scene.call(8, version, **commit_fields(version))

    (call,) = scene.of["assigner"].calls
    (offset,) = call.offsets
    assert (call.group, call.member_id, call.generation) == ("modern", "m", 5)
    assert call.knows_missing_groups == (version >= 9)
    assert (offset.topic, offset.partition, offset.offset, offset.metadata) == ("t", 3, 42, "m")
    assert offset.leader_epoch == (7 if version >= 6 else -1)
    (topic,) = answer.topics
    assert topic.topic_id == TOPIC_ID if version >= 10 else topic.name == "t"
    assert [(one.partition_index, int(one.error_code.value)) for one in topic.partitions] == [(3, 0)]


async def test_a_commit_by_an_id_that_nobody_knows_is_answered_by_itself(scene: Scene) -> None:
    fields = commit_fields(10)
    known = fields["topics"][0]
    unknown = make(type(known), topic_id=UNKNOWN_ID, partitions=known.partitions)
    answer = await scene.call(8, 10, **{**fields, "topics": (unknown, known)})

    assert [int(topic.partitions[0].error_code.value) for topic in answer.topics] == [100, 0]
    (call,) = scene.of["assigner"].calls
    assert len(call.offsets) == 1


@pytest.mark.parametrize(
    ("version", "every"),
    [(version, every) for version in range(1, 11) for every in (False, True) if version > 1 or not every],
)
async def test_fetches_of_every_version(scene: Scene, version: int, every: bool) -> None:
    schema = request_class(9, version)
    if version >= 8:
        topic = make(nested(schema, "OffsetFetchRequestTopics"), name="t", topic_id=TOPIC_ID, partition_indexes=(0, 1))
        group = make(
            nested(schema, "OffsetFetchRequestGroup"),
            group_id="modern",
            member_id="m" if version >= 9 else None,
            member_epoch=5,
            topics=None if every else (topic,),
        )
        answer = await scene.call(9, version, groups=(group,), require_stable=False)
        (found,) = answer.groups
    else:
        topic = make(nested(schema, "OffsetFetchRequestTopic"), name="t", partition_indexes=(0, 1))
        topics = None if every else (topic,)
        found = await scene.call(9, version, group_id="modern", topics=topics, require_stable=False)

    ((call, member_id, epoch),) = scene.of["assigner"].calls
    assert (call.every, call.partitions) == (every, () if every else (("t", 0), ("t", 1)))
    assert (member_id, epoch) == (("m", 5) if version >= 9 else (None, -1))
    (topic,) = found.topics
    assert topic.topic_id == TOPIC_ID if version >= 10 else topic.name == "t"
    assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [
        (number, 42) for number in ((0,) if every else (0, 1))
    ]


async def test_offsets_of_a_deleted_topic_are_gone(scene: Scene) -> None:
    scene.listed = [KafkaTopic("another", UNKNOWN_ID)]
    topic = make(nested(request_class(9, 5), "OffsetFetchRequestTopic"), name="t", partition_indexes=(0,))

    named = await scene.call(9, 5, group_id="modern", topics=(topic,), require_stable=False)
    assert [one.committed_offset for one in named.topics[0].partitions] == [-1]
    assert not (await scene.call(9, 5, group_id="modern", topics=None, require_stable=False)).topics


@pytest.mark.parametrize("version", range(1, 8))
async def test_a_store_that_is_away_is_said_in_every_version_of_a_fetch(scene: Scene, version: int) -> None:
    scene.of["assigner"].fails = True
    topic = make(nested(request_class(9, version), "OffsetFetchRequestTopic"), name="t", partition_indexes=(0,))
    answer = await scene.call(9, version, group_id="modern", topics=(topic,), require_stable=False)

    if version == 1:
        assert int(answer.topics[0].partitions[0].error_code.value) == 14
    else:
        assert int(answer.error_code.value) == 14


@pytest.mark.parametrize("version", range(6))
async def test_groups_of_both_kinds_are_listed(scene: Scene, version: int) -> None:
    answer = await scene.call(16, version, states_filter=(), types_filter=())

    assert [one.group_id for one in answer.groups] == ["a classic group", "a consumer group"]
    if version >= 5:
        assert [one.group_type for one in answer.groups] == ["classic", "consumer"]


async def test_a_listing_is_filtered_by_type_and_state(scene: Scene) -> None:
    by_type = await scene.call(16, 5, states_filter=("stable",), types_filter=("Classic",))
    by_state = await scene.call(16, 5, states_filter=("Empty",), types_filter=())

    assert [one.group_id for one in by_type.groups] == ["a classic group"]
    assert not by_state.groups


@pytest.mark.parametrize("version", range(7))
async def test_descriptions_of_every_version(scene: Scene, version: int) -> None:
    answer = await scene.call(15, version, groups=("old", "unknown"), include_authorized_operations=False)
    known, unknown = answer.groups

    assert (known.group_state, [one.member_id for one in known.members]) == ("Stable", ["m"])
    assert scene.of["classic"].calls == ["old"]
    assert (unknown.group_state, int(unknown.error_code.value)) == ("Dead", 69 if version >= 6 else 0)


@pytest.mark.parametrize("version", range(3))
async def test_each_group_is_deleted_by_its_kind(scene: Scene, version: int) -> None:
    answer = await scene.call(42, version, groups_names=("modern", "old", "unknown"))

    assert [int(one.error_code.value) for one in answer.results] == [0, 0, 0]
    assert [one.calls for one in (*scene.of.values(), scene.unknown)] == [["modern"], ["old"], ["unknown"]]


async def test_offsets_are_deleted_partition_by_partition(scene: Scene) -> None:
    schema = request_class(47, 0)
    partitions = tuple(make(nested(schema, "OffsetDeleteRequestPartition"), partition_index=at) for at in (0, 1))
    topic = make(nested(schema, "OffsetDeleteRequestTopic"), name="t", partitions=partitions)
    answer = await scene.call(47, 0, group_id="old", topics=(topic,))

    assert scene.of["classic"].calls == [OffsetDeletion(group="old", partitions=(("t", 0), ("t", 1)))]
    assert [int(one.error_code.value) for one in answer.topics[0].partitions] == [0, 86]


async def test_what_a_client_may_not_do_is_answered_with_30(scene: Scene) -> None:
    scene.access.denied = set(Action)
    group = make(
        nested(request_class(9, 9), "OffsetFetchRequestGroup"),
        group_id="modern",
        member_id=None,
        member_epoch=-1,
        topics=None,
    )

    commit = await scene.call(8, 9, **commit_fields(9))
    assert int(commit.topics[0].partitions[0].error_code.value) == 30
    fetch = await scene.call(9, 9, groups=(group,), require_stable=False)
    assert int(fetch.groups[0].error_code.value) == 30
    described = await scene.call(15, 5, groups=("old",), include_authorized_operations=False)
    assert int(described.groups[0].error_code.value) == 30
    deleted = await scene.call(42, 2, groups_names=("old",))
    assert int(deleted.results[0].error_code.value) == 30
    assert int((await scene.call(47, 0, group_id="old", topics=())).error_code.value) == 30
    assert not any(one.calls for one in scene.of.values())
