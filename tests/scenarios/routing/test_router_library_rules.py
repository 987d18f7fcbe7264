"""The safety rules that routers keep by themselves, one test each, which fails when the rule is switched off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from assigner.clock import Clock, LoopClock
from assigner.model.keys import TopicPartition
from assigner.routing import Router, StashLimits, StashOverflow, Target, Timing
from tests.support.fakes.scripted_routers import TOPIC, ScriptedRouters, at

pytestmark = pytest.mark.virtual_time(sockets="local")
QUICK = Timing(first_pause=0.01, longest_pause=0.05)


class StoppedClock(LoopClock):
    """The loop's clock, and the process may have been stopped for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = 0.0

    def now(self) -> float:
        return super().now() + self.stopped


@asynccontextmanager
async def routing(service: ScriptedRouters, clock: Clock | None = None) -> AsyncIterator[Router]:
    with anyio.fail_after(60):
        async with Router([service.address], "g", "r", timing=QUICK, clock=clock or LoopClock()) as router:
            yield router


async def target_of(router: Router, within: float) -> Target | None:
    """Where a request goes now; None: it waits for longer than that."""
    with anyio.move_on_after(within):
        async with router.route_partition(TOPIC, 0) as target:
            return target
    return None


async def test_rule_3_a_router_that_was_stopped_sends_nothing_before_it_has_another_table() -> None:
    clock = StoppedClock()
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service, clock) as router:
        service.routes[TopicPartition(TOPIC, 0)] = at("b", 2)
        service.revision += 1
        clock.stopped += 60.0
        target = await target_of(router, 30.0)
        assert target is not None
        assert (target.owner, target.epoch) == ("b", 2)


async def test_rule_7_a_router_that_joins_during_a_freeze_holds_its_requests_back() -> None:
    async with ScriptedRouters(p0=at("a", 1, "h1", frozen=True)) as service, routing(service) as router:
        assert await target_of(router, 0.5) is None
        service.show(p0=at("b", 2))
        target = await target_of(router, 30.0)
        assert target is not None
        assert target.owner == "b"


async def test_rule_12_that_a_handoff_is_deleted_thaws_nothing() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        service.show(p0=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(0, "h1")])
        service.show(p0=at("a", 1))
        await service.receives(lambda: router.table.revision == service.revision)
        assert await target_of(router, 0.5) is None
        service.show(p0=at("a", 2))
        assert await target_of(router, 30.0) is not None


async def test_rule_14_a_stash_does_not_grow_beyond_its_limits() -> None:
    frozen = at("a", 1, "h1", frozen=True)
    async with ScriptedRouters(p0=frozen) as service:
        limits = StashLimits(partition_requests=5)
        async with Router([service.address], "g", "r", timing=QUICK, clock=LoopClock(), stash=limits) as router:
            refused = 0

            async def ask() -> None:
                nonlocal refused
                try:
                    await target_of(router, 1.0)
                except StashOverflow:
                    refused += 1

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(ask)
            assert refused == 15
