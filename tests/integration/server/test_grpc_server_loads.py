"""Loads over gRPC: what is taken, what is refused and why, and the client that reports them."""

from __future__ import annotations

import anyio.to_thread
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner import api
from assigner.api import LoadReport, TopicLoads, Weights
from assigner.client import AssignerConsumer, Handler, TopicPartition
from assigner.client.rpc import LOADS_PER_CALL, LOADS_PER_LIST, load_messages
from assigner.embedded import EmbeddedAssigner
from assigner.errors import InvalidInput
from assigner.proto.kafka_assigner import v1
from assigner.server.services.loads import DAY, MAX_LISTED, MAX_PUBLISHED, MAX_REPORTED
from tests.support.fakes.grpc_serving import Serving

NAN, INF = float("nan"), float("inf")


async def refused(call: object) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call  # type: ignore[misc]
    return caught.value


def loads(topic: str, *pairs: tuple[int, float]) -> v1.TopicLoads:
    return v1.TopicLoads(topic=topic, partitions=[p for p, _ in pairs], loads=[load for _, load in pairs])


# --- reports -----------------------------------------------------------------------------------------------------


async def test_a_report_reaches_the_members(service: Serving) -> None:
    request = v1.ReportLoadRequest(
        consumer_name="c", group="g", session="s", topics=[loads("t", (3, 1.5), (4, 0.0))], node_load=0.0
    )
    response = await service.consumer().report_load(request)
    assert (response.taken, response.next_report_ms) == (2, 15_000)
    assert service.members.reported == [("g", "c", "s", LoadReport((TopicLoads("t", (3, 4), (1.5, 0.0)),), 0.0))]


async def test_a_node_that_says_nothing_of_itself_is_not_taken_for_idle(service: Serving) -> None:
    await service.consumer().report_load(v1.ReportLoadRequest(consumer_name="c"))
    assert service.members.reported[0][3].node is None


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (v1.ReportLoadRequest(consumer_name="c", topics=[loads("t", (0, NAN))]), "topics[0].loads[0] is nan"),
        (v1.ReportLoadRequest(consumer_name="c", topics=[loads("t", (0, 1), (1, -1))]), "topics[0].loads[1] is -1"),
        (v1.ReportLoadRequest(consumer_name="c", topics=[loads("t", (0, INF))]), "topics[0].loads[0] is inf"),
        (v1.ReportLoadRequest(consumer_name="c", topics=[loads("t", (0, 1e16))]), "topics[0].loads[0] is 1e+16"),
        (v1.ReportLoadRequest(consumer_name="c", node_load=NAN), "node_load is nan"),
        (v1.ReportLoadRequest(consumer_name="c", node_load=-0.5), "node_load is -0.5"),
        (
            v1.ReportLoadRequest(consumer_name="c", topics=[v1.TopicLoads(topic="t", partitions=[1])]),
            "topics[0] has 1 partitions and 0 loads",
        ),
        (v1.ReportLoadRequest(consumer_name="c", topics=[loads("a/b", (0, 1))]), "not a Kafka topic name"),
        (v1.ReportLoadRequest(consumer_name="c", topics=[loads("t", (2**32 - 1, 1))]), "out of range"),
        (v1.ReportLoadRequest(), "consumer_name is empty"),
    ],
)
async def test_what_is_not_a_load_is_refused_by_the_name_of_its_field(
    service: Serving, request_: v1.ReportLoadRequest, says: str
) -> None:
    refusal = await refused(service.consumer().report_load(request_))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert says in (refusal.message or "")
    assert not service.members.reported


async def test_a_report_of_too_many_partitions_is_refused(service: Serving) -> None:
    full = [loads("t", *((partition, 1.0) for partition in range(1_000)))] * (MAX_REPORTED // 1_000)
    assert (await service.consumer().report_load(v1.ReportLoadRequest(consumer_name="c", topics=full))).taken
    one_more = v1.ReportLoadRequest(consumer_name="c", topics=[*full, loads("t", (0, 1.0))])
    refusal = await refused(service.consumer().report_load(one_more))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "make several calls" in (refusal.message or "")


async def test_a_list_of_loads_longer_than_any_list_may_be_is_refused(service: Serving) -> None:
    long = loads("t", *((partition, 1.0) for partition in range(1_001)))
    refusal = await refused(service.consumer().report_load(v1.ReportLoadRequest(consumer_name="c", topics=[long])))
    assert refusal.status is Status.RESOURCE_EXHAUSTED


# --- weights -----------------------------------------------------------------------------------------------------


async def test_weights_reach_the_administration_and_are_valid_for_a_day_by_default(service: Serving) -> None:
    run = v1.TopicWeights(topic="t", first=5, weights=[1.0, 2.0])
    response = await service.admin().set_loads(v1.SetLoadsRequest(group="g", weights=[run]))
    assert response.partitions == 2
    await service.admin().set_loads(v1.SetLoadsRequest(group="g", weights=[run], valid_for=7, keep_others=True))
    weights = (Weights("t", 5, (1.0, 2.0)),)
    assert service.administration.published == [("g", weights, DAY, False), ("g", weights, 7.0, True)]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (v1.SetLoadsRequest(), "weights is required"),
        (v1.SetLoadsRequest(weights=[v1.TopicWeights(topic="t", weights=[1, NAN])]), "weights[0].weights[1] is nan"),
        (v1.SetLoadsRequest(weights=[v1.TopicWeights(topic="t", weights=[-1])]), "weights[0].weights[0] is -1"),
        (v1.SetLoadsRequest(weights=[v1.TopicWeights(weights=[1])]), "topic is empty"),
        (v1.SetLoadsRequest(weights=[v1.TopicWeights(topic="t", first=2**32 - 1, weights=[1])]), "weights[0].first"),
        (v1.SetLoadsRequest(weights=[v1.TopicWeights(topic="t", weights=[1])], valid_for=-1), "valid_for is -1"),
        (v1.SetLoadsRequest(weights=[v1.TopicWeights(topic="t", weights=[1])], valid_for=1e9), "valid_for is 1"),
        (v1.SetLoadsRequest(weights=[v1.TopicWeights(topic="t", weights=[1])], valid_for=NAN), "valid_for is nan"),
    ],
)
async def test_weights_that_make_no_sense_are_refused(
    service: Serving, request_: v1.SetLoadsRequest, says: str
) -> None:
    refusal = await refused(service.admin().set_loads(request_))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert says in (refusal.message or "")
    assert not service.administration.published


async def test_more_weights_than_one_call_may_have_are_refused(service: Serving) -> None:
    runs = [v1.TopicWeights(topic="t", first=n, weights=[1.0] * 1_000) for n in range(MAX_PUBLISHED // 1_000)]
    request = v1.SetLoadsRequest(weights=[*runs, v1.TopicWeights(topic="t", weights=[1.0])])
    assert (await refused(service.admin().set_loads(request))).status is Status.RESOURCE_EXHAUSTED


async def test_a_description_distinguishes_an_unknown_node_from_an_idle_one(service: Serving) -> None:
    service.administration.load_description = api.LoadDescription(
        used=True,
        fallback="",
        partitions=4,
        known=3,
        total=8.0,
        at=7,
        heaviest=(api.PartitionLoad(TopicPartition("t", 1), 5.0, 0.625, "a"),),
        busiest=(api.NodeLoad("a", 0.0, 2, 0.75), api.NodeLoad("b", NAN, 2, 0.25)),
        unreadable=("x",),
    )
    told = await service.admin().describe_loads(v1.DescribeLoadsRequest(group="g"))
    assert [(one.consumer, one.busy) for one in told.busiest] == [("a", 0.0), ("b", None)]
    assert (told.heaviest[0].topic, told.heaviest[0].partition, told.heaviest[0].owner) == ("t", 1, "a")


async def test_no_more_lines_are_listed_than_the_limit(service: Serving) -> None:
    refusal = await refused(service.admin().describe_loads(v1.DescribeLoadsRequest(limit=MAX_LISTED + 1)))
    assert refusal.status is Status.INVALID_ARGUMENT


# --- the client --------------------------------------------------------------------------------------------------


async def test_a_consumer_reports_to_the_real_service() -> None:
    assigner = EmbeddedAssigner(topics={"g": {"t": 4}})
    await anyio.to_thread.run_sync(assigner.__enter__)
    try:
        async with AssignerConsumer(assigner.address, "g", "c", ["t"], Handler()) as consumer:
            await consumer.wait_for(lambda one: len(one.partitions) == 4)
            pause = await consumer.report_load(dict.fromkeys(consumer.partitions, 2.0), node=0.5)
            assert pause == 15.0
            with pytest.raises(InvalidInput, match="t/0 is nan"):
                await consumer.report_load({TopicPartition("t", 0): NAN})
    finally:
        await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)


def test_many_loads_are_reported_in_several_calls_of_short_lists() -> None:
    many = {TopicPartition(f"t{n % 3}", n): float(n) for n in range(2 * LOADS_PER_CALL + 1)}
    parts = list(load_messages(many, 0.5))
    assert [node for _, node in parts] == [0.5, None, None]
    assert max(len(told.partitions) for topics, _ in parts for told in topics) == LOADS_PER_LIST
    again = {
        TopicPartition(told.topic, partition): load
        for topics, _ in parts
        for told in topics
        for partition, load in zip(told.partitions, told.loads, strict=True)
    }
    assert again == many


def test_a_nodes_load_alone_is_a_report_too() -> None:
    assert list(load_messages({}, 0.5)) == [([], 0.5)]
    with pytest.raises(InvalidInput, match="the load of node"):
        list(load_messages({}, -1.0))
