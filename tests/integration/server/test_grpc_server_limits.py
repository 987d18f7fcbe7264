"""Requests beyond the limits of the server get a status, and settings that can't work are refused."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from grpclib.const import Status

from assigner.errors import InvalidInput
from assigner.proto.kafka_assigner import v1
from assigner.server import ServerSettings
from tests.support.fakes.grpc_serving import Serving, serving, status_of, still_serves
from tests.support.measurement import counted_calls
from tests.support.network.raw_http2 import framed, raw_peer

REGISTRATION = bytes(v1.RegisterRequest(consumer_name="raw"))


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
