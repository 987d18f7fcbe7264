"""Clients with tokens and whole instances, over real gRPC, on memory and etcd: start, rights, reconnect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assigner.auth.failed_verifications import AT_ONCE
from assigner.client import AdminClient, PermissionDenied, Unauthenticated
from assigner.clock import LoopClock
from assigner.routing import Router
from tests.support.clients.tokens import QUICK, Tokens, consuming, owns_both, serving
from tests.support.cluster import GROUP, Cluster
from tests.support.signed_tokens import Signer


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


# --- at the start ------------------------------------------------------------------------------------------------


async def test_a_consumer_with_a_token_works_and_its_session_is_bound_to_its_identity(
    any_cluster: Cluster, tokens: Tokens
) -> None:
    await serving(any_cluster, tokens)
    async with consuming(any_cluster, token=tokens.token(sub="worker")) as consumer:
        await owns_both(consumer)
        assert (await any_cluster.state()).consumers["a"].record.principal == "acme/worker"
        await consumer.commit(dict.fromkeys(consumer.partitions, 7))
        assert (await consumer.committed(list(consumer.partitions))).keys() == consumer.partitions.keys()
    assert "a" not in (await any_cluster.state()).consumers


@pytest.mark.parametrize(
    ("claims", "error", "says"),
    [
        (None, Unauthenticated, "needs an identity"),
        ({"lasts": -3600.0}, Unauthenticated, "expired"),
        ({"groups": ["another"]}, PermissionDenied, "`groups`"),
        ({"names": ["another"]}, PermissionDenied, "`names`"),
        ({"roles": ["reader"]}, PermissionDenied, "`roles`"),
    ],
)
async def test_a_consumer_that_is_refused_at_its_start_ends_at_once_and_says_why(
    any_cluster: Cluster, tokens: Tokens, claims: dict[str, Any] | None, error: type[Exception], says: str
) -> None:
    await serving(any_cluster, tokens)
    token = None if claims is None else tokens.token(**claims)
    with pytest.raises(error, match=says):
        async with consuming(any_cluster, token=token):
            pass


async def test_nobody_takes_a_name_with_a_token_of_another_identity(any_cluster: Cluster, tokens: Tokens) -> None:
    await serving(any_cluster, tokens)
    async with consuming(any_cluster, token=tokens.token(sub="worker")) as consumer:
        owned = await owns_both(consumer)
        with pytest.raises(PermissionDenied, match="another identity"):
            async with consuming(any_cluster, token=tokens.token(sub="evil"), session=consumer.session):
                pass
        assert consumer.partitions == owned
        assert consumer.statistics().links == 1


async def test_a_consumer_that_shares_its_address_with_a_forger_starts_once_its_token_is_looked_at(
    any_cluster: Cluster, tokens: Tokens
) -> None:
    service = await serving(any_cluster, tokens)
    for number in range(AT_ONCE):
        forged = Signer().token(LoopClock().wall(), header={"kid": tokens.signer.kid}, jti=str(number))
        async with AdminClient(service.address, token=forged) as forger:
            with pytest.raises(Unauthenticated, match="signature"):
                await forger.list_groups()
    async with consuming(any_cluster, token=tokens.token()) as consumer:
        await owns_both(consumer)
    counted = service.server.access.authenticator
    assert counted is not None
    tried = counted.statistics().tokens
    assert tried is not None
    assert tried.limited > 0


# --- on the way --------------------------------------------------------------------------------------------------


async def test_a_consumer_goes_on_at_another_instance_with_its_session_and_its_identity(
    any_cluster: Cluster, tokens: Tokens
) -> None:
    for name in ("s1", "s2"):
        await serving(any_cluster, tokens, name)
    async with consuming(any_cluster, token=tokens.token()) as consumer:
        owned = await owns_both(consumer)
        at = consumer.statistics().address
        (serves,) = (name for name, service in any_cluster.services.items() if service.address == at)
        await any_cluster.stop_service(serves)
        await consumer.wait_for(lambda one: one.is_connected and one.statistics().address != at)
        await consumer.wait_for(lambda one: one.partitions == owned)


# --- operators and routers ---------------------------------------------------------------------------------------


async def test_an_operators_client_does_what_its_token_allows(any_cluster: Cluster, tokens: Tokens) -> None:
    service = await serving(any_cluster, tokens)
    async with (
        consuming(any_cluster, token=tokens.token()) as consumer,
        AdminClient(service.address, token=tokens.token(sub="alice", roles=["operator"])) as operator,
        AdminClient(service.address, token=tokens.token(sub="bob", roles=["operator"], groups=["other"])) as other,
        AdminClient(service.address) as nobody,
    ):
        await owns_both(consumer)
        (listed,) = (await operator.list_groups()).groups
        assert listed.group == GROUP
        assert (await other.list_groups()).groups == []
        (described,) = (await operator.describe_group(GROUP)).consumers
        assert described.principal == "acme/worker-1"
        await operator.pause(GROUP)
        with pytest.raises(PermissionDenied, match="`groups`"):
            await other.resume(GROUP)
        with pytest.raises(PermissionDenied, match="`roles`"):
            await operator.delete_group(GROUP)
        with pytest.raises(Unauthenticated, match="needs an identity"):
            await nobody.list_groups()


async def test_a_router_with_a_token_routes_and_another_identity_can_not_be_it(
    any_cluster: Cluster, tokens: Tokens
) -> None:
    service = await serving(any_cluster, tokens)
    allowed: dict[str, Any] = {"roles": ["router"], "names": ["r"]}
    async with consuming(any_cluster, token=tokens.token(), advertised_address="a.pods:80") as consumer:
        await owns_both(consumer)
        how: dict[str, Any] = {"timing": QUICK, "clock": LoopClock()}
        async with Router(service.address, GROUP, "r", token=tokens.token(sub="edge", **allowed), **how) as router:
            async with router.route_partition("t", 0) as target:
                assert target.owner == "a"
            with pytest.raises(PermissionDenied, match="another identity"):
                async with Router(service.address, GROUP, "r", token=tokens.token(sub="evil", **allowed), **how):
                    pass
            with pytest.raises(PermissionDenied, match="`roles`"):
                async with Router(service.address, GROUP, "r", token=tokens.token(sub="edge"), **how):
                    pass
