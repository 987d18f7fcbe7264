"""Tokens that end while their client is registered, over real gRPC: renewed in time, too late, or never.

A token outlives its `exp` by half a minute, for the clocks' sake, and its stream by another, hence virtual time.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.support.clients.tokens import QUICK, Tokens, consuming, owns_both, serving
from tests.support.cluster import Cluster

# Both ends of each connection are in this process and nothing else is: time may be virtual.
pytestmark = pytest.mark.virtual_time(sockets="local")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


async def test_a_token_that_is_renewed_in_its_file_carries_the_stream_on(cluster: Cluster, tokens: Tokens) -> None:
    await serving(cluster, tokens)
    async with consuming(cluster, token=tokens.file(lasts=100)) as consumer:
        owned = await owns_both(consumer)
        for _ in range(4):
            tokens.file(lasts=100)
            await anyio.sleep(90)
        assert consumer.partitions == owned
        assert consumer.statistics().links == 1


async def test_a_token_that_is_renewed_too_late_costs_the_partitions_and_not_the_process(
    cluster: Cluster, tokens: Tokens
) -> None:
    service = await serving(cluster, tokens)
    async with consuming(cluster, token=tokens.file(lasts=100)) as consumer:
        await owns_both(consumer)
        await consumer.wait_for(lambda one: not one.partitions)
        assert consumer.statistics().leases_lost > 0
        before = service.server.statistics().refused["unauthenticated"]
        await anyio.sleep(60)
        tries = service.server.statistics().refused["unauthenticated"] - before
        # No more than the longest pause allows, with its jitter: it does not try in a tight loop.
        assert 10 < tries < 60 / QUICK.longest_pause * 4
        tokens.file(lasts=100)
        await owns_both(consumer)


async def test_a_token_that_is_never_renewed_ends_its_session(cluster: Cluster, tokens: Tokens) -> None:
    await serving(cluster, tokens)
    async with consuming(cluster, token=tokens.token(lasts=100)) as consumer:
        await owns_both(consumer)
        await consumer.wait_for(lambda one: not one.partitions)
        await cluster.until("nobody is registered", lambda state: not state.consumers)
