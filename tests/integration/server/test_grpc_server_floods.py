"""Peers that flood the server, or do not read what it sends, are closed and harm only themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpclib.const import Status
from h2.settings import SettingCodes

from assigner.clock import SystemClock
from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition
from assigner.model.records import TopicConfig
from assigner.proto.kafka_assigner import v1
from assigner.server import ServerSettings
from assigner.server.transport import connection as connection_module
from assigner.server.transport.codec import ReadyBytesCodec
from assigner.server.transport.connection import PeerProtocol
from assigner.server.transport.traffic import Traffic
from tests.support.fakes.grpc_serving import Serving, eventually, serving, still_serves
from tests.support.network.raw_http2 import REGISTER, framed, raw_peer

REGISTRATION = bytes(v1.RegisterRequest(consumer_name="raw"))


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


async def test_calls_that_are_cancelled_in_haste_close_the_connection(
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


async def test_a_frame_longer_than_allowed_is_not_buffered(service: Serving) -> None:
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
            unread = await service.stream("raw")
            others = [service.consumer().register(v1.RegisterRequest(consumer_name=f"c{n}")) for n in range(20)]
            for stream in others:
                await anext(stream)
            unread.put(large(1), large(2))
            delays = []
            loop = asyncio.get_running_loop()
            while not service.refused("slow_consumer"):
                started = loop.time()
                for number, stream in enumerate(others):
                    service.members.streams[f"c{number}"].put(Commands(unassigned=((TopicPartition("t", 1), 1),)))
                    assert (await anext(stream)).assignment is not None
                delays.append(loop.time() - started)
                await asyncio.sleep(0.02)
            assert len(delays) > 3
            assert sorted(delays)[len(delays) // 2] < 1.0
            # It read nothing so far; the window was full, but the status still gets through.
            status, text = await slow.status(call)
        assert status == Status.RESOURCE_EXHAUSTED.value
        assert "nothing was read" in text
        await asyncio.wait_for(unread.left.wait(), 10)
        await still_serves(service)


async def test_a_long_reply_that_nobody_reads_is_abandoned() -> None:
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
        stream = await service.stream("raw")
        stream.put(*(large(number) for number in range(100)))
        await asyncio.wait_for(stream.left.wait(), 30)
        await eventually(lambda: service.server.statistics().connections == 0)
        assert service.refused("slow_consumer") == 1
