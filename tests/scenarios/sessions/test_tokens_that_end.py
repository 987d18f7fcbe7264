"""Tokens and keys that end while their client is registered, over real gRPC: renewed in time, too late, or never.

A token outlives its `exp` by half a minute, for the clocks' sake, and its stream by another, hence virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from assigner.client import AdminClient, Unauthenticated
from assigner.clock import LoopClock
from assigner.core.group import GroupState
from assigner.routing import Router
from tests.support.clients.tokens import QUICK, Tokens, consuming, owns_both, serving
from tests.support.cluster import GROUP, Cluster
from tests.support.signed_tokens import Signer

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


async def test_a_token_of_another_identity_costs_the_partitions_until_the_old_session_has_ended(
    cluster: Cluster, tokens: Tokens
) -> None:
    await serving(cluster, tokens)
    async with consuming(cluster, token=tokens.file(sub="before")) as consumer:
        await owns_both(consumer)
        tokens.file(sub="after")
        await consumer.wait_for(lambda one: not one.partitions)
        await owns_both(consumer)
        assert (await cluster.state()).consumers["a"].record.principal == "acme/after"


async def test_a_router_goes_on_with_a_token_of_another_identity_once_its_old_session_has_ended(
    cluster: Cluster, tokens: Tokens
) -> None:
    service = await serving(cluster, tokens)
    allowed: dict[str, Any] = {"name": "edge", "roles": ["router"], "names": ["r"]}
    with anyio.fail_after(3600):
        async with (
            consuming(cluster, token=tokens.token(), advertised_address="a.pods:80") as consumer,
            Router(
                service.address,
                GROUP,
                "r",
                token=tokens.file(sub="before", **allowed),
                timing=QUICK,
                clock=LoopClock(),
            ) as router,
        ):
            await owns_both(consumer)
            tokens.file(sub="after", **allowed)
            await cluster.until("the router is another identity's", router_of("acme/after"), within=5 * cluster.ttl)
            async with router.route_partition("t", 0) as target:
                assert target.owner == "a"


def router_of(principal: str) -> Callable[[GroupState], bool]:
    return lambda state: [found.record.principal for found in state.routers.values()] == [principal]


async def test_a_scrape_tells_of_keys_that_vanished_and_of_tokens_that_are_false(
    cluster: Cluster, tokens: Tokens
) -> None:
    service = await serving(cluster, tokens)
    async with consuming(cluster, token=tokens.token()) as consumer:
        await owns_both(consumer)
        (tokens.folder / "key.pem").unlink()
        await anyio.sleep(120)
        forged = Signer().token(LoopClock().wall(), header={"kid": tokens.signer.kid})
        async with AdminClient(service.address, token=forged) as forger:
            with pytest.raises(Unauthenticated):
                await forger.list_groups()
        said = (await service.instance.metrics.render()).decode()
        assert 100 < float(sample(said, 'assigner_auth_files_age_seconds{files="keys"}')) < 130
        for name in (
            'assigner_auth_reload_failures_total{files="keys"}',
            'assigner_auth_tokens_total{outcome="forged"}',
            'assigner_auth_tokens_total{outcome="verified"}',
            'assigner_auth_denied_total{claim="",kind="unauthenticated"}',
        ):
            assert (name, sample(said, name)) == (name, "1.0")
        assert consumer.statistics().leases_lost == 0


def sample(scrape: str, name: str) -> str:
    (line,) = (line for line in scrape.splitlines() if line.startswith(name))
    return line.rpartition(" ")[2]
