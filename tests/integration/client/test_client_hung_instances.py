"""Instances that accept a call and never respond: a consumer that has another instance keeps its gates open.

On virtual time, with the times that a client has unless told otherwise: both ends of every socket are in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from assigner.client import AssignerConsumer, Timing
from assigner.clock import LoopClock
from assigner.testing.waiting import eventually
from tests.support.clients.recording_handler import Recorder
from tests.support.fakes.scripted_assigner import TOPIC, ScriptedAssigner

pytestmark = pytest.mark.virtual_time(sockets="local")
BEGINS_AT_THE_FIRST = "x"
"""A session that decides for the first of three addresses."""


@asynccontextmanager
async def three(ttl: float) -> AsyncIterator[tuple[list[ScriptedAssigner], AssignerConsumer]]:
    """Three instances and a consumer of the first of them, with a partition."""
    async with AsyncExitStack() as stack:
        instances = [await stack.enter_async_context(ScriptedAssigner(ttl=ttl, owned={"p0": 5})) for _ in range(3)]
        addresses = [instance.address for instance in instances]
        consumer = AssignerConsumer(
            addresses, "g", "c", [TOPIC], Recorder(), session=BEGINS_AT_THE_FIRST, clock=LoopClock(), timing=Timing()
        )
        await stack.enter_async_context(consumer)
        await eventually(lambda: len(consumer.partitions) == 1, what="a partition with its gate open")
        assert instances[0].streams
        yield instances, consumer
        for instance in instances:
            instance.hang.clear()


@pytest.mark.parametrize("ttl", [10.0, 30.0, 60.0])
async def test_with_two_of_three_hung_the_gates_stay_open(ttl: float) -> None:
    async with three(ttl) as (instances, consumer):
        await eventually(lambda: len(instances[0].renewals) >= 2, within=ttl)
        instances[0].hang |= {"renew", "register"}
        instances[1].hang |= {"renew", "register"}
        await eventually(lambda: bool(instances[2].renewals), within=2 * ttl, what="renewed at the third")
        assert instances[1].asked.count("register") == 1
        assert consumer.statistics().leases_lost == 0
        assert consumer.gate(TOPIC, 0).admit() == 5


async def test_a_registration_has_all_its_time_while_there_is_no_lease_to_lose() -> None:
    async with three(30.0) as (instances, consumer):
        for instance in instances:
            instance.hang |= {"renew", "register"}
        await eventually(lambda: consumer.statistics().leases_lost == 1, within=60)
        for instance in instances:
            # Slow is not hung: it answers after most of the time that a call may take.
            instance.hang.discard("register")
            instance.hold["register"] = anyio.Event()
        before = sum(instance.asked.count("register") for instance in instances)
        await eventually(lambda: sum(one.asked.count("register") for one in instances) > before, within=60)
        await anyio.sleep(Timing().call_timeout * 0.8)
        assert sum(instance.asked.count("register") for instance in instances) == before + 1, "not given up yet"
        for instance in instances:
            instance.hang.clear()
            instance.hold["register"].set()
        await eventually(lambda: consumer.is_connected and bool(consumer.partitions), within=60)
