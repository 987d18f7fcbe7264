"""Instances that accept a call and never answer: a router that has another instance goes on routing.

On virtual time, with the times that a router has unless told otherwise: both ends of every socket are in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from assigner.clock import LoopClock
from assigner.model.keys import TopicPartition
from assigner.routing import Router, Timing
from assigner.testing.waiting import eventually
from tests.support.fakes.scripted_routers import TOPIC, ScriptedRouters, at

pytestmark = pytest.mark.virtual_time(sockets="local")
BEGINS_AT_THE_FIRST = "x"
"""A session that decides for the first of three addresses."""


@asynccontextmanager
async def three(ttl: float) -> AsyncIterator[tuple[list[ScriptedRouters], Router]]:
    """Three instances, and a router of the first of them."""
    async with AsyncExitStack() as stack:
        instances = [await stack.enter_async_context(ScriptedRouters(ttl=ttl, p0=at("a", 1))) for _ in range(3)]
        addresses = [instance.address for instance in instances]
        router = Router(addresses, "g", "r", session=BEGINS_AT_THE_FIRST, clock=LoopClock(), timing=Timing())
        await stack.enter_async_context(router)
        assert instances[0].streams
        yield instances, router
        for instance in instances:
            instance.hang.clear()


async def keep_asking(router: Router, targets: list[str]) -> None:
    while True:
        async with router.route_partition(TOPIC, 0) as target:
            targets.append(target.owner)
        await anyio.sleep(0.5)


@pytest.mark.parametrize("ttl", [10.0, 30.0, 60.0])
async def test_with_two_of_three_hung_no_request_has_to_wait(ttl: float) -> None:
    async with three(ttl) as (instances, router):
        targets: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_asking, router, targets)
            await eventually(lambda: len(instances[0].renewals) >= 2, within=ttl, every=0.2)
            for instance in instances[:2]:
                instance.hang |= {"renew", "register", "ack"}
            await eventually(
                lambda: bool(instances[2].renewals), within=2 * ttl, every=0.2, what="renewed at the third"
            )
            await anyio.sleep(ttl)
            tasks.cancel_scope.cancel()
        found = router.statistics()
        assert (found.lapses, found.held) == (0, 0)
        assert len(targets) > ttl


async def test_a_freeze_is_acknowledged_although_the_instance_that_showed_it_hangs() -> None:
    async with three(30.0) as (instances, router):
        first, *others = instances
        first.hang |= {"renew", "register", "ack"}
        for instance in others:
            instance.routes[TopicPartition(TOPIC, 0)] = at("a", 1, "h1", frozen=True)
            instance.revision += 1
        first.show(p0=at("a", 1, "h1", frozen=True))
        await eventually(lambda: first.ack_calls == 1)
        await eventually(lambda: any(one.acks == [(0, "h1")] for one in others), within=20)
        assert router.statistics().lapses == 0
