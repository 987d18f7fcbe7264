"""Shutting down: nobody is left without an answer, whatever client it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from tests.support.clients.upstream_client import upstream_clients
from tests.support.fakes.grpc_serving import Serving, eventually
from tests.support.network.raw_http2 import REGISTER, framed, raw_peer

SHUTDOWN = "instance is shutting down, reconnect elsewhere"


async def refusal_of(call: Any) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value


async def test_streams_end_with_a_status_that_sends_the_client_elsewhere(service: Serving) -> None:
    streams = [service.consumer().register(v1.RegisterRequest(consumer_name=f"c{n}")) for n in range(20)]
    for stream in streams:
        await anext(stream)
    draining = asyncio.create_task(service.server.drain(10))
    for stream in streams:
        refusal = await refusal_of(anext(stream))
        assert (refusal.status, refusal.message) == (Status.UNAVAILABLE, SHUTDOWN)
    await draining
    assert all(stream.left.is_set() for stream in service.members.streams.values())
    assert service.server.statistics().connections == 0


async def test_a_unary_call_in_flight_finishes_though_its_connections_streams_end(service: Serving) -> None:
    service.members.gate.clear()
    stub = service.consumer()
    stream = stub.register(v1.RegisterRequest(consumer_name="c"))
    await anext(stream)
    renewal = asyncio.create_task(stub.renew(v1.RenewRequest(consumer_name="c")))
    await service.members.renewing.wait()
    draining = asyncio.create_task(service.server.drain(30))
    assert (await refusal_of(anext(stream))).status is Status.UNAVAILABLE
    assert not renewal.done()
    service.members.gate.set()
    assert (await renewal).ttl_ms == 30_000
    await draining


async def test_a_unary_call_that_takes_too_long_is_answered_at_the_deadline(service: Serving) -> None:
    service.members.gate.clear()
    renewal = asyncio.create_task(service.consumer().renew(v1.RenewRequest(consumer_name="c")))
    await service.members.renewing.wait()
    await service.server.drain(0.2)
    refusal = await refusal_of(renewal)
    assert (refusal.status, refusal.message) == (Status.UNAVAILABLE, SHUTDOWN)


async def test_new_calls_on_an_open_connection_are_refused_while_draining(service: Serving) -> None:
    service.members.gate.clear()
    stub = service.consumer()
    renewal = asyncio.create_task(stub.renew(v1.RenewRequest(consumer_name="c")))
    await service.members.renewing.wait()
    draining = asyncio.create_task(service.server.drain(30))
    await eventually(lambda: service.server._traffic.draining)
    refusal = await refusal_of(stub.renew(v1.RenewRequest(consumer_name="late")))
    assert (refusal.status, refusal.message) == (Status.UNAVAILABLE, SHUTDOWN)
    service.members.gate.set()
    await renewal
    await draining
    assert service.refused("draining") == 1


async def test_nobody_can_connect_while_draining(service: Serving) -> None:
    await service.server.drain(5)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", service.server.port)


async def test_an_idle_connection_gets_a_goaway(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        await peer.read()
        draining = asyncio.create_task(service.server.drain(5))
        await peer.until_closed()
        await draining
        assert peer.goodbye is not None
        assert peer.goodbye.error_code == 0


async def test_a_reader_that_does_not_read_does_not_hold_up_the_drain(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        peer.send(peer.open(REGISTER), framed(bytes(v1.RegisterRequest(consumer_name="raw"))), end=True)
        stream = await service.stream("raw")
        stream.put(Commands(assigned=tuple((TopicPartition("t", p), 1) for p in range(20_000))))
        await eventually(lambda: stream.taken == 2)
        async with asyncio.timeout(20):
            await service.server.drain(1)
            await service.server.close()
        assert stream.left.is_set()


async def test_watchers_of_the_health_are_notified_and_ended(service: Serving) -> None:
    async def watched() -> list[int]:
        async with HealthStub(service.channel()).Watch.open() as watch:
            await watch.send_message(HealthCheckRequest(), end=True)
            async for response in watch:
                statuses.append(response.status)  # noqa: PERF401 - looked at meanwhile
        return statuses

    statuses: list[int] = []
    watching = asyncio.create_task(watched())
    await eventually(lambda: statuses == [HealthCheckResponse.SERVING])
    await service.server.drain(5)
    assert (await refusal_of(watching)).status is Status.UNAVAILABLE


async def test_grpcio_clients_get_the_same_answers(service: Serving) -> None:
    address = f"127.0.0.1:{service.server.port}"
    async with upstream_clients() as upstream:
        consumer = await upstream.register(address, "c", answers=False)
        await consumer.until(lambda: consumer.updates == 1)
        service.members.slow_answers = asyncio.Event()
        answering = asyncio.create_task(consumer.ready(("orders", 0)))
        await eventually(lambda: len(service.members.answered) == 1)
        draining = asyncio.create_task(service.server.drain(30))
        await consumer.until(lambda: consumer.ended is not None)
        assert consumer.ended == ("UNAVAILABLE", SHUTDOWN)
        assert not answering.done()
        service.members.slow_answers.set()
        await answering
        await draining


async def test_close_without_a_drain_answers_too(service: Serving) -> None:
    stream = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
    await anext(stream)
    closing = asyncio.create_task(service.server.close())
    assert (await refusal_of(anext(stream))).status is Status.UNAVAILABLE
    await closing
    assert service.members.streams["c"].left.is_set()


async def test_closing_twice_or_before_the_start_is_harmless(service: Serving) -> None:
    await service.server.close()
    await service.server.close()
    await service.server.drain(1)
