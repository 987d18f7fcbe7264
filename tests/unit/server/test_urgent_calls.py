"""Which calls come before what else their connection asks for: those that leases and handoffs wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpclib.server import Stream

from assigner.proto.kafka_assigner import v1
from assigner.server.transport.calls import guarded

METHODS = [*v1.KafkaAssignerBase().__mapping__(), *v1.RouterBase().__mapping__()]
URGENT = {"Renew", "PartitionReady", "PartitionReleased", "RenewRouter", "CutoverAck"}


class Turns:
    def __init__(self) -> None:
        self.urgent: list[bool] = []

    async def take(self, share: object, *, urgent: bool = False) -> None:
        self.urgent.append(urgent)


class Call:
    admitted = SimpleNamespace(changes=False)

    async def run(self, work: object, stream: object) -> None: ...


@pytest.mark.parametrize("method", METHODS)
async def test_renewals_and_acks_of_consumers_and_routers_are_urgent_and_nothing_else_is(method: str) -> None:
    turns = Turns()
    http2 = SimpleNamespace(call=Call(), traffic=SimpleNamespace(turns=turns), share=None, connection=None)

    async def work(_: Stream[Any, Any]) -> None: ...

    await guarded(method, work)(cast(Stream[Any, Any], SimpleNamespace(_stream=http2)))
    assert turns.urgent == [method.rpartition("/")[2] in URGENT]
