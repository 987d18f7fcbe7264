"""Whatever bytes a peer sends, nothing is raised out of the server and the others are served."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from assigner.proto.kafka_assigner import v1
from tests.support.fakes.grpc_serving import Serving, eventually, serving
from tests.support.network.raw_http2 import REGISTER, RENEW, RawPeer, framed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
ROUNDS = 150


@pytest.fixture
async def service(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Serving]:
    """A server on a loop that remembers every exception nobody handled."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with serving(request_timeout=3.0) as running:
        yield running
        response = await running.consumer().renew(v1.RenewRequest(consumer_name="c"), timeout=15)
        assert response.ttl_ms == 30_000
        await eventually(lambda: running.server.statistics().connections == 1)
        await eventually(lambda: running.server.statistics().streams == 0)
    assert unhandled == []
    # Neither a defect of ours nor what grpclib logs when it is at its wits' end.
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def throw(service: Serving, data: bytes) -> None:
    """Send the bytes on a connection of their own and hang up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    writer.write(data)
    try:
        await asyncio.wait_for(reader.read(65_536), 0.5)
        await asyncio.wait_for(reader.read(65_536), 0.01)
    except (TimeoutError, ConnectionError):
        pass
    writer.transport.abort()


@pytest.mark.parametrize("seed", range(3))
async def test_random_bytes(service: Serving, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        await throw(service, dice.randbytes(dice.randint(1, 2_000)))
    assert service.refused("protocol") > ROUNDS // 2


@pytest.mark.parametrize("seed", range(3))
async def test_random_bytes_after_the_preface(service: Serving, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        await throw(service, PREFACE + SETTINGS + dice.randbytes(dice.randint(1, 2_000)))


def random_frame(dice: random.Random) -> bytes:
    body = dice.randbytes(dice.choice([0, 4, 5, 8, dice.randint(0, 300)]))
    stream = dice.choice([0, 1, 1, 3, 5, 2, dice.randint(0, 2**31 - 1)])
    kind = dice.choice([*range(11), dice.randint(0, 255)])
    return len(body).to_bytes(3, "big") + bytes([kind, dice.randint(0, 255)]) + stream.to_bytes(4, "big") + body


@pytest.mark.parametrize("seed", range(3))
async def test_random_frames(service: Serving, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        frames = b"".join(random_frame(dice) for _ in range(dice.randint(1, 12)))
        await throw(service, PREFACE + SETTINGS + frames)
    assert service.refused("protocol") > ROUNDS // 2


def recorded() -> bytes:
    """What a well-behaved client sends: a registration and a few renewals."""
    peer = RawPeer.__new__(RawPeer)
    RawPeer.__init__(peer, None, _Kept())  # type: ignore[arg-type]
    peer.greet()
    peer.send(peer.open(REGISTER), framed(bytes(v1.RegisterRequest(consumer_name="c", topics=["a", "b"]))), end=True)
    for _ in range(3):
        peer.send(peer.open(RENEW), framed(bytes(v1.RenewRequest(consumer_name="c"))), end=True)
    return bytes(peer.writer.content)  # type: ignore[attr-defined]


class _Kept:
    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: bytes) -> None:
        self.content += data


@pytest.mark.parametrize("seed", range(3))
async def test_a_good_conversation_with_some_bytes_changed(service: Serving, seed: int) -> None:
    dice = random.Random(seed)
    good = recorded()
    for _ in range(ROUNDS):
        data = bytearray(good)
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(len(PREFACE), len(data))] = dice.randrange(256)
        await throw(service, bytes(data[: dice.randint(len(PREFACE), len(data))]))


@pytest.mark.parametrize("seed", range(3))
async def test_good_requests_with_random_messages(service: Serving, seed: int) -> None:
    dice = random.Random(seed)
    methods = ["Register", "PartitionReady", "PartitionReleased", "Deregister", "Renew"]
    admin = ["SetTopic", "DescribeGroup", "SetGroupOptions", "Drain"]
    paths = [f"/kafka_assigner.v1.KafkaAssigner/{name}" for name in methods]
    paths += [f"/kafka_assigner.v1.Admin/{name}" for name in admin]
    paths += ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"]
    for _ in range(ROUNDS // 5):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
        peer = RawPeer(reader, writer)
        peer.greet()
        calls = []
        for path in paths:
            calls.append(call := peer.open(path))
            peer.send(call, framed(dice.randbytes(dice.randint(0, 40))), end=True)
        for call in calls:
            # A status, whatever it is; Register may be taken, and then goes on.
            if call != 1:
                await peer.status(call)
        writer.transport.abort()
