"""Every limit of the server is hit once, and peers that break the rules harm only themselves."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any, cast

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from h2.settings import SettingCodes

from assigner.clock import SystemClock
from assigner.errors import InvalidInput
from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition
from assigner.model.records import TopicConfig
from assigner.proto.kafka_assigner import v1
from assigner.server import ServerSettings
from assigner.server.transport import admission as admission_module
from assigner.server.transport import connection as connection_module
from assigner.server.transport.codec import ReadyBytesCodec
from assigner.server.transport.connection import PeerProtocol
from assigner.server.transport.traffic import Traffic
from tests.support.fakes.grpc_serving import Serving, eventually, serving
from tests.support.measurement import counted_calls
from tests.support.network.raw_http2 import REGISTER, framed, raw_peer

REGISTRATION = bytes(v1.RegisterRequest(consumer_name="raw"))


async def status_of(call: Any) -> GRPCError:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value


async def still_serves(service: Serving) -> None:
    response = await service.consumer().renew(v1.RenewRequest(consumer_name="other"), timeout=15)
    assert response.ttl_ms == 30_000


@pytest.fixture
async def service() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


# --- messages ----------------------------------------------------------------------------------------------------


async def test_a_request_over_the_size_limit_is_refused(service: Serving) -> None:
    refusal = await status_of(service.consumer().renew(v1.RenewRequest(consumer_name="x" * 2_000_000)))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert service.refused("message_size") == 1


async def test_a_length_of_four_gibibytes_is_refused_before_anything_is_kept(service: Serving) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with raw_peer(service.server.port) as peer:
        stream = peer.open()
        peer.send(stream, b"\0\xff\xff\xff\xff" + b"x" * 10_000)
        status, text = await peer.status(stream)
    assert status == Status.RESOURCE_EXHAUSTED.value
    assert "4294967295 bytes" in text
    # In KiB, the most there ever was.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", Status.INVALID_ARGUMENT),
        (b"\0\0", Status.INVALID_ARGUMENT),
        (b"\0\0\0\0\x0aabc", Status.INVALID_ARGUMENT),
        (b"\0\0\0\0\x05", Status.INVALID_ARGUMENT),
        (framed(b"\xff\xff\xff"), Status.INVALID_ARGUMENT),
        (framed(b"\x0a\x02\xff\xfe"), Status.INVALID_ARGUMENT),
        (b"\1" + framed(b"x")[1:], Status.UNIMPLEMENTED),
    ],
    ids=["none", "half a prefix", "cut short", "only a prefix", "no protobuf", "no utf-8", "compressed"],
)
async def test_a_malformed_request_gets_a_status(service: Serving, payload: bytes, expected: Status) -> None:
    async with raw_peer(service.server.port) as peer:
        stream = peer.open()
        peer.send(stream, payload, end=True)
        assert (await peer.status(stream))[0] == expected.value


async def test_a_batch_over_the_limit_is_refused() -> None:
    async with serving(max_batch=10) as service:
        answer = v1.PartitionAnswer(partition=v1.TopicPartition(topic="t"))
        stub = service.consumer()
        await stub.partition_ready(v1.PartitionReadyRequest(consumer_name="c", batch=[answer] * 10))
        refusal = await status_of(
            stub.partition_ready(v1.PartitionReadyRequest(consumer_name="c", batch=[answer] * 11))
        )
        assert refusal.status is Status.RESOURCE_EXHAUSTED
        assert service.refused("batch_size") == 1
        topics = [f"t{number}" for number in range(11)]
        refusal = await status_of(anext(stub.register(v1.RegisterRequest(consumer_name="c", topics=topics))))
        assert refusal.status is Status.RESOURCE_EXHAUSTED


async def test_the_longest_batch_of_tiny_elements_does_not_hold_the_loop(service: Serving) -> None:
    # Each element is 4 bytes long: reading them into Python objects first would take seconds, and millions of calls.
    message = b"\x0a\x01c" + b"\x72\x02\x0a\x00" * 250_000
    async with raw_peer(service.server.port) as peer:
        stream = peer.open("/kafka_assigner.v1.KafkaAssigner/PartitionReady")
        data = framed(message)
        with counted_calls() as calls:
            while data:
                room = min(peer.h2.local_flow_control_window(stream), peer.h2.max_outbound_frame_size)
                if not room:
                    await peer.read()
                    continue
                peer.send(stream, data[:room], end=len(data) <= room)
                data = data[room:]
            assert (await peer.status(stream))[0] == Status.RESOURCE_EXHAUSTED.value
        # Most of them are of the slices in which a stranger's bytes are worked off.
        assert calls.lap() < 200_000


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
        await service.seat("raw")
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


async def test_a_rude_peer_that_goes_on_opening_streams_is_closed(service: Serving) -> None:
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


async def test_one_connection_too_many_is_told_and_closed() -> None:
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


async def test_a_stranger_makes_room_for_who_comes_and_a_consumer_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_module, "_A_WHILE", 0.0)
    async with serving(max_connections=2) as service, raw_peer(service.server.port) as stranger:
        stream = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
        await anext(stream)
        await stranger.read()
        await still_serves(service)
        await stranger.until_closed()
        assert stranger.goodbye is not None
        assert stranger.goodbye.additional_data == b"too many connections; use another instance"
        service.members.seats["c"].put(None)
        assert [message async for message in stream] == []


async def test_connections_from_one_address_are_bounded() -> None:
    async with serving(max_connections_per_address=2) as service, AsyncExitStack() as stack:
        for _ in range(2):
            await (await stack.enter_async_context(raw_peer(service.server.port))).read()
        third = await stack.enter_async_context(raw_peer(service.server.port))
        await third.until_closed()
        assert service.refused("connections") == 1


# --- headers -----------------------------------------------------------------------------------------------------


async def test_too_much_metadata_is_refused(service: Serving) -> None:
    metadata = {f"key-{number}": "x" * 1_000 for number in range(20)}
    refusal = await status_of(service.consumer().renew(v1.RenewRequest(consumer_name="c"), metadata=metadata))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert service.refused("metadata_size") == 1


async def test_far_too_much_metadata_closes_the_connection(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        peer.open(extra=[(f"key-{number}", "x" * 4_000) for number in range(30)])
        await peer.until_closed()
    assert service.refused("protocol") == 1
    await still_serves(service)


@pytest.mark.parametrize("extra", [("some-bin", "a"), ("grpc-timeout", "soon")])
async def test_malformed_metadata_gets_a_status(service: Serving, extra: tuple[str, str]) -> None:
    async with raw_peer(service.server.port) as peer:
        status, _ = await peer.status(peer.open(extra=[extra]))
        assert status in (Status.INVALID_ARGUMENT.value, Status.UNKNOWN.value)
        peer.send(stream := peer.open(), framed(bytes(v1.RenewRequest(consumer_name="c"))), end=True)
        assert (await peer.status(stream))[0] == 0


async def test_headers_without_a_path_get_a_status(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        stream = peer.h2.get_next_available_stream_id()
        peer.h2.send_headers(stream, [(":method", "POST"), ("x", "y")])
        peer.flush()
        assert (await peer.status(stream))[0] == Status.INVALID_ARGUMENT.value


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
        service.members.seats["busy"].put(Commands(unassigned=((TopicPartition("t", 1), 1),)))
        assert (await anext(stream)).assignment is not None


async def test_a_call_whose_request_never_arrives_is_ended() -> None:
    async with serving(request_timeout=0.1) as service, raw_peer(service.server.port) as peer:
        status, text = await peer.status(peer.open())
        assert status == Status.DEADLINE_EXCEEDED.value
        assert "did not arrive" in text
        assert service.refused("request_timeout") == 1


async def test_a_peer_that_answers_no_ping_is_cut_off_and_its_seat_left() -> None:
    async with serving(ping_interval=0.05, ping_timeout=0.3) as service, raw_peer(service.server.port) as peer:
        peer.send(peer.open(REGISTER), framed(REGISTRATION), end=True)
        seat = await service.seat("raw")
        while await peer.read(acknowledge=False):
            pass
        assert peer.pings > 0
        await asyncio.wait_for(seat.left.wait(), 10)
        assert service.refused("dead_peer") == 1
        last = seat.heard()
        await asyncio.sleep(0.1)
        assert seat.heard() == last


async def test_a_loop_that_stood_still_takes_no_peer_for_dead() -> None:
    class Jumping(SystemClock):
        offset = 0.0

        def now(self) -> float:
            return super().now() + self.offset

    async with serving(ping_interval=0.05, ping_timeout=0.3) as service:
        clock = Jumping()
        service.server._traffic.clock = clock
        stream = service.consumer().register(v1.RegisterRequest(consumer_name="c"))
        await anext(stream)
        seat = service.members.seats["c"]
        clock.offset = 3_600.0
        jumped = clock.now()
        await eventually(lambda: seat.heard() >= jumped)
        service.members.seats["c"].put(None)
        assert [message async for message in stream] == []
        assert service.refused("dead_peer") == 0


# --- floods ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\0\0\x08\6\0\0\0\0\x0012345678", id="ping"),
        pytest.param(b"\0\0\x08\6\1\0\0\0\x0012345678", id="ping_ack"),
        pytest.param(b"\0\0\0\4\0\0\0\0\0", id="settings"),
        pytest.param(b"\0\0\0\4\1\0\0\0\0", id="settings_ack"),
        pytest.param(b"\0\0\4\x08\0\0\0\0\0\0\0\0\1", id="window_update"),
        pytest.param(b"\0\0\5\2\0\0\0\0\1\0\0\0\0\1", id="priority"),
        pytest.param(b"\0\0\0\xee\0\0\0\0\0", id="unknown"),
        pytest.param(b"\0\0\0\0\0\0\0\0\1", id="empty_data"),
    ],
)
async def test_a_flood_of_frames_without_data_closes_the_connection(
    service: Serving, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    monkeypatch.setattr(connection_module, "_MAX_CONTROL_FRAMES", 500)
    async with raw_peer(service.server.port) as peer:
        peer.open()
        peer.writer.write(600 * frame)
        await peer.until_closed()
        assert peer.goodbye is not None
        assert b"no data" in (peer.goodbye.additional_data or b"")
    assert service.refused("flood") == 1


async def test_calls_with_too_much_metadata_are_refused_and_after_a_few_the_connection_is_closed(
    service: Serving,
) -> None:
    async with raw_peer(service.server.port) as peer:
        for _ in range(20):
            peer.open(extra=[("x", "x" * 17_000)])
        await peer.until_closed()
        assert peer.goodbye is not None
        assert peer.goodbye.additional_data == b"too many calls with too much metadata"
    assert service.refused("flood") == 1
    assert service.refused("metadata_size") <= 10


async def test_calls_that_are_given_up_in_haste_close_the_connection(
    service: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_MAX_CONTROL_FRAMES", 500)
    async with raw_peer(service.server.port) as peer:
        for _ in range(200):
            peer.h2.reset_stream(peer.open(REGISTER))
        peer.flush()
        await peer.until_closed()
    assert service.refused("flood") == 1
    await eventually(lambda: service.server.statistics().streams == 0)


async def test_a_frame_longer_than_allowed_is_not_awaited(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        peer.writer.write(b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 20_000)
        await peer.until_closed()
    assert service.refused("protocol") == 1


async def test_empty_data_frames_are_not_kept(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        stream = peer.open()
        for _ in range(1_000):
            peer.send(stream, b"")
        peer.send(stream, framed(bytes(v1.RenewRequest(consumer_name="c"))), end=True)
        assert (await peer.status(stream))[0] == 0


async def test_acknowledgements_that_nobody_reads_do_not_pile_up() -> None:
    class Stuck(asyncio.Transport):
        aborted = False
        written = 0

        def write(self, data: Any) -> None:
            self.written += len(data)

        def get_write_buffer_size(self) -> int:
            return self.written

        def is_closing(self) -> bool:
            return self.aborted

        def abort(self) -> None:
            self.aborted = True

        def close(self) -> None:
            pass

    transport = Stuck()
    traffic = Traffic(ServerSettings(), SystemClock())
    protocol = PeerProtocol(traffic, {}, ReadyBytesCodec(10), traffic.admission.admit("127.0.0.1", 0.0))
    protocol.connection_made(transport)
    transport.written = connection_module._MAX_UNREAD
    protocol.data_received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    assert transport.aborted
    protocol.connection_lost(None)
    assert traffic.statistics().refused["unread"] == 1


# --- readers that do not read ------------------------------------------------------------------------------------


def large(number: int) -> Commands:
    return Commands(assigned=tuple((TopicPartition("orders", p), number + 1) for p in range(20_000)))


async def test_a_slow_reader_is_closed_while_twenty_others_go_on() -> None:
    async with serving(slow_consumer_timeout=2.0) as service:
        async with raw_peer(service.server.port) as slow:
            call = slow.open(REGISTER)
            slow.send(call, framed(REGISTRATION), end=True)
            seat = await service.seat("raw")
            others = [service.consumer().register(v1.RegisterRequest(consumer_name=f"c{n}")) for n in range(20)]
            for stream in others:
                await anext(stream)
            seat.put(large(1), large(2))
            delays = []
            loop = asyncio.get_running_loop()
            while not service.refused("slow_consumer"):
                started = loop.time()
                for number, stream in enumerate(others):
                    service.members.seats[f"c{number}"].put(Commands(unassigned=((TopicPartition("t", 1), 1),)))
                    assert (await anext(stream)).assignment is not None
                delays.append(loop.time() - started)
                await asyncio.sleep(0.02)
            assert len(delays) > 3
            assert sorted(delays)[len(delays) // 2] < 1.0
            # It read nothing so far; the window was full, but the status still gets through.
            status, text = await slow.status(call)
        assert status == Status.RESOURCE_EXHAUSTED.value
        assert "nothing was read" in text
        await asyncio.wait_for(seat.left.wait(), 10)
        await still_serves(service)


async def test_a_long_reply_that_nobody_reads_is_given_up() -> None:
    async with serving(slow_consumer_timeout=0.3) as service, raw_peer(service.server.port) as slow:
        service.administration.configs = {
            f"topic-{number}": TopicConfig(topic=f"topic-{number}", partition_count=1) for number in range(20_000)
        }
        call = slow.open("/kafka_assigner.v1.Admin/ListTopics")
        slow.send(call, framed(b""), end=True)
        await eventually(lambda: service.refused("slow_consumer") == 1)
        assert (await slow.status(call))[0] == Status.RESOURCE_EXHAUSTED.value


async def test_a_reader_whose_whole_connection_is_stuck_is_cut_off() -> None:
    async with serving(slow_consumer_timeout=0.3) as service, raw_peer(service.server.port, greet=False) as stuck:
        # Windows without bound, so that only the sockets' buffers hold the server back.
        stuck.h2.initiate_connection()
        stuck.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
        stuck.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        stuck.flush()
        stuck.send(stuck.open(REGISTER), framed(REGISTRATION), end=True)
        seat = await service.seat("raw")
        seat.put(*(large(number) for number in range(100)))
        await asyncio.wait_for(seat.left.wait(), 30)
        await eventually(lambda: service.server.statistics().connections == 0)
        assert service.refused("slow_consumer") == 1


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"port": 70_000},
        {"max_streams": 0},
        {"ping_interval": float("nan")},
        {"ping_interval": 30.0},
        {"stream_window": 1_000},
        {"connection_window": 2**31},
        {"tls_certificate": "/a"},
        {"tls_client_ca": "/a"},
        {"slow_consumer_timeout": -1.0},
    ],
)
def test_settings_that_can_not_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        ServerSettings(**wrong)
    assert next(iter(wrong)) in str(refusal.value)
