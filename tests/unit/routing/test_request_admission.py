"""While a request is admitted, its task knows its target, and the gate counts it: no longer and no shorter."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from assigner.client import AssignerConsumer, Handler, TopicPartition
from assigner.clock import LoopClock
from assigner.routing import Target
from assigner.routing.admission import NotAdmitted, RequestAdmission, request_target
from assigner.routing.headers import headers_of

pytestmark = pytest.mark.virtual_time

HEADERS = headers_of(Target("orders", 3, "worker-1", "h:1", 5), "billing")


@pytest.fixture
async def consumer() -> AssignerConsumer:
    """One that never connects, with one open gate."""
    clock = LoopClock()
    consumer = AssignerConsumer("h:1", "billing", "worker-1", ["orders"], Handler(), clock=clock)
    consumer._runner.state.lease.renewed(clock.now(), 3_600.0)
    consumer._runner.state.gate(TopicPartition("orders", 3)).open(5)
    return consumer


async def test_a_request_has_its_target_and_is_counted_until_it_has_ended(consumer: AssignerConsumer) -> None:
    gate = consumer.gate("orders", 3)
    async with AsyncExitStack() as admitted:
        await RequestAdmission(consumer).admit(HEADERS.items(), admitted)
        assert (request_target().partition, gate.inside) == (3, 1)
    assert gate.inside == 0
    with pytest.raises(LookupError, match="has no target"):
        request_target()


async def test_a_request_without_a_target_is_let_through_only_where_it_needs_none(consumer: AssignerConsumer) -> None:
    async with AsyncExitStack() as admitted:
        await RequestAdmission(consumer, required=False).admit([("host", "h:1")], admitted)
        with pytest.raises(LookupError):
            request_target()
        with pytest.raises(NotAdmitted, match="send it by way of a router"):
            await RequestAdmission(consumer).admit([("host", "h:1")], admitted)


async def test_a_malformed_target_is_refused_even_where_none_is_needed(consumer: AssignerConsumer) -> None:
    async with AsyncExitStack() as admitted:
        with pytest.raises(NotAdmitted, match="assigner-epoch"):
            await RequestAdmission(consumer, required=False).admit(
                (HEADERS | {"assigner-epoch": "x"}).items(), admitted
            )


async def test_a_group_that_is_not_said_is_not_compared(consumer: AssignerConsumer) -> None:
    headers = {name: value for name, value in HEADERS.items() if name != "assigner-group"}
    async with AsyncExitStack() as admitted:
        await RequestAdmission(consumer).admit(headers.items(), admitted)
        assert request_target().group == ""
