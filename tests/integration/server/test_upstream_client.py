"""A grpcio client with stubs of the upstream fields alone works against our server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from assigner import errors
from assigner.api import RejectedAck
from assigner.model.commands import CancelWarm, Commands, Release, Warm
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause
from tests.support.clients.upstream_client import CallFailed, UpstreamClients, UpstreamConsumer, upstream_clients
from tests.support.fakes.grpc_serving import Serving, eventually, serving

A, B = TopicPartition("orders", 0), TopicPartition("orders", 7)


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamClients]:
    async with upstream_clients() as clients:
        yield clients


async def registered(service: Serving, upstream: UpstreamClients, **options: bool) -> UpstreamConsumer:
    consumer = await upstream.register(f"127.0.0.1:{service.server.port}", "c-1", topic="orders", **options)
    await consumer.until(lambda: consumer.updates == 1)
    return consumer


async def test_it_registers_and_gets_its_assignments(service: Serving, upstream: UpstreamClients) -> None:
    service.members.opening = Commands(full=True, assigned=((A, 3), (B, 9)), generation=4)
    consumer = await registered(service, upstream)
    assert consumer.owned == {("orders", 0), ("orders", 7)}
    found = service.members.streams["c-1"].registration
    assert (found.group, found.topics, found.session, found.renews) == ("default", ("orders",), "", False)


async def test_the_first_message_comes_even_if_nothing_is_owned(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream)
    assert consumer.owned == set()


async def test_it_acks_warms_and_releases(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream)
    service.members.streams["c-1"].put(
        Commands(
            warms=(Warm(A, "h1", "old", Cause.JOINED),),
            releases=(Release(B, 4, "h2", "new", Cause.LEFT),),
            cancels=(CancelWarm(B, "h3"),),
        )
    )
    await eventually(lambda: len(service.members.answered) == 2)
    answered = {(kind, name, answers[0].tp) for kind, _, name, _, answers in service.members.answered}
    assert answered == {("ready", "c-1", A), ("released", "c-1", B)}
    # The client's process reports by a pipe of its own, which may lag behind its answers.
    await eventually(lambda: len(consumer.events) == 3)
    assert [event["event"] for event in consumer.events] == ["assignment", "warm", "release"]
    assert consumer.events[1]["owner"] == "old"
    assert consumer.events[2]["owner"] == "new"


async def test_an_unassigned_partition_is_sent(service: Serving, upstream: UpstreamClients) -> None:
    service.members.opening = Commands(full=True, assigned=((A, 3), (B, 9)))
    consumer = await registered(service, upstream)
    service.members.streams["c-1"].put(Commands(unassigned=((A, 3),)))
    await consumer.until(lambda: consumer.owned == {("orders", 7)})


async def test_ten_thousand_partitions_arrive(service: Serving, upstream: UpstreamClients) -> None:
    owned = tuple((TopicPartition("orders", number), 1) for number in range(10_000))
    service.members.opening = Commands(full=True, assigned=owned)
    consumer = await registered(service, upstream)
    assert len(consumer.owned) == 10_000


async def test_a_drained_stream_ends_with_ok(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream)
    service.members.wait_for_drain = True
    assert await consumer.deregister() == "DEREGISTER_ACTION_WAIT_FOR_DRAIN"
    service.members.streams["c-1"].put(None)
    await consumer.until(lambda: consumer.ended == ("OK", ""))


async def test_shutdown_now_is_sent(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream)
    assert await consumer.deregister() == "DEREGISTER_ACTION_SHUTDOWN_NOW"


async def test_a_takeover_is_sent_with_its_reason(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream)
    service.members.streams["c-1"].put(errors.Superseded("another session of 'c-1' took over"))
    await consumer.until(lambda: consumer.ended == ("ABORTED", "another session of 'c-1' took over"))


async def test_refusals_are_statuses(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream, answers=False)
    with pytest.raises(CallFailed, match="INVALID_ARGUMENT: partition is required"):
        await consumer.ready(None)
    service.members.refusals = [RejectedAck(A, errors.NotTheTarget("orders/0 was never c-1's to warm"))]
    with pytest.raises(CallFailed, match="NOT_FOUND: orders/0 was never"):
        await consumer.ready(("orders", 0))


async def test_the_server_leaves_a_dropped_stream(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream)
    await consumer.drop()
    await service.members.streams["c-1"].left.wait()


async def test_a_draining_server_ends_the_stream_with_a_status(service: Serving, upstream: UpstreamClients) -> None:
    consumer = await registered(service, upstream)
    await service.server.drain(5)
    await consumer.until(lambda: consumer.ended is not None)
    assert consumer.ended == ("UNAVAILABLE", "instance is shutting down, reconnect elsewhere")


async def test_a_client_that_does_not_renew_is_renewed_by_its_pings(upstream: UpstreamClients) -> None:
    async with serving(ping_interval=0.1) as service:
        await registered(service, upstream)
        stream = service.members.streams["c-1"]
        before = stream.heard()
        await eventually(lambda: stream.heard() > before + 0.3)


async def test_a_frozen_client_is_not_renewed_and_cut_off(upstream: UpstreamClients) -> None:
    async with serving(ping_interval=0.3, ping_timeout=3.0) as service:
        await registered(service, upstream)
        stream = service.members.streams["c-1"]
        upstream.signal(signal.SIGSTOP)
        await asyncio.wait_for(stream.left.wait(), 30)
        assert service.refused("dead_peer") == 1
