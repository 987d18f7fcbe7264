"""Gateways of scenarios with Kafka 4 members."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from assigner.instance import Instance
from tests.support.cluster import Cluster
from tests.support.gateway.modern_members import ModernGateway, gateway_on

StartGateway = Callable[..., Awaitable[ModernGateway]]


@pytest.fixture
async def gateways() -> AsyncIterator[Callable[[Cluster], StartGateway]]:
    """Starts gateways on instances of a cluster, each on an instance of its own unless one is given."""
    over = anyio.Event()

    def of(cluster: Cluster) -> StartGateway:
        async def live(
            instance: Instance, how: dict[str, Any], *, task_status: anyio.abc.TaskStatus[ModernGateway]
        ) -> None:
            async with AsyncExitStack() as stack:
                gateway = await stack.enter_async_context(gateway_on(cluster, instance, **how))
                task_status.started(gateway)
                await over.wait()

        async def start(instance: Instance | None = None, **how: Any) -> ModernGateway:
            if instance is None:
                instance = await cluster.start_instance(f"i{len(cluster.instances) + 1}")
            gateway: ModernGateway = await cluster.tasks.start(live, instance, how)
            return gateway

        return start

    yield of
    over.set()
