"""Connections and streams beyond the limits of the server, and those that keep it waiting, are refused or closed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any, cast

import pytest
from grpclib.const import Status

from assigner.clock import SystemClock
from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from assigner.server.transport import admission as admission_module
from assigner.server.transport.connection import PeerProtocol
from tests.support.fakes.grpc_serving import Serving, eventually, serving, status_of, still_serves
from tests.support.network.raw_http2 import REGISTER, framed, raw_peer

REGISTRATION = bytes(v1.RegisterRequest(consumer_name="raw"))


# --- streams and connections -------------------------------------------------------------------------------------


async def test_more_streams_than_a_connection_may_have_are_refused() -> None:
    async with serving(max_streams_per_connection=5) as service, raw_peer(service.server.port) as peer:
        # All at once, before the server's settings arrived.
        streams = [peer.open(REGISTER) for _ in range(12)]
        for stream in streams[5:]:
            status, text = await peer.status(stream)
            assert status == Status.RESOURCE_EXHAUSTED.value
            assert "5 calls are in progress" in text
        assert service.refused("streams_per_connection") == 7
        assert service.server.statistics().streams == 5


async def test_a_well_behaved_client_may_open_a_thousand_streams_on_one_connection(service: Serving) -> None:
    stub = service.consumer()
    openings: list[Any] = []
    streams: list[Any] = []
    # Room grows with the consumers that are registered: a hundred at a time never meet a bound.
    for hundred in range(10):
        names = [f"c{100 * hundred + number}" for number in range(100)]
        streams += [stub.register(v1.RegisterRequest(consumer_name=name)) for name in names]
        openings += await asyncio.gather(*(anext(stream) for stream in streams[-100:]))
    assert all(opening.assignment and opening.assignment.full for opening in openings)
    assert service.server.statistics().streams == 1_000
    assert service.server.statistics().connections == 1


async def test_a_connection_without_a_consumer_has_a_hundred_calls_and_ten_more_for_each_that_registers(
    service: Serving,
) -> None:
    async with raw_peer(service.server.port) as peer:
        # Nothing of them arrives but the headers, so all of them wait.
        waiting = [peer.open() for _ in range(101)]
        status, text = await peer.status(waiting[100])
        assert status == Status.RESOURCE_EXHAUSTED.value
        assert "100 calls are in progress" in text
        peer.h2.reset_stream(waiting[0])
        peer.flush()
        await eventually(lambda: service.server.statistics().streams == 99)
        peer.send(peer.open(REGISTER), framed(REGISTRATION), end=True)
        await service.stream("raw")
        await eventually(lambda: service.server.statistics().streams == 100)
        more = [peer.open() for _ in range(11)]
        assert (await peer.status(more[10]))[0] == Status.RESOURCE_EXHAUSTED.value
        assert service.server.statistics().streams == 110
        assert service.refused("streams_per_connection") == 2


async def test_half_of_the_calls_are_kept_for_connections_with_a_consumer() -> None:
    async with serving(max_streams=20) as service, AsyncExitStack() as stack:
        consumer = service.consumer()
        stream = consumer.register(v1.RegisterRequest(consumer_name="c"))
        await anext(stream)
        strangers = [await stack.enter_async_context(raw_peer(service.server.port)) for _ in range(2)]
        for stranger in strangers:
            for _ in range(8):
                stranger.open()
        await eventually(lambda: service.refused("streams") == 6)
        assert service.server.statistics().streams == 11
        await consumer.renew(v1.RenewRequest(consumer_name="c"))


async def test_a_consumers_renewal_gets_through_however_full_the_instance_is() -> None:
    async with serving(max_streams=3) as service:
        consumers = [service.consumer() for _ in range(3)]
        held = [stub.register(v1.RegisterRequest(consumer_name=f"c{n}")) for n, stub in enumerate(consumers)]
        for stream in held:
            await anext(stream)
        assert service.server.statistics().streams == 3
        for number, stub in enumerate(consumers):
            await stub.renew(v1.RenewRequest(consumer_name=f"c{number}"))
        assert service.refused("streams") == 0


async def test_more_streams_than_the_instance_may_have_are_refused() -> None:
    async with serving(max_streams=3) as service:
        held = [service.consumer().register(v1.RegisterRequest(consumer_name=f"c{n}")) for n in range(3)]
        for stream in held:
            await anext(stream)
        refusal = await status_of(service.consumer().renew(v1.RenewRequest(consumer_name="c")))
        assert refusal.status is Status.RESOURCE_EXHAUSTED
        assert service.refused("streams") == 1
        await held[0].aclose()  # type: ignore[attr-defined]
        await eventually(lambda: service.server.statistics().streams == 2)
        await still_serves(service)


async def test_a_peer_that_goes_on_opening_streams_despite_refusals_is_closed(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        with suppress(ConnectionError):
            for _ in range(100):
                for _ in range(100):
                    peer.open(REGISTER)
                await peer.writer.drain()
        await eventually(lambda: service.refused("flood") == 1, within=60)
        assert service.refused("streams_per_connection") < 2_500
        await still_serves(service)
    await eventually(lambda: service.server.statistics().streams == 0)


async def test_opening_and_resetting_streams_in_haste_leaves_nothing_behind(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        for _ in range(3_000):
            peer.h2.reset_stream(peer.open(REGISTER))
        peer.flush()
        await peer.writer.drain()
        await still_serves(service)
        await eventually(lambda: service.server.statistics().streams == 0)


async def test_a_call_that_is_reset_before_it_began_is_forgotten(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        for _ in range(50):
            peer.h2.reset_stream(peer.open(REGISTER))
        peer.flush()
        await eventually(lambda: service.server.statistics().calls == 50)
        await eventually(lambda: service.server.statistics().streams == 0)
        (connection,) = cast(set[PeerProtocol], service.server._traffic.peers)
        assert not connection._processor.streams


async def test_one_connection_too_many_gets_a_goaway_and_is_closed() -> None:
    async with serving(max_connections=2) as service, AsyncExitStack() as stack:
        for _ in range(2):
            peer = await stack.enter_async_context(raw_peer(service.server.port))
            await peer.read()
        third = await stack.enter_async_context(raw_peer(service.server.port))
        await third.until_closed()
        assert third.goodbye is not None
        assert third.goodbye.additional_data == b"too many connections; use another instance"
        assert service.refused("connections") == 1
        assert service.server.statistics().connections == 2


async def test_a_connection_without_a_consumer_is_closed_for_a_new_one_and_one_with_a_consumer_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_module, "_MIN_STAY", 0.0)
    async with serving(max_connections=2) as service, raw_peer(service.server.port) as stranger:
        stream = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
        await anext(stream)
        await stranger.read()
        await still_serves(service)
        await stranger.until_closed()
        assert stranger.goodbye is not None
        assert stranger.goodbye.additional_data == b"too many connections; use another instance"
        service.members.streams["c"].put(None)
        assert [message async for message in stream] == []


async def test_connections_from_one_address_are_bounded() -> None:
    async with serving(max_connections_per_address=2) as service, AsyncExitStack() as stack:
        for _ in range(2):
            await (await stack.enter_async_context(raw_peer(service.server.port))).read()
        third = await stack.enter_async_context(raw_peer(service.server.port))
        await third.until_closed()
        assert service.refused("connections") == 1


# --- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("greeting", [b"", b"PRI * HTTP/2.0\r\n\r\nSM"])
async def test_a_connection_that_never_greets_is_closed(greeting: bytes) -> None:
    async with serving(handshake_timeout=0.1) as service, raw_peer(service.server.port, greet=False) as peer:
        peer.writer.write(greeting)
        with suppress(ConnectionError):
            await asyncio.wait_for(peer.reader.read(-1), 15)
        assert service.refused("handshake") == 1


async def test_a_connection_without_a_request_is_closed() -> None:
    async with serving(first_request_timeout=0.1) as service, raw_peer(service.server.port) as peer:
        await peer.until_closed()
        assert peer.goodbye is not None
        assert service.refused("idle") == 1


async def test_a_connection_that_fell_idle_is_closed_but_not_one_with_a_stream() -> None:
    async with serving(idle_timeout=1.0) as service:
        stream = service.consumer().register(v1.RegisterRequest(consumer_name="busy"))
        await anext(stream)
        async with raw_peer(service.server.port) as peer:
            peer.send(call := peer.open(), framed(bytes(v1.RenewRequest(consumer_name="c"))), end=True)
            assert (await peer.status(call))[0] == 0
            await peer.until_closed()
        assert service.refused("idle") == 1
        service.members.streams["busy"].put(Commands(unassigned=((TopicPartition("t", 1), 1),)))
        assert (await anext(stream)).assignment is not None


async def test_a_call_whose_request_never_arrives_is_ended() -> None:
    async with serving(request_timeout=0.1) as service, raw_peer(service.server.port) as peer:
        status, text = await peer.status(peer.open())
        assert status == Status.DEADLINE_EXCEEDED.value
        assert "did not arrive" in text
        assert service.refused("request_timeout") == 1


async def test_a_peer_that_answers_no_ping_is_cut_off_and_its_stream_left() -> None:
    async with serving(ping_interval=0.05, ping_timeout=0.3) as service, raw_peer(service.server.port) as peer:
        peer.send(peer.open(REGISTER), framed(REGISTRATION), end=True)
        stream = await service.stream("raw")
        while await peer.read(acknowledge=False):
            pass
        assert peer.pings > 0
        await asyncio.wait_for(stream.left.wait(), 10)
        assert service.refused("dead_peer") == 1
        last = stream.heard()
        await asyncio.sleep(0.1)
        assert stream.heard() == last


async def test_a_loop_that_stood_still_takes_no_peer_for_dead() -> None:
    class Jumping(SystemClock):
        offset = 0.0

        def now(self) -> float:
            return super().now() + self.offset

    async with serving(ping_interval=0.05, ping_timeout=0.3) as service:
        clock = Jumping()
        service.server._traffic.clock = clock
        received = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
        await anext(received)
        stream = service.members.streams["c"]
        clock.offset = 3_600.0
        jumped = clock.now()
        await eventually(lambda: stream.heard() >= jumped)
        stream.put(None)
        assert [message async for message in received] == []
        assert service.refused("dead_peer") == 0
