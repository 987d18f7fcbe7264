"""Thousands of hostile requests over real sockets, while a member on another connection feels nothing."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest

from assigner.gateway.codec import encode, heartbeat_answer, make, milliseconds, nested, request_class
from assigner.gateway.requests import HandledApi, Request
from assigner.gateway.wire.versions import offered
from assigner.testing.waiting import eventually
from tests.support.gateway.hostile import HostileClient
from tests.support.gateway.serving import gateway_before
from tests.support.gateway.wired import BROKER_APIS, framed, framed_body
from tests.support.servers.mock_kafka import MockKafka

FRAMES = 4_000
AT_ONCE = 8
HEARTBEAT = 12
MEMBER: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


async def test_a_member_feels_nothing_of_hostile_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    def heartbeat(request: Request, _: Any) -> bytes:
        return heartbeat_answer(request.version, 0)

    handlers = {HEARTBEAT: HandledApi(0, 4, heartbeat)}
    mock = await asyncio.to_thread(MockKafka)
    async with gateway_before(mock.bootstrap, handlers) as server:
        hostile = HostileClient(1, offered(BROKER_APIS, handlers, with_sasl=False))
        attack = asyncio.gather(*(attack_until(server.port, hostile, FRAMES) for _ in range(AT_ONCE)))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[1])
        beats = 0
        while not attack.done() or beats < 100:
            beats += 1
            writer.write(framed(HEARTBEAT, 4, beats, **MEMBER))
            size, correlation = struct.unpack(">ii", await reader.readexactly(8))
            assert correlation == beats
            await reader.readexactly(size - 4)
            await asyncio.sleep(0)
        await attack
        await eventually(lambda: server.statistics().connections == 1, within=30)
        writer.close()
        counted = server.statistics()
        assert (counted.buffered_bytes, counted.parked) == (0, 0)
        assert counted.refused["malformed"] > FRAMES / 100
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def attack_until(port: int, hostile: HostileClient, frames: int) -> None:
    """Open one connection after the other, and send what a hostile client does."""
    while hostile.frames < frames:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in hostile.stream():
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
        del reader


async def test_silent_and_half_open_connections_are_closed_in_time() -> None:
    mock = await asyncio.to_thread(MockKafka)
    settings: dict[str, Any] = {"handshake_timeout": 3.0, "request_timeout": 0.2, "idle_timeout": 0.5}
    async with gateway_before(mock.bootstrap, **settings) as server:
        silent, beginning, asking = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        beginning[1].write(b"\0\0")
        asking[1].write(framed(18, 0, 1))
        half = await asyncio.open_connection("127.0.0.1", server.port)
        half[1].write(framed(18, 0, 1))
        half[1].write_eof()
        assert await half[0].read() != b""
        assert await silent[0].read() == b""
        assert await beginning[0].read() == b""
        # An answer, and then the end.
        assert len(await asking[0].read()) > 50
        await eventually(lambda: server.statistics().connections == 0, within=30)
        refused = server.statistics().refused
        assert (refused["handshake"], refused["slow"], refused["idle"]) == (1, 1, 1)
        for _, writer in (silent, beginning, asking, half):
            writer.close()


async def test_connections_are_bounded_in_all_and_by_address() -> None:
    mock = await asyncio.to_thread(MockKafka)
    async with gateway_before(mock.bootstrap, max_connections_per_address=4) as server:
        held = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(framed(3, 1, 1, topics=()))
            await reader.readexactly(8)
            held.append(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        assert server.statistics().refused["connections"] == 1
        assert server.statistics().connections == 4
        for one in (*held, writer):
            one.close()


async def test_a_client_that_does_not_read_costs_little_memory_and_is_cut_off() -> None:
    mock = await asyncio.to_thread(MockKafka)
    await asyncio.to_thread(lambda: mock.produce("t", 40, partitions=(0,), key=bytes(90_000)))
    async with gateway_before(mock.bootstrap, request_timeout=1.0) as server:
        broker = server.brokers.get(1)
        assert broker is not None
        assert broker.apis is not None
        version = min(11, broker.apis.ranges[1][1])
        schema = request_class(1, version)
        partition = make(
            nested(schema, "FetchPartition"),
            partition=0,
            fetch_offset=0,
            partition_max_bytes=4_000_000,
            current_leader_epoch=-1,
            log_start_offset=-1,
            last_fetched_epoch=-1,
        )
        fetch = make(
            schema,
            replica_id=-1,
            max_wait=milliseconds(0),
            min_bytes=1,
            max_bytes=4_000_000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(make(nested(schema, "FetchTopic"), topic="t", partitions=(partition,)),),
            forgotten_topics_data=(),
            rack_id="",
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports[1], limit=1_000)
        writer.write(b"".join(framed_body(1, version, n, encode(fetch)) for n in range(90)))
        await eventually(lambda: server.statistics().refused.get("slow", 0) == 1, within=30)
        # 90 answers are 300 MB: it was sent what fits into the system's buffers, and a little more.
        assert 1_000_000 < server.statistics().sent_bytes < 30_000_000
        await eventually(lambda: server.statistics().connections == 0, within=30)
        writer.close()
        del reader
