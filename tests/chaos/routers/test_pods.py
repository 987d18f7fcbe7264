"""The pods of courses end their work as programs on the client library do: a request that has begun is waited for."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from assigner.clock import LoopClock
from assigner.core.client.messages import AckKind
from assigner.model.commands import Commands, Release
from assigner.model.keys import TopicPartition
from assigner.testing.waiting import eventually
from tests.chaos.routers.pod import Pod

pytestmark = pytest.mark.virtual_time
TP, EPOCH = TopicPartition("t", 0), 1


@asynccontextmanager
async def working() -> AsyncIterator[Pod]:
    """A pod with one open gate, and without a service."""
    clock, checks = LoopClock(), cast(Any, None)
    pod = Pod("p", "s", ttl=9.0, dice=random.Random(1), clock=clock, instances=list, checks=checks)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pod.run)
        await anyio.sleep(0.1)
        pod.runner.apply(Commands(full=True, assigned=((TP, EPOCH),)))
        pod.runner.renewed(clock.now(), 3_600.0)
        await eventually(lambda: pod.runner.gate(TP).is_open)
        yield pod
        pod.end("over")


async def test_a_release_ends_with_the_last_request_that_it_waits_for() -> None:
    async with working() as pod:
        state = pod.runner.state
        with pod.runner.gate(TP).enter(EPOCH):
            pod.runner.apply(Commands(releases=(Release(TP, EPOCH, "h1"),)))
            await anyio.sleep(60)
            assert not state.pending_acks(AckKind.RELEASED, 1)
        await eventually(lambda: bool(state.pending_acks(AckKind.RELEASED, 1)), within=1)


async def test_a_drained_pod_ends_with_the_last_request_that_it_has_begun() -> None:
    async with working() as pod:
        with pod.runner.gate(TP).enter(EPOCH):
            pod._drained = True
            await anyio.sleep(60)
            assert not pod.gone
        await eventually(lambda: pod.gone == "drained", within=1)
