"""Peers that are careless rather than hostile: deadlines that are over, odd letters, answers that nobody reads."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner.model.records import TopicConfig
from assigner.proto.kafka_assigner import v1
from assigner.server.transport import connection as connection_module
from assigner.server.transport import send_buffers as sending_module
from tests.support.fakes.grpc_serving import Serving, eventually, serving
from tests.support.network.raw_http2 import framed, raw_peer

RENEWAL = framed(bytes(v1.RenewRequest(consumer_name="c")))
LIST_TOPICS = "/kafka_assigner.v1.Admin/ListTopics"


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- deadlines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", ["0n", "0S", "1n"])
async def test_a_deadline_that_is_over_is_answered_as_such_and_logged_by_nobody(
    service: Serving, caplog: pytest.LogCaptureFixture, timeout: str
) -> None:
    async with raw_peer(service.server.port) as peer:
        peer.send(stream := peer.open(extra=[("grpc-timeout", timeout)]), RENEWAL, end=True)
        assert (await peer.status(stream))[0] == Status.DEADLINE_EXCEEDED.value
    assert not complaints(caplog)


async def test_a_deadline_that_passes_meanwhile_is_answered_as_such(
    service: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    service.members.gate.clear()
    async with raw_peer(service.server.port) as peer:
        peer.send(stream := peer.open(extra=[("grpc-timeout", "100m")]), RENEWAL, end=True)
        assert (await peer.status(stream))[0] == Status.DEADLINE_EXCEEDED.value
    await eventually(lambda: service.server.statistics().streams == 0)
    assert not complaints(caplog)


async def test_a_deadline_that_does_not_pass_changes_nothing(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        peer.send(stream := peer.open(extra=[("grpc-timeout", "60S")]), RENEWAL, end=True)
        assert (await peer.status(stream))[0] == 0


# --- what is said in headers -------------------------------------------------------------------------------------


async def test_an_unknown_path_is_not_repeated_whole(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        status, text = await peer.status(peer.open("/" + 10_000 * "x"))
    assert status == Status.UNIMPLEMENTED.value
    assert len(text) <= 600
    assert "there is no method /xxx" in text


async def test_a_header_that_is_not_ascii_concerns_its_call_alone(service: Serving) -> None:
    async with raw_peer(service.server.port) as peer:
        status, text = await peer.status(peer.open(extra=[("name", "Jörg")]))
        assert status == Status.INVALID_ARGUMENT.value
        assert "malformed" in text
        peer.send(stream := peer.open(), RENEWAL, end=True)
        assert (await peer.status(stream))[0] == 0


# --- answers that nobody reads -----------------------------------------------------------------------------------


def long_answers(service: Serving) -> None:
    """Answers of some 300 KiB."""
    names = [f"topic-{number}" for number in range(20_000)]
    service.administration.configs = {name: TopicConfig(topic=name, partition_count=1) for name in names}


async def test_only_a_few_questions_of_operators_are_worked_on_per_connection(
    service: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ADMIN_AT_ONCE", 3)
    long_answers(service)
    async with raw_peer(service.server.port) as peer:
        for _ in range(20):
            peer.send(peer.open(LIST_TOPICS), framed(b""), end=True)
        await eventually(lambda: service.server._traffic.sending.bytes > 0)
        await eventually(lambda: len(service.server._traffic.turns) == 0)
        one = service.server._traffic.sending.bytes
        assert service.server.statistics().streams == 20
        # Its windows take 64 KiB; what else is ready waits.
        assert one < 3 * 450_000


async def test_more_answers_than_a_connection_may_leave_unread_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "MAX_UNREAD_PER_CONNECTION", 500_000)
    async with serving() as service, raw_peer(service.server.port) as peer:
        long_answers(service)
        streams = [peer.open(LIST_TOPICS) for _ in range(4)]
        for stream in streams:
            peer.send(stream, framed(b""), end=True)
        await eventually(lambda: service.refused("unread_answers") >= 1)
        assert service.server._traffic.sending.bytes <= 500_000
        # The connection itself goes on.
        peer.send(renewal := peer.open(), RENEWAL, end=True)
        peer.h2.increment_flow_control_window(2**20)
        assert (await peer.status(renewal))[0] == 0


async def test_when_too_much_is_left_unread_in_all_who_leaves_most_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending_module, "MAX_UNREAD", 1_000_000)
    monkeypatch.setattr(sending_module, "_STALLED", 0.0)
    async with serving() as service, raw_peer(service.server.port) as greedy, raw_peer(service.server.port) as modest:
        long_answers(service)
        modest.send(modest.open(LIST_TOPICS), framed(b""), end=True)
        await eventually(lambda: service.server._traffic.sending.bytes > 0)
        for _ in range(5):
            greedy.send(greedy.open(LIST_TOPICS), framed(b""), end=True)
        await greedy.until_closed()
        assert service.refused("unread_answers") == 1
        assert service.server.statistics().connections == 1
        modest.send(renewal := modest.open(), RENEWAL, end=True)
        assert (await modest.status(renewal))[0] == 0


async def test_what_was_sent_or_cancelled_is_not_counted_as_unread(service: Serving) -> None:
    long_answers(service)
    await service.admin().list_topics(v1.ListTopicsRequest())
    async with raw_peer(service.server.port) as peer:
        peer.send(stream := peer.open(LIST_TOPICS), framed(b""), end=True)
        await eventually(lambda: service.server._traffic.sending.bytes > 0)
        peer.h2.reset_stream(stream)
        peer.flush()
        await eventually(lambda: service.server._traffic.sending.bytes == 0)


# --- reflection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "insecure", "there"), [("127.0.0.1", False, True), ("0.0.0.0", True, False)])
async def test_reflection_is_there_where_only_this_machine_can_ask(host: str, insecure: bool, there: bool) -> None:
    async with serving(host=host, insecure=insecure) as service, raw_peer(service.server.port) as peer:
        stream = peer.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", end=True)
        status, _ = await peer.status(stream)
        assert (status != Status.UNIMPLEMENTED.value) == there


async def test_reflection_can_be_wanted_everywhere() -> None:
    async with serving(host="0.0.0.0", insecure=True, reflection="on") as service:
        with pytest.raises(GRPCError):
            await service.consumer().renew(v1.RenewRequest())
        async with raw_peer(service.server.port) as peer:
            stream = peer.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", end=True)
            assert (await peer.status(stream))[0] != Status.UNIMPLEMENTED.value
