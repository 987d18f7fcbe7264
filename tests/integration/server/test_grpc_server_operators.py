"""What operators and their tools use: the Admin service, health, reflection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_grpc import ServerReflectionStub
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest

from assigner import api
from assigner.model.keys import TopicPartition
from assigner.model.records import (
    Cause,
    Consumer,
    GroupOptions,
    Handoff,
    HandoffMode,
    Move,
    Quarantined,
    TopicConfig,
)
from assigner.model.records import (
    Status as ConsumerStatus,
)
from assigner.proto.kafka_assigner import v1
from assigner.server.services.group_description import described
from tests.support.fakes.grpc_serving import Serving, eventually, serving
from tests.support.measurement import counted_calls


async def refusal_of(call: Any) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value


# --- admin -------------------------------------------------------------------------------------------------------


async def test_a_topic_is_set_and_listed(service: Serving) -> None:
    admin = service.admin()
    response = await admin.set_topic(v1.SetTopicRequest(topic="orders", partitions=12))
    assert response.topic is not None
    assert (response.topic.name, response.topic.partitions, response.topic.source) == ("orders", 12, "admin")
    listed = (await admin.list_topics(v1.ListTopicsRequest())).topics
    assert [(topic.name, topic.partitions) for topic in listed] == [("orders", 12)]


@pytest.mark.parametrize(
    "request_",
    [
        v1.SetTopicRequest(topic="orders"),
        v1.SetTopicRequest(topic="or/ders", partitions=1),
        v1.SetTopicRequest(topic="orders", partitions=2**32 - 1),
        v1.SetTopicRequest(topic="orders", partitions=1, group="config"),
    ],
)
async def test_a_bad_topic_is_refused(service: Serving, request_: v1.SetTopicRequest) -> None:
    assert (await refusal_of(service.admin().set_topic(request_))).status is Status.INVALID_ARGUMENT


async def test_ten_thousand_topics_are_listed(service: Serving) -> None:
    service.administration.configs = {f"t{n}": TopicConfig(topic=f"t{n}", partition_count=n + 1) for n in range(10_000)}
    listed = (await service.admin().list_topics(v1.ListTopicsRequest())).topics
    assert len(listed) == 10_000
    assert listed[-1].partitions == 10_000


def summary(**changes: Any) -> api.GroupSummary:
    values: dict[str, Any] = {
        "group": "billing",
        "leader": "i-1",
        "consumers": 2,
        "topics": 1,
        "partitions": 3,
        "unowned": 1,
        "handoffs": 1,
        "generation": 9,
        "paused": True,
    }
    return api.GroupSummary(**(values | changes))


async def test_groups_are_listed(service: Serving) -> None:
    service.administration.summaries = [summary(), summary(group="other")]
    groups = (await service.admin().list_groups(v1.ListGroupsRequest())).groups
    assert [group.group for group in groups] == ["billing", "other"]
    assert (groups[0].leader, groups[0].generation, groups[0].paused) == ("i-1", 9, True)


def description(owned: int = 2) -> api.GroupDescription:
    return api.GroupDescription(
        summary=summary(),
        leader_address="10.0.0.1:50051",
        epoch_floor=4,
        options=GroupOptions(strategy_options={"k": 1}, copartitioned=(("a", "b"),)),
        members=(
            api.Member(
                Consumer(
                    consumer_name="c-1",
                    session="s",
                    status=ConsumerStatus.DRAINING,
                    capacity=2.0,
                    topics=("orders",),
                    evicted="late",
                    explicit_topics=True,
                    cold=True,
                    release_timeout=90.0,
                ),
                owned=2,
                warming=1,
                releasing=0,
            ),
        ),
        topics=(TopicConfig(topic="orders", partition_count=3, topic_id="id", source="kafka"),),
        ownership=tuple(
            api.PartitionOwner(TopicPartition(f"t{n // 5_000}", n % 5_000), f"c-{n % 100}", "s", n + 1)
            for n in range(owned)
        ),
        handoffs=(
            Handoff(
                topic="orders",
                partition=2,
                old_owner="c-1",
                new_owner="c-2",
                handoff_id="h",
                cause=Cause.ROLLOUT,
                started_at=7,
            ),
        ),
        quarantined=(Quarantined(topic="orders", partition=1, failed=("c-1", "c-2"), reason="disk"),),
        unreadable=("/k: not JSON",),
        history=(Move(at=5, topic="orders", partition=0, old="a", new="b", cause=Cause.LOAD, generation=8, epoch=3),),
    )


async def test_a_group_is_described_in_full(service: Serving) -> None:
    service.administration.descriptions["billing"] = description()
    found = await service.admin().describe_group(v1.DescribeGroupRequest(group="billing"))
    assert found.summary is not None
    assert (found.summary.group, found.leader_address, found.epoch_floor) == ("billing", "10.0.0.1:50051", 4)
    [consumer] = found.consumers
    assert (consumer.name, consumer.status, consumer.capacity, consumer.evicted) == ("c-1", "Draining", 2.0, "late")
    assert (consumer.explicit_topics, consumer.cold, consumer.release_timeout) == (True, True, 90.0)
    assert (consumer.owned, consumer.warming, list(consumer.topics)) == (2, 1, ["orders"])
    assert found.owners == ["c-0", "c-1"]
    [owned] = found.ownership
    assert (owned.topic, owned.partitions, owned.owners, owned.epochs) == ("t0", [0, 1], [0, 1], [1, 2])
    [handoff] = found.handoffs
    assert (handoff.step, handoff.cause, handoff.new_owner, handoff.started_at) == ("warming", "rollout", "c-2", 7)
    [quarantined] = found.quarantined
    assert (quarantined.failed, quarantined.reason) == (["c-1", "c-2"], "disk")
    [move] = found.history
    assert (move.old_owner, move.new_owner, move.cause, move.epoch) == ("a", "b", "load", 3)
    assert found.unreadable == ["/k: not JSON"]
    assert found.options is not None
    assert (found.options.strategy, found.options.strategy_options) == ("sticky_balanced", '{"k":1}')
    assert found.options.copartitioned == ["a,b"]


async def test_describing_ten_thousand_partitions_does_not_hold_the_loop() -> None:
    turns: list[int] = []

    async def tick() -> None:
        while True:
            calls.lap()
            await asyncio.sleep(0)
            turns.append(calls.lap())

    # As bytes: reading the answer into the generated classes is the client's business and takes long.
    group = description(owned=10_000)
    with counted_calls() as calls:
        ticking = asyncio.create_task(tick())
        content = await described(group)
        ticking.cancel()
    assert len(v1.DescribeGroupResponse.parse(content).owners) == 100
    assert max(turns) < 5_000 < sum(turns) / 5


async def test_an_unknown_group_is_not_found(service: Serving) -> None:
    refusal = await refusal_of(service.admin().describe_group(v1.DescribeGroupRequest(group="nobody")))
    assert refusal.status is Status.NOT_FOUND


async def test_only_the_options_that_are_set_are_changed(service: Serving) -> None:
    options = v1.GroupOptions(
        handoff_mode="exclusive",
        debounce=0.0,
        max_concurrent_handoffs=5,
        strategy_options='{"seed": 1}',
        copartitioned=["a,b", "c, d"],
    )
    await service.admin().set_group_options(v1.SetGroupOptionsRequest(group="g", options=options))
    [(group, changes)] = service.administration.changes
    assert group == "g"
    assert changes == {
        "handoff_mode": HandoffMode.EXCLUSIVE,
        "debounce": 0.0,
        "max_concurrent_handoffs": 5,
        "strategy_options": {"seed": 1},
        "copartitioned": (("a", "b"), ("c", "d")),
    }


async def test_copartitioned_sets_can_be_cleared(service: Serving) -> None:
    options = v1.GroupOptions(clear_copartitioned=True)
    await service.admin().set_group_options(v1.SetGroupOptionsRequest(options=options))
    assert service.administration.changes == [("default", {"copartitioned": ()})]


@pytest.mark.parametrize(
    "options",
    [
        None,
        v1.GroupOptions(handoff_mode="maybe"),
        v1.GroupOptions(debounce=-1.0),
        v1.GroupOptions(release_timeout=float("nan")),
        v1.GroupOptions(strategy_options="[1]"),
        v1.GroupOptions(strategy_options="{"),
        v1.GroupOptions(strategy=""),
        v1.GroupOptions(copartitioned=["alone"]),
        v1.GroupOptions(copartitioned=["a,a"]),
    ],
)
async def test_bad_options_are_refused(service: Serving, options: v1.GroupOptions | None) -> None:
    refusal = await refusal_of(service.admin().set_group_options(v1.SetGroupOptionsRequest(options=options)))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert not service.administration.changes


async def test_pause_resume_and_rebalance_reach_the_group(service: Serving) -> None:
    admin = service.admin()
    await admin.pause(v1.PauseRequest(group="g"))
    await admin.resume(v1.ResumeRequest(group="g"))
    await admin.rebalance(v1.RebalanceRequest(group="g"))
    assert service.administration.changes == [("g", {"paused": True}), ("g", {"paused": False})]
    assert service.administration.rebalanced == ["g"]


@pytest.mark.parametrize(("wait", "expected"), [(True, [(3, False), (1, False), (0, True)]), (False, [(3, False)])])
async def test_a_drain_reports_its_progress(service: Serving, wait: bool, expected: list[tuple[int, bool]]) -> None:
    progress = service.admin().drain(v1.DrainRequest(consumer="c", wait=wait))
    assert [(step.remaining, step.done) async for step in progress] == expected


async def test_a_drain_of_nothing_is_done_at_once(service: Serving) -> None:
    service.administration.remaining = [0]
    progress = service.admin().drain(v1.DrainRequest(consumer="c", wait=True))
    assert [(step.remaining, step.done) async for step in progress] == [(0, True)]


async def test_a_drain_without_a_consumer_is_refused(service: Serving) -> None:
    assert (await refusal_of(anext(service.admin().drain(v1.DrainRequest())))).status is Status.INVALID_ARGUMENT


# --- health ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "kafka_assigner.v1.KafkaAssigner", "kafka_assigner.v1.Admin"])
async def test_health_follows_readiness(name: str) -> None:
    ready = False
    async with serving(ready=lambda: ready) as service:
        health = HealthStub(service.channel())
        assert (await health.Check(HealthCheckRequest(service=name))).status == HealthCheckResponse.NOT_SERVING
        ready = True
        assert (await health.Check(HealthCheckRequest(service=name))).status == HealthCheckResponse.SERVING


async def test_the_health_of_an_unknown_service_is_not_found(service: Serving) -> None:
    health = HealthStub(service.channel())
    assert (await refusal_of(health.Check(HealthCheckRequest(service="no")))).status is Status.NOT_FOUND


async def test_watchers_of_the_health_are_notified_of_changes() -> None:
    ready = True
    async with serving(ready=lambda: ready) as service:
        async with HealthStub(service.channel()).Watch.open() as watch:
            await watch.send_message(HealthCheckRequest(), end=True)
            response = await watch.recv_message()
            assert response is not None
            assert response.status == HealthCheckResponse.SERVING
            ready = False
            response = await asyncio.wait_for(watch.recv_message(), 15)
            assert response is not None
            assert response.status == HealthCheckResponse.NOT_SERVING
            await watch.cancel()
        await eventually(lambda: service.server.statistics().streams == 0)


# --- reflection --------------------------------------------------------------------------------------------------


async def asked(service: Serving, *requests: ServerReflectionRequest) -> list[Any]:
    async with ServerReflectionStub(service.channel()).ServerReflectionInfo.open() as call:
        for request in requests:
            await call.send_message(request)
        await call.end()
        return [response async for response in call]


async def test_reflection_lists_the_services(service: Serving) -> None:
    [response] = await asked(service, ServerReflectionRequest(list_services=""))
    names = {one.name for one in response.list_services_response.service}
    assert names >= {"kafka_assigner.v1.KafkaAssigner", "kafka_assigner.v1.Admin", "grpc.health.v1.Health"}


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        ("kafka_assigner.v1.KafkaAssigner", "RegisterRequest"),
        ("kafka_assigner.v1.Admin", "DrainProgress"),
        ("grpc.health.v1.Health", "HealthCheckRequest"),
        ("grpc.reflection.v1.ServerReflection", "ServerReflectionRequest"),
    ],
)
async def test_reflection_has_the_descriptors(service: Serving, symbol: str, message: str) -> None:
    [response] = await asked(service, ServerReflectionRequest(file_containing_symbol=symbol))
    [content] = response.file_descriptor_response.file_descriptor_proto
    file = FileDescriptorProto.FromString(content)
    assert message in {one.name for one in file.message_type}


async def test_reflection_can_be_switched_off() -> None:
    async with serving(reflection="off") as service:
        with pytest.raises(GRPCError) as caught:
            await asked(service, ServerReflectionRequest(list_services=""))
        assert caught.value.status is Status.UNIMPLEMENTED
