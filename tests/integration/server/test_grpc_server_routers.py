"""The calls of routers over real gRPC: what is asked, what is answered, and what a refusal says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpclib.const import Status

from assigner import api, errors
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, PublishedLoads, Route, TableChanges
from assigner.proto.kafka_assigner import v1
from tests.support.fakes.grpc_serving import Serving, eventually, serving, status_of

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
WHO: dict[str, Any] = {"router_name": "r1", "group": "g", "session": "s"}


async def updates_of(service: Serving, **request: Any) -> Any:
    """An open stream's updates."""
    return service.router().register_router(v1.RegisterRouterRequest(**{**WHO, **request}))


async def test_a_router_registers_with_its_session_and_gets_the_table_and_then_changes() -> None:
    async with serving() as service:
        table = TableChanges(
            full=True, revision=7, generation=3, topics=(("t", 2),), routes=((A, Route("a", "10.0.0.1:1", 5)),)
        )
        service.routers.opening = table
        updates = await updates_of(service, loads=True)
        first = await anext(updates)
        assert (first.full, first.more, first.revision, first.generation, first.ttl_ms) == (True, False, 7, 3, 30_000)
        assert [(one.topic, one.partitions) for one in first.topics] == [("t", 2)]
        assert [(one.name, one.address) for one in first.owners] == [("a", "10.0.0.1:1")]
        registration = service.routers.streams["r1"].registration
        assert registration == api.RouterRegistration("g", "r1", "s", loads=True)
        service.routers.streams["r1"].put(
            TableChanges(revision=8, routes=((A, Route("a", "", 5, "h1", frozen=True)),), unowned=(B,)),
            TableChanges(revision=9, loads=(PublishedLoads("t", (0,), (2.0,)),), loads_valid_for=60.0),
        )
        second, third = await anext(updates), await anext(updates)
        assert (second.full, second.ttl_ms) == (False, 0)
        assert [(one.handoff_id, one.frozen) for one in second.handoffs] == [("h1", True)]
        assert [(one.topic, one.partitions) for one in second.unowned] == [("t", [1])]
        assert (third.loads_valid_ms, third.loads[0].loads) == (60_000, [2.0])
        await updates.aclose()
        await asyncio.wait_for(service.routers.streams["r1"].left.wait(), 30)


async def test_no_group_is_the_default_one() -> None:
    async with serving() as service:
        await anext(await updates_of(service, group=""))
        assert service.routers.streams["r1"].group == "default"


async def test_a_table_of_a_hundred_thousand_partitions_arrives_whole_in_messages_of_bounded_size() -> None:
    async with serving() as service:
        rows = tuple(
            (
                TopicPartition(f"topic-{number // 1000}", number % 1000),
                Route(f"owner-{number % 50}", "10.0.0.1:1", number),
            )
            for number in range(100_000)
        )
        service.routers.opening = TableChanges(full=True, revision=7, routes=rows)
        found, size, messages = 0, 0, 0
        async for update in await updates_of(service):
            found += sum(len(one.owners) for one in update.routes)
            size, messages = size + len(bytes(update)), messages + 1
            assert len(bytes(update)) <= 1024 * 1024
            if not update.more:
                break
        assert found == 100_000
        assert messages > 0
        assert size < 10 * 100_000, f"{size / 100_000:.1f} bytes per partition"


async def test_a_renewal_is_answered_with_the_ttl() -> None:
    async with serving() as service:
        answer = await service.router().renew_router(v1.RenewRouterRequest(**WHO))
        assert answer.ttl_ms == 30_000
        assert service.routers.renewed == [("g", "r1", "s")]


async def test_acks_are_passed_on_together_and_the_refused_ones_come_back_with_the_reason() -> None:
    async with serving() as service:
        service.routers.refusals = [api.RejectedAck(B, errors.UnknownTopic("there is no such partition"))]
        acks = [
            v1.FreezeAck(topic="t", partition=0, handoff_id="h1"),
            v1.FreezeAck(topic="t", partition=1, handoff_id="h2"),
        ]
        answer = await service.router().cutover_ack(v1.CutoverAckRequest(**WHO, acks=acks))
        assert service.routers.acked == [("g", "r1", "s", (FreezeAck(A, "h1"), FreezeAck(B, "h2")))]
        (refused,) = answer.refusals
        assert refused.partition is not None
        assert (refused.partition.topic, refused.partition.partition) == ("t", 1)
        assert refused.reason == "there is no such partition"


async def test_leaving_is_passed_on() -> None:
    async with serving() as service:
        await service.router().deregister_router(v1.DeregisterRouterRequest(**WHO))
        assert service.routers.deregistered == [("g", "r1", "s")]


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{"router_name": ""}, {"router_name": "r\n"}, {"session": ""}, {"session": "s" * 250}, {"group": ".."}]
)
async def test_malformed_names_are_refused_in_every_call(changes: dict[str, Any]) -> None:
    who = {**WHO, **changes}
    async with serving() as service:
        router = service.router()
        ack = v1.FreezeAck(topic="t", partition=0, handoff_id="h")
        for call in (
            anext(router.register_router(v1.RegisterRouterRequest(**who))),
            router.renew_router(v1.RenewRouterRequest(**who)),
            router.cutover_ack(v1.CutoverAckRequest(**who, acks=[ack])),
            router.deregister_router(v1.DeregisterRouterRequest(**who)),
        ):
            assert (await status_of(call)).status is Status.INVALID_ARGUMENT
        assert not service.routers.streams


@pytest.mark.parametrize(
    "ack",
    [
        v1.FreezeAck(topic="", partition=0, handoff_id="h"),
        v1.FreezeAck(topic="a b", partition=0, handoff_id="h"),
        v1.FreezeAck(topic="t", partition=2**31, handoff_id="h"),
        v1.FreezeAck(topic="t", partition=0, handoff_id=""),
        v1.FreezeAck(topic="t", partition=0, handoff_id="h" * 250),
    ],
)
async def test_malformed_acks_are_refused(ack: v1.FreezeAck) -> None:
    async with serving() as service:
        error = await status_of(service.router().cutover_ack(v1.CutoverAckRequest(**WHO, acks=[ack])))
        assert error.status is Status.INVALID_ARGUMENT
        error = await status_of(service.router().cutover_ack(v1.CutoverAckRequest(**WHO)))
        assert error.status is Status.INVALID_ARGUMENT
        assert not service.routers.acked


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NotRegistered("register again"), Status.NOT_FOUND),
        (errors.Superseded("another process took over"), Status.ABORTED),
        (errors.StreamReplaced("connect again"), Status.UNAVAILABLE),
        (errors.PermissionDenied("not yours"), Status.PERMISSION_DENIED),
    ],
)
async def test_the_end_of_a_session_is_the_status_of_its_stream_and_of_its_calls(
    error: Exception, status: Status
) -> None:
    async with serving() as service:
        updates = await updates_of(service)
        await anext(updates)
        service.routers.streams["r1"].put(error)
        assert (await status_of(anext(updates))).status is status
        await asyncio.wait_for(service.routers.streams["r1"].left.wait(), 30)
        service.routers.fails = error
        assert (await status_of(service.router().renew_router(v1.RenewRouterRequest(**WHO)))).status is status


async def test_a_router_that_reads_nothing_is_ended_and_holds_no_other_up() -> None:
    async with serving(slow_consumer_timeout=0.5) as service:
        rows = tuple((TopicPartition("t", number), Route("a" * 200, "", number)) for number in range(20_000))
        stuck = service.router().register_router(v1.RegisterRouterRequest(**{**WHO, "router_name": "stuck"}))
        await anext(stuck)
        stream = service.routers.streams["stuck"]
        # Far more than the windows of the connection hold, and nothing of it is read.
        stream.put(*[TableChanges(revision=number, routes=rows) for number in range(2_000)])
        quick = await updates_of(service, router_name="quick")
        await anext(quick)
        service.routers.streams["quick"].put(TableChanges(revision=9))
        assert (await asyncio.wait_for(anext(quick), 30)).revision == 9
        await eventually(stream.left.is_set, within=60)
