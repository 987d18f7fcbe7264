"""Calls of gateways over real gRPC: those that wait make room for themselves, and keep no short ones from an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pytest

from assigner.client.channel import Dialer, Unavailable, parse_address, unary_call
from assigner.clock import SystemClock
from assigner.model.kafka_groups import (
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    SyncAnswer,
    SyncRequest,
)
from assigner.model.keys import Keys
from assigner.proto import classic_groups as wire
from assigner.proto.classic_groups import Method
from assigner.proto.runtime import message_class
from assigner.server import GrpcServer, ServerSettings
from tests.support.fakes.grpc_serving import eventually

MANY = 400
JOIN = JoinRequest(group="g", session_timeout=1, rebalance_timeout=1, protocol_type="consumer", protocols=())


class Patient:
    """Holds every JoinGroup and SyncGroup until told, and answers the rest."""

    def __init__(self) -> None:
        self.held = 0
        self.cancelled = 0
        self.go = anyio.Event()
        self.callers: set[tuple[str, str]] = set()

    async def join(self, org: str, request: JoinRequest, *, principal: str) -> JoinAnswer:
        self.callers.add((org, principal))
        await self._hold()
        return JoinAnswer(generation=3)

    async def sync(self, org: str, request: SyncRequest, *, principal: str) -> SyncAnswer:
        await self._hold()
        return SyncAnswer(assignment=b"x" * 200_000)

    async def heartbeat(self, org: str, request: HeartbeatRequest, *, principal: str) -> HeartbeatAnswer:
        return HeartbeatAnswer(error=KafkaError.REBALANCE_IN_PROGRESS)

    async def _hold(self) -> None:
        self.held += 1
        try:
            await self.go.wait()
        except BaseException:
            self.cancelled += 1
            raise
        finally:
            self.held -= 1


class Served:
    def __init__(self, server: GrpcServer, groups: Patient) -> None:
        self.server = server
        self.groups = groups
        self.channel = Dialer(None, 30.0, 30.0).dial(parse_address(f"127.0.0.1:{server.port}"))

    async def call(self, method: Method, value: msgspec.Struct, *, org: str = "", principal: str = "") -> Any:
        request, kind = wire.message_of(method.request, value), message_class(method.answer)
        reply = await unary_call(self.channel, method.path, request, kind, 60, metadata=wire.carrier(org, principal))
        return wire.value_of(reply, method.answer_type, 1_000)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    groups: Any = Patient()
    nobody: Any = None
    server = GrpcServer(
        ServerSettings(port=0),
        nobody,
        nobody,
        nobody,
        nobody,
        default_group="default",
        clock=SystemClock(),
        ready=lambda: True,
        check_group=Keys().check_group,
        kafka_groups=groups,
    )
    await server.start()
    served = Served(server, groups)
    yield served
    served.channel.close()
    await server.close()


async def test_hundreds_of_joins_wait_on_one_connection_and_a_heartbeat_is_answered(served: Served) -> None:
    answers: list[JoinAnswer] = []

    async def join() -> None:
        answers.append(await served.call(wire.JOIN, JOIN, org="acme", principal="acme/ada"))

    async with anyio.create_task_group() as tasks:
        for _ in range(MANY):
            tasks.start_soon(join)
        await eventually(lambda: served.groups.held == MANY)
        heartbeat = HeartbeatRequest(group="g", member_id="m", generation=1)
        assert await served.call(wire.HEARTBEAT, heartbeat) == HeartbeatAnswer(error=KafkaError.REBALANCE_IN_PROGRESS)
        served.groups.go.set()
    assert answers == [JoinAnswer(generation=3)] * MANY
    assert served.groups.callers == {("acme", "acme/ada")}
    assert served.server.statistics().refused["streams"] == 0


async def test_a_call_that_is_cancelled_waits_no_longer(served: Served) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.call, wire.JOIN, JOIN)
        await eventually(lambda: served.groups.held == 1)
        tasks.cancel_scope.cancel()
    await eventually(lambda: served.groups.cancelled == 1)


async def test_an_assignment_may_be_long(served: Served) -> None:
    served.groups.go.set()
    answer = await served.call(wire.SYNC, SyncRequest(group="g", member_id="m", generation=1))
    assert len(answer.assignment) == 200_000


async def test_calls_that_wait_do_not_keep_a_server_from_its_end(served: Served) -> None:
    failures: list[Exception] = []

    async def join() -> None:
        try:
            await served.call(wire.JOIN, JOIN)
        except Unavailable as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(join)
        await eventually(lambda: served.groups.held == 3)
        await served.server.drain(0.1)
    assert len(failures) == 3
