"""Connections that are cut at any moment, in the middle of a table and of a batch of acks too.

A seed draws changes of thousands of rows, and cuts, some turns of the loop apart. In the end the router has the table
of the service, its requests go where the table says, and everything frozen is acknowledged. On virtual time.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import anyio
import pytest

from assigner.clock import LoopClock
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route
from assigner.routing import Router, Timing
from assigner.testing.waiting import eventually
from tests.support.fakes.scripted_routers import TOPIC, ScriptedRouters, at
from tests.support.network.tcp_proxy import TcpProxy, proxied

pytestmark = pytest.mark.virtual_time(sockets="local")
QUICK = Timing(call_timeout=10.0, keepalive=0.3, keepalive_timeout=5.0, first_pause=0.01, longest_pause=0.05)
PARTITIONS, STEPS = 4_000, 30


class Course:
    def __init__(self, seed: int, service: ScriptedRouters, proxy: TcpProxy) -> None:
        self._dice = random.Random(seed)
        self._service = service
        self._proxy = proxy
        self._handoffs = 0

    async def step(self) -> None:
        match self._dice.choice(("change", "cut", "wait")):
            case "change" if self._service.streams:
                rows = self._dice.sample(range(PARTITIONS), self._dice.choice((1, 5, 2_500)))
                self._service.show(**{f"p{one}": self._next(TopicPartition(TOPIC, one)) for one in rows})
            case "cut":
                self._proxy.cut()
            case _:
                await anyio.sleep(self._dice.random())
        for _ in range(self._dice.randrange(60)):
            await asyncio.sleep(0)

    def _next(self, tp: TopicPartition) -> Route | None:
        held = self._service.routes.get(tp)
        self._handoffs += 1
        if held is None:
            return at(f"pod-{self._dice.randrange(7)}", 1_000_000 + self._handoffs)
        match self._dice.choice(("freeze", "freeze", "warm", "flip", "flip", "lose")):
            case "freeze":
                return at(held.owner, held.epoch, f"h{self._handoffs}", frozen=True)
            case "warm":
                return at(held.owner, held.epoch, f"h{self._handoffs}")
            case "flip":
                return at(f"pod-{self._dice.randrange(7)}", held.epoch + 1)
        return None


def end(route: Route | None) -> tuple[str, str, int] | None:
    """Where requests go by this route."""
    return (route.owner, route.address, route.epoch) if route else None


def differs(service: ScriptedRouters, router: Router) -> list[object]:
    """Where the router differs from the service, or its requests from its table."""
    found: list[object] = []
    for partition in range(PARTITIONS):
        shown = service.routes.get(TopicPartition(TOPIC, partition))
        held = router.table.route(TOPIC, partition)
        lane = router.executor._lane(TopicPartition(TOPIC, partition))
        is_open = held is not None and not held.frozen
        if end(shown) != end(held):
            found.append((partition, shown, held))
        if lane.is_open != is_open or (is_open and end(lane.route) != end(held)):
            found.append((partition, held, lane.is_open, lane.route))
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_connections_that_are_cut_anywhere_leave_the_table_as_the_service_has_it(seed: int) -> None:
    routes: dict[str, Any] = {f"p{one}": at(f"pod-{one % 7}", 1) for one in range(PARTITIONS)}
    async with (
        ScriptedRouters(partitions=PARTITIONS, **routes) as service,
        proxied(service.address) as proxy,
        Router([proxy.endpoint], "g", "r", timing=QUICK, clock=LoopClock()) as router,
    ):
        course = Course(seed, service, proxy)
        for _ in range(STEPS):
            await course.step()
        proxy.cut()
        await eventually(lambda: router.is_connected and router.table.revision == service.revision, within=60)
        assert router.may_route
        assert router.statistics().lapses == 0
        assert differs(service, router) == []
        frozen = {(tp.partition, route.handoff_id) for tp, route in service.routes.items() if route.frozen}
        assert frozen
        await eventually(lambda: frozen <= set(service.acks), within=60, what="everything frozen is acknowledged")
