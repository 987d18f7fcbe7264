"""Offsets over gRPC: what is taken, what is refused and why, and how answers of any length come back."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner.api import CommitRefusal, FoundOffsets, NewOffset, OffsetCommit, RefusedCommit, WantedOffsets
from assigner.model.keys import TopicPartition
from assigner.model.records import Offset
from assigner.proto.kafka_assigner import v1
from assigner.server.services.offsets import MAX_METADATA, MAX_PARTITIONS
from tests.support.fakes.grpc_serving import Serving


async def refused(call: object) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call  # type: ignore[misc]
    return caught.value


def offsets(topic: str = "t", *triples: tuple[int, int, int], **fields: object) -> v1.TopicOffsets:
    partitions, epochs, values = zip(*triples, strict=True) if triples else ((), (), ())
    lists = {"partitions": list(partitions), "epochs": list(epochs), "offsets": list(values)}
    return v1.TopicOffsets(topic=topic, **{**lists, **fields})  # type: ignore[arg-type]


def commit(*topics: v1.TopicOffsets) -> v1.CommitOffsetsRequest:
    return v1.CommitOffsetsRequest(consumer_name="c", group="g", session="s", topics=list(topics))


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


# --- committing --------------------------------------------------------------------------------------------------


async def test_a_commit_reaches_the_keeper_with_everything_it_says(service: Serving) -> None:
    full = offsets("t", (3, 7, 42), (4, 8, 2**63 - 1), leader_epochs=[5, -1], metadata=["m", ""])
    response = await service.consumer().commit_offsets(commit(full, offsets("u", (0, 1, 0))))
    assert (response.committed, response.refused) == (3, [])
    expected = (
        OffsetCommit(tp(3), 7, 42, 5, "m"),
        OffsetCommit(tp(4), 8, 2**63 - 1, -1, ""),
        OffsetCommit(tp(0, "u"), 1, 0, -1, ""),
    )
    assert service.offsets.commits == [("g", "c", "s", expected)]


async def test_refusals_of_a_kind_are_grouped(service: Serving) -> None:
    service.offsets.refused = [
        RefusedCommit(tp(1), CommitRefusal.FENCED, 9, "b"),
        RefusedCommit(tp(2), CommitRefusal.FAILED, reason="no room"),
        RefusedCommit(tp(3), CommitRefusal.FENCED, 11, "b"),
        RefusedCommit(tp(9), CommitRefusal.UNKNOWN_PARTITION),
    ]
    request = commit(offsets("t", *((number, 1, 1) for number in range(10))))
    response = await service.consumer().commit_offsets(request)
    assert response.committed == 6
    assert response.refused == [
        v1.RefusedOffsets(topic="t", why=v1.CommitRefusal.FENCED, partitions=[1, 3], epochs=[9, 11], owner="b"),
        v1.RefusedOffsets(
            topic="t", why=v1.CommitRefusal.FAILED, partitions=[2], epochs=[0], owner="", reason="no room"
        ),
        v1.RefusedOffsets(topic="t", why=v1.CommitRefusal.UNKNOWN_PARTITION, partitions=[9], epochs=[0]),
    ]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (commit(), "topics is empty"),
        (commit(offsets("t")), "topics is empty"),
        (commit(offsets("t", (0, 1, -1))), "topics[0].offsets[0] is -1"),
        (commit(offsets("t", (0, 1, 1), leader_epochs=[-2])), "topics[0].leader_epochs[0] is -2"),
        (commit(offsets("t", (0, 1, 1), epochs=[])), "topics[0] has 1 partitions and 0 epochs"),
        (commit(offsets("t", (0, 1, 1), offsets=[1, 2])), "topics[0] has 1 partitions and 2 offsets"),
        (commit(offsets("t", (0, 1, 1), metadata=["a", "b"])), "topics[0] has 1 partitions and 2 metadata"),
        (commit(offsets("t", (0, 1, 1), leader_epochs=[1, 1])), "1 partitions and 2 leader_epochs"),
        (commit(offsets("t", (0, 1, 1)), offsets("t", (0, 1, 2))), "topics[1] names partition t/0 again"),
        (commit(offsets("a/b", (0, 1, 1))), "not a Kafka topic name"),
        (commit(offsets("t", (2**32 - 1, 1, 1))), "out of range"),
        (commit(offsets("t", (0, 1, 1), metadata=["é" * (MAX_METADATA // 2) + "x"])), "4097 bytes long"),
        (v1.CommitOffsetsRequest(topics=[offsets("t", (0, 1, 1))]), "consumer_name is empty"),
    ],
)
async def test_what_is_not_a_commit_is_refused_by_the_name_of_its_field(
    service: Serving, request_: v1.CommitOffsetsRequest, says: str
) -> None:
    refusal = await refused(service.consumer().commit_offsets(request_))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert says in (refusal.message or "")
    assert service.offsets.commits == []


async def test_metadata_of_the_full_length_is_taken(service: Serving) -> None:
    response = await service.consumer().commit_offsets(commit(offsets("t", (0, 1, 1), metadata=["x" * MAX_METADATA])))
    assert response.committed == 1


def many(count: int) -> list[v1.TopicOffsets]:
    lists = [range(start, min(start + 1000, count)) for start in range(0, count, 1000)]
    return [offsets("t", *((number, 1, number) for number in part)) for part in lists]


async def test_ten_thousand_partitions_are_one_call_and_one_more_is_refused(service: Serving) -> None:
    response = await service.consumer().commit_offsets(commit(*many(MAX_PARTITIONS)))
    assert response.committed == MAX_PARTITIONS
    refusal = await refused(service.consumer().commit_offsets(commit(*many(MAX_PARTITIONS + 1))))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert f"at most {MAX_PARTITIONS} fit in one" in (refusal.message or "")


# --- fetching ----------------------------------------------------------------------------------------------------


async def test_found_offsets_are_returned_with_epochs_and_missing_ones_as_minus_one(service: Serving) -> None:
    found = Offset(offset=42, epoch=7, leader_epoch=3, metadata="m", committed_at=99)
    service.offsets.found = FoundOffsets(
        ((tp(3), found), (tp(4), None), (tp(0, "u"), Offset(offset=1, epoch=2))), unreadable=(tp(5),), last=tp(0, "u")
    )
    wanted = [v1.TopicPartitions(topic="t", partitions=[3, 4, 5]), v1.TopicPartitions(topic="u", partitions=[0, 0])]
    response = await service.consumer().fetch_offsets(v1.FetchOffsetsRequest(group="g", topics=wanted))
    assert service.offsets.asked == [("g", WantedOffsets((tp(3), tp(4), tp(5), tp(0, "u"))))]
    assert response.topics == [
        v1.TopicOffsets(
            topic="t",
            partitions=[3, 4],
            epochs=[7, 0],
            offsets=[42, -1],
            leader_epochs=[3, -1],
            metadata=["m", ""],
            committed_at=[99, 0],
        ),
        v1.TopicOffsets(topic="u", partitions=[0], epochs=[2], offsets=[1], committed_at=[0]),
    ]
    assert response.last == v1.TopicPartition(topic="u", partition=0)
    assert response.unreadable == [v1.TopicPartition(topic="t", partition=5)]


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (v1.FetchOffsetsRequest(), WantedOffsets()),
        (v1.FetchOffsetsRequest(topics=[v1.TopicPartitions(topic="t")]), WantedOffsets(topics=("t",))),
        (
            v1.FetchOffsetsRequest(after=v1.TopicPartition(topic="t", partition=9)),
            WantedOffsets(after=TopicPartition("t", 9)),
        ),
    ],
)
async def test_whole_topics_and_whole_groups_may_be_asked_for(
    service: Serving, request_: v1.FetchOffsetsRequest, wanted: WantedOffsets
) -> None:
    response = await service.consumer().fetch_offsets(request_)
    assert service.offsets.asked == [("default", wanted)]
    assert response.last is None


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (
            v1.FetchOffsetsRequest(
                topics=[v1.TopicPartitions(topic="t", partitions=[1]), v1.TopicPartitions(topic="u")]
            ),
            "one kind at a time",
        ),
        (
            v1.FetchOffsetsRequest(
                topics=[v1.TopicPartitions(topic="t", partitions=[1])], after=v1.TopicPartition(topic="t")
            ),
            "after does not go with named partitions",
        ),
        (
            v1.FetchOffsetsRequest(topics=[v1.TopicPartitions(topic="t")], after=v1.TopicPartition(topic="u")),
            "after names topic 'u'",
        ),
        (v1.FetchOffsetsRequest(topics=[v1.TopicPartitions(partitions=[1])]), "topic"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    service: Serving, request_: v1.FetchOffsetsRequest, says: str
) -> None:
    refusal = await refused(service.consumer().fetch_offsets(request_))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert says in (refusal.message or "")


async def test_asking_for_more_than_ten_thousand_is_refused(service: Serving) -> None:
    lists = [v1.TopicPartitions(topic="t", partitions=list(range(1000)))] * 11
    refusal = await refused(service.consumer().fetch_offsets(v1.FetchOffsetsRequest(topics=lists)))
    assert refusal.status is Status.RESOURCE_EXHAUSTED


# --- operators ---------------------------------------------------------------------------------------------------


async def test_an_operators_offsets_reach_the_administration(service: Serving) -> None:
    new = v1.NewOffsets(topic="t", partitions=[1, 2], offsets=[17, -1])
    response = await service.admin().set_offsets(v1.SetOffsetsRequest(group="g", topics=[new], force=True))
    assert response.partitions == 2
    assert service.administration.offsets_set == [("g", {tp(1): NewOffset(17), tp(2): None}, True)]


async def test_an_operators_offsets_may_have_leader_epochs_and_metadata(service: Serving) -> None:
    new = v1.NewOffsets(topic="t", partitions=[1, 2], offsets=[17, 18], leader_epochs=[4, -1], metadata=["m", ""])
    await service.admin().set_offsets(v1.SetOffsetsRequest(group="g", topics=[new]))
    assert service.administration.offsets_set == [("g", {tp(1): NewOffset(17, 4, "m"), tp(2): NewOffset(18)}, False)]


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (v1.NewOffsets(topic="t", partitions=[1], offsets=[1], leader_epochs=[-2]), "topics[0].leader_epochs[0] is -2"),
        (v1.NewOffsets(topic="t", partitions=[1], offsets=[1], metadata=["a", "b"]), "1 partitions and 2 metadata"),
        (v1.NewOffsets(topic="t", partitions=[1], offsets=[-2]), "topics[0].offsets[0] is -2"),
        (v1.NewOffsets(topic="t", partitions=[1]), "topics[0] has 1 partitions and 0 offsets"),
        (v1.NewOffsets(topic="t", partitions=[1, 1], offsets=[1, 2]), "names partition t/1 again"),
    ],
)
async def test_what_an_operator_may_not_set_is_named(service: Serving, new: v1.NewOffsets, says: str) -> None:
    refusal = await refused(service.admin().set_offsets(v1.SetOffsetsRequest(topics=[new])))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert says in (refusal.message or "")
