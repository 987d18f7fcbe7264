"""A plan that takes ten seconds of pure Python: leases are renewed on time, nobody loses a session, the leader stays.

The service runs on a loop of its own and the strategy burns on its worker thread, so both fight for the interpreter's
lock, as they do in production. TTLs are less than half of what the plan takes: whoever stood still for it would lose
everything. A machine with other work would take the processor from all of them alike, which is not what is asked here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from assigner.client import AssignerConsumer, Handler
from assigner.embedded import EmbeddedAssigner
from assigner.leader.coordinator import OFF_LOOP
from assigner.model.records import GroupOptions
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, Settings
from assigner.store import Found
from assigner.strategy import Problem, Solution, Strategy
from assigner.strategy.registry import load

GROUP, TOPIC, PARTITIONS = "billing", "orders", OFF_LOOP + 500
TTL, BURNS = 4.5, 10.0


class Burning:
    """The usual strategy, after thinking about it for a long time."""

    name = "burning"

    def __init__(self) -> None:
        self._usual: Strategy = load("sticky_balanced")
        self.lit, self.burns, self.burnt = threading.Event(), threading.Event(), threading.Event()

    def assign(self, problem: Problem) -> Solution:
        if self.lit.is_set() and not self.burnt.is_set():
            self.burns.set()
            until, sum_ = time.monotonic() + BURNS, 0
            while time.monotonic() < until:
                sum_ += sum(range(1000))
            self.burnt.set()
        return self._usual.assign(problem)


@pytest.fixture
def before_other_work() -> Iterator[None]:
    """Runs this thread, and those started from here on, before other work of the machine, where that is allowed."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    except PermissionError:
        yield
        return
    yield
    os.setpriority(os.PRIO_PROCESS, 0, usual)


@asynccontextmanager
async def serving() -> AsyncIterator[EmbeddedAssigner]:
    settings = Settings(
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        consumer_ttl=TTL,
        leader_ttl=TTL,
        group=GroupOptions(debounce=0.05),
        topics={GROUP: {TOPIC: PARTITIONS}},
    )
    assigner = EmbeddedAssigner(settings)
    await anyio.to_thread.run_sync(assigner.__enter__)
    try:
        yield assigner
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)


async def term(assigner: EmbeddedAssigner) -> int:
    """The revision at which the present leader won."""

    async def ask(service: Service) -> int:
        instance = service.instance
        found = await instance.store.get(instance.keys.group(GROUP).leader)
        assert isinstance(found, Found)
        return found.entry.create_revision

    return await anyio.to_thread.run_sync(assigner.call, ask)


@pytest.mark.slow
@pytest.mark.usefixtures("before_other_work")
async def test_leases_are_renewed_on_time_while_a_plan_takes_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Burning()
    monkeypatch.setattr("assigner.leader.coordinator.prepare", lambda name: strategy)
    async with serving() as assigner, AssignerConsumer(assigner.address, GROUP, "a", [], Handler()) as a:
        with anyio.fail_after(60):
            await a.wait_for(lambda one: len(one.partitions) == PARTITIONS)
            before, session = await term(assigner), a.session
            strategy.lit.set()
            async with AssignerConsumer(assigner.address, GROUP, "b", [], Handler()) as b:
                await anyio.to_thread.run_sync(strategy.burns.wait, 20)
                deadlines = {0.0}
                while not strategy.burnt.is_set():
                    assert len(a.partitions) == PARTITIONS
                    for consumer in (a, b):
                        left = consumer.statistics().lease_left
                        assert left > 0
                        deadlines.add(round(time.monotonic() + left, 1))
                    await anyio.sleep(0.1)
                # Far more often than it would take to keep one lease by luck.
                assert len(deadlines) > BURNS / TTL
                await a.wait_for(lambda one: len(one.partitions) == PARTITIONS // 2)
                await b.wait_for(lambda one: len(one.partitions) == PARTITIONS // 2)
                for told in (a.statistics(), b.statistics()):
                    assert (told.leases_lost, told.links, told.revoked) == (0, 1, 0)
                assert a.session == session
                assert await term(assigner) == before
