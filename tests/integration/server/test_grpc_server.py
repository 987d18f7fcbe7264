"""The two services over a real connection, with scripted members and administration behind them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from betterproto2.grpclib import ServiceStub
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from assigner import errors
from assigner.api import RejectedAck
from assigner.model.commands import Ack, CancelWarm, Commands, Release, Warm
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause
from assigner.proto.kafka_assigner import v1
from assigner.server.services.admin import AdminService
from assigner.server.services.consumers import ConsumerService
from assigner.server.services.offsets import OffsetCalls
from assigner.server.services.requests import Requests
from assigner.server.services.streams import StreamCleanup
from tests.support.fakes.fake_service import FakeAdministration, FakeMembers, FakeOffsets
from tests.support.fakes.grpc_serving import Serving, eventually, serving, status_of

A, B = TopicPartition("orders", 0), TopicPartition("orders", 7)


def place(tp: TopicPartition) -> v1.TopicPartition:
    return v1.TopicPartition(topic=tp.topic, partition=tp.partition)


async def first(stream: AsyncIterator[v1.AssignmentCommand]) -> v1.AssignmentCommand:
    return await anext(stream)


async def rest_of(stream: AsyncIterator[v1.AssignmentCommand]) -> list[v1.AssignmentCommand]:
    return [message async for message in stream]


REQUESTS = Requests("default", lambda name: name)

# --- the services are complete -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "generated"),
    [
        (
            ConsumerService(FakeMembers(), REQUESTS, OffsetCalls(FakeOffsets(), REQUESTS), StreamCleanup()),
            v1.KafkaAssignerBase(),
        ),
        (AdminService(FakeAdministration(), REQUESTS), v1.AdminBase()),
    ],
)
def test_every_method_of_the_protocol_is_served(ours: Any, generated: Any) -> None:
    def shape(service: Any) -> dict[str, tuple[Any, ...]]:
        return {path: tuple(handler)[1:] for path, handler in service.__mapping__().items()}

    assert shape(ours) == shape(generated)


# --- register ----------------------------------------------------------------------------------------------------


async def test_a_registration_carries_every_field(service: Serving) -> None:
    request = v1.RegisterRequest(
        consumer_name="c-1",
        topic="orders",
        group="billing",
        capacity=2.5,
        rack="r1",
        topics=["orders", "refunds"],
        session="s-1",
        address="10.0.0.1:9",
        renews=True,
        generation="g1",
        cold=True,
        kind="spark",
    )
    await first(service.consumer().register(request))
    found = service.members.streams["c-1"].registration
    assert (found.group, found.name, found.session, found.topics) == (
        "billing",
        "c-1",
        "s-1",
        ("orders", "refunds"),
    )
    assert (found.capacity, found.rack, found.address, found.renews, found.generation) == (
        2.5,
        "r1",
        "10.0.0.1:9",
        True,
        "g1",
    )
    assert (found.cold, found.kind, found.takeover, found.explicit_topics) == (True, "spark", True, False)


async def test_a_client_that_names_no_group_is_in_the_default_one_with_capacity_one(service: Serving) -> None:
    await first(service.consumer().register(v1.RegisterRequest(consumer_name="c")))
    found = service.members.streams["c"].registration
    assert (found.group, found.capacity, found.topics) == ("default", 1.0, ())


async def test_the_first_message_has_session_ttl_and_mode(service: Serving) -> None:
    service.members.opening = None
    received = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
    waiting = asyncio.create_task(first(received))
    stream = await service.stream("c")
    stream.exclusive = True
    stream.put(Commands(full=True, assigned=((A, 5),), generation=3))
    update = (await waiting).assignment
    assert update is not None
    assert (update.full, update.session, update.ttl_ms, update.exclusive) == (True, "minted", 30_000, True)
    assert [(one.topic, one.partition, one.epoch) for one in update.assigned] == [("orders", 0, 5)]
    assert update.generation == 3


async def test_commands_arrive_in_order_and_the_stream_ends_with_ok(service: Serving) -> None:
    stream = service.consumer().register(v1.RegisterRequest(consumer_name="c", session="s"))
    await first(stream)
    service.members.streams["c"].put(
        Commands(
            assigned=((A, 2),),
            cancels=(CancelWarm(B, "h0"),),
            warms=(Warm(B, "h1", "old", Cause.JOINED, standby=True),),
            releases=(Release(A, 2, "h2", "new", Cause.LEFT),),
        ),
        Commands(unassigned=((A, 2),)),
        None,
    )
    received = await rest_of(stream)
    assert [one.assignment is not None for one in received] == [True, False, False, False, True]
    assert received[1].cancel is not None
    assert received[1].cancel.handoff_id == "h0"
    assert received[2].warm is not None
    assert (received[2].warm.handoff_id, received[2].warm.standby) == ("h1", True)
    assert received[3].release is not None
    assert (received[3].release.new_owner, received[3].release.cause) == ("new", "left")
    await service.members.streams["c"].left.wait()


async def test_a_client_without_a_session_gets_no_cancel(service: Serving) -> None:
    stream = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
    await first(stream)
    service.members.streams["c"].put(Commands(cancels=(CancelWarm(A, "h"),)), None)
    assert await rest_of(stream) == []


async def test_ten_thousand_partitions_arrive_packed_and_unpacked(service: Serving) -> None:
    owned = tuple((TopicPartition("orders", number), number + 1) for number in range(10_000))
    service.members.opening = Commands(full=True, assigned=owned)
    listed = (await first(service.consumer().register(v1.RegisterRequest(consumer_name="a")))).assignment
    assert listed is not None
    assert [(one.partition, one.epoch) for one in listed.assigned] == [(tp.partition, e) for tp, e in owned]
    packed = (await first(service.consumer().register(v1.RegisterRequest(consumer_name="b", packed=True)))).assignment
    assert packed is not None
    pairs = [pair for one in packed.assigned_packed for pair in zip(one.partitions, one.epochs, strict=True)]
    assert pairs == [(tp.partition, e) for tp, e in owned]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (errors.Superseded("session 's' was taken over by 't'"), Status.ABORTED),
        (errors.Evicted("did not release orders/0 in time"), Status.ABORTED),
        (errors.NotRegistered("the session is over"), Status.NOT_FOUND),
    ],
)
async def test_a_session_that_is_over_ends_the_stream_with_its_reason(
    service: Serving, ending: errors.AssignerError, status: Status
) -> None:
    stream = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
    await first(stream)
    service.members.streams["c"].put(ending)
    refusal = await status_of(anext(stream))
    assert (refusal.status, refusal.message) == (status, str(ending))
    await service.members.streams["c"].left.wait()


async def test_the_class_of_an_error_is_in_the_trailers(service: Serving) -> None:
    channel = service.channel()
    service.members.refuse_registration = errors.Superseded("another one took over")
    path = "/kafka_assigner.v1.KafkaAssigner/Register"
    async with channel.request(path, Cardinality.UNARY_STREAM, v1.RegisterRequest, v1.AssignmentCommand) as call:
        await call.send_message(v1.RegisterRequest(consumer_name="c"), end=True)
        with pytest.raises(GRPCError):
            await call.recv_message()
        assert call.trailing_metadata is not None
        assert call.trailing_metadata["assigner-error"] == "Superseded"


async def test_a_stream_is_left_when_the_client_hangs_up(service: Serving) -> None:
    channel = service.channel()
    stream = v1.KafkaAssignerStub(channel).register(v1.RegisterRequest(consumer_name="c"))
    await first(stream)
    channel.close()
    await asyncio.wait_for(service.members.streams["c"].left.wait(), 30)


async def test_a_stream_is_left_when_the_client_cancels_the_call(service: Serving) -> None:
    stream = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
    await first(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.wait_for(service.members.streams["c"].left.wait(), 30)
    await eventually(lambda: service.server.statistics().streams == 0)


async def test_hearing_goes_on_while_pings_are_answered() -> None:
    async with serving(ping_interval=0.05) as service:
        await first(service.consumer().register(v1.RegisterRequest(consumer_name="c")))
        stream = service.members.streams["c"]
        for _ in range(3):
            before = stream.heard()
            await eventually(lambda before=before: stream.heard() > before)  # type: ignore[misc]


BAD_REGISTRATIONS = [
    v1.RegisterRequest(),
    v1.RegisterRequest(consumer_name="x" * 250),
    v1.RegisterRequest(consumer_name="x" * 65_536),
    v1.RegisterRequest(consumer_name="a\nb"),
    v1.RegisterRequest(consumer_name=".."),
    v1.RegisterRequest(consumer_name="c", group=".."),
    v1.RegisterRequest(consumer_name="c", group="handoffs"),
    v1.RegisterRequest(consumer_name="c", topic="a/b"),
    v1.RegisterRequest(consumer_name="c", topics=["fine", "not fine"]),
    v1.RegisterRequest(consumer_name="c", session="\x00"),
    v1.RegisterRequest(consumer_name="c", rack="r\x1b"),
    v1.RegisterRequest(consumer_name="c", capacity=-1.0),
    v1.RegisterRequest(consumer_name="c", capacity=math.nan),
    v1.RegisterRequest(consumer_name="c", capacity=math.inf),
]


@pytest.mark.parametrize("request_", BAD_REGISTRATIONS, ids=range(len(BAD_REGISTRATIONS)))
async def test_a_bad_registration_is_refused_and_no_stream_is_opened(
    service: Serving, request_: v1.RegisterRequest
) -> None:
    refusal = await status_of(anext(service.consumer().register(request_)))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert refusal.message
    assert not service.members.streams


async def test_names_with_dots_inside_are_fine(service: Serving) -> None:
    await first(service.consumer().register(v1.RegisterRequest(consumer_name="a..b", topic="x..y")))
    assert service.members.streams["a..b"].registration.topics == ("x..y",)


# --- ready and released ------------------------------------------------------------------------------------------


async def test_a_ready_and_a_released_reach_the_members(service: Serving) -> None:
    stub = service.consumer()
    await stub.partition_ready(
        v1.PartitionReadyRequest(
            consumer_name="c", partition=place(A), group="g", session="s", handoff_id="h", failure="x" * 5_000
        )
    )
    await stub.partition_released(v1.PartitionReleasedRequest(consumer_name="c", partition=place(B)))
    assert service.members.answered == [
        ("ready", "g", "c", "s", (Ack(A, "h", "x" * 1_000),)),
        ("released", "default", "c", "", (Ack(B),)),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        v1.PartitionReadyRequest(consumer_name="c"),
        v1.PartitionReadyRequest(consumer_name="c", batch=[v1.PartitionAnswer(handoff_id="h")]),
    ],
)
async def test_an_ack_without_a_partition_is_rejected(service: Serving, request_: v1.PartitionReadyRequest) -> None:
    refusal = await status_of(service.consumer().partition_ready(request_))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert str(refusal.message).startswith("partition is required")
    assert not service.members.answered


@pytest.mark.parametrize("partition", [1_000_000_000, 2**32 - 1])
async def test_a_partition_out_of_range_is_refused(service: Serving, partition: int) -> None:
    request = v1.PartitionReleasedRequest(consumer_name="c", partition=place(TopicPartition("t", partition)))
    refusal = await status_of(service.consumer().partition_released(request))
    assert refusal.status is Status.INVALID_ARGUMENT


async def test_the_rejection_of_a_single_ack_is_the_status(service: Serving) -> None:
    service.members.refusals = [RejectedAck(A, errors.NotTheTarget("orders/0 was never c's to warm"))]
    refusal = await status_of(
        service.consumer().partition_ready(v1.PartitionReadyRequest(consumer_name="c", partition=place(A)))
    )
    assert (refusal.status, refusal.message) == (Status.NOT_FOUND, "orders/0 was never c's to warm")


async def test_refusals_in_a_batch_are_listed_in_the_response(service: Serving) -> None:
    service.members.refusals = [
        RejectedAck(B, errors.NotTheTarget("never")),
        RejectedAck(A, RuntimeError("password=hunter2")),
    ]
    response = await service.consumer().partition_released(
        v1.PartitionReleasedRequest(
            consumer_name="c",
            partition=place(A),
            handoff_id="h0",
            batch=[v1.PartitionAnswer(partition=place(B), handoff_id="h1")],
        )
    )
    assert service.members.answered[0][4] == (Ack(A, "h0"), Ack(B, "h1"))
    assert [one.partition.partition if one.partition else None for one in response.refusals] == [7, 0]
    assert response.refusals[0].reason == "never"
    assert "hunter2" not in response.refusals[1].reason


# --- deregister and renew ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [True, False])
async def test_deregister_says_whether_to_wait(service: Serving, wait: bool) -> None:
    service.members.wait_for_drain = wait
    stub = service.consumer()
    await first(stub.register(v1.RegisterRequest(consumer_name="c")))
    request = v1.DeregisterRequest(consumer_name="c", session="s", gates_closed=True)
    action = (await stub.deregister(request)).action
    assert action is (v1.DeregisterAction.WAIT_FOR_DRAIN if wait else v1.DeregisterAction.SHUTDOWN_NOW)
    assert service.members.deregistered == [("default", "c", "s", True)]


async def test_deregister_of_an_unknown_consumer_is_not_found(service: Serving) -> None:
    refusal = await status_of(service.consumer().deregister(v1.DeregisterRequest(consumer_name="nobody")))
    assert refusal.status is Status.NOT_FOUND


async def test_renew_returns_the_ttl(service: Serving) -> None:
    response = await service.consumer().renew(v1.RenewRequest(consumer_name="c", group="g", session="s"))
    assert response.ttl_ms == 30_000
    assert service.members.renewed == [("g", "c", "s")]


async def test_a_deadline_of_the_client_ends_the_work_here_too(service: Serving) -> None:
    service.members.gate.clear()
    with pytest.raises((asyncio.TimeoutError, GRPCError)):
        await service.consumer().renew(v1.RenewRequest(consumer_name="c"), timeout=0.1)
    await eventually(lambda: service.server.statistics().streams == 0)
    assert not service.members.renewed


# --- what goes wrong inside --------------------------------------------------------------------------------------


async def test_an_unexpected_error_leaks_nothing_but_an_id(service: Serving) -> None:
    service.members.fails = RuntimeError("secret=42")
    refusal = await status_of(service.consumer().renew(v1.RenewRequest(consumer_name="c")))
    assert refusal.status is Status.INTERNAL
    assert refusal.message is not None
    assert "secret" not in refusal.message
    assert refusal.message.startswith("internal error ")


async def test_an_unknown_method_is_unimplemented(service: Serving) -> None:
    stub = ServiceStub(service.channel())
    refusal = await status_of(
        stub._unary_unary("/kafka_assigner.v1.KafkaAssigner/Nothing", v1.RenewRequest(), v1.RenewResponse)
    )
    assert refusal.status is Status.UNIMPLEMENTED
