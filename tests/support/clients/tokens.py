"""Clients with tokens, and services that ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from assigner.client import AssignerConsumer, Handler, Timing, TopicPartition
from assigner.clock import LoopClock
from assigner.server.settings import AuthSettings
from assigner.service import Service
from tests.support.cluster import GROUP, Cluster
from tests.support.signed_tokens import Signer

QUICK = Timing(call_timeout=5.0, keepalive=20.0, keepalive_timeout=5.0, first_pause=0.01, longest_pause=0.2)


class Tokens:
    """A key pair, and the file of a client's token."""

    def __init__(self, folder: Path) -> None:
        self.signer = Signer()
        self.auth = AuthSettings(required=True, keys=(self.signer.publish(folder / "key.pem"),))
        self.folder = folder

    def token(self, lasts: float = 3600.0, **claims: Any) -> str:
        now = LoopClock().wall()
        usual: dict[str, Any] = {"groups": [GROUP], "names": ["a"], "roles": ["consumer"], "exp": now + lasts}
        return self.signer.token(now, **usual | claims)

    def file(self, name: str = "token", **how: Any) -> Path:
        path = self.folder / name
        path.write_text(self.token(**how))
        return path


async def serving(cluster: Cluster, tokens: Tokens, name: str = "s1") -> Service:
    if not cluster.services:
        await cluster.add_topic(partitions=2)
    return await cluster.start_service(name, auth=tokens.auth)


@asynccontextmanager
async def consuming(cluster: Cluster, name: str = "a", **options: Any) -> AsyncIterator[AssignerConsumer]:
    addresses = [service.address for service in cluster.services.values()]
    with anyio.fail_after(3600):
        async with AssignerConsumer(
            addresses, GROUP, name, [], Handler(), timing=QUICK, clock=LoopClock(), **options
        ) as consumer:
            yield consumer


async def owns_both(consumer: AssignerConsumer) -> dict[TopicPartition, int]:
    await consumer.wait_for(lambda one: len(one.partitions) == 2)
    return consumer.partitions
