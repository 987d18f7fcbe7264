"""Gateways with tokens at a service that requires them: what they may do for their clients, and for whose groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from assigner.client.channel import Dialer
from assigner.client.token import TokenSource
from assigner.clock import LoopClock
from assigner.errors import InvalidName, PermissionDenied, Unauthenticated
from assigner.gateway.classic.connections import LeaderConnections
from assigner.model.kafka_groups import GroupListing, JoinAnswer, JoinRequest, KafkaError
from assigner.proto import classic_groups as wire
from assigner.server.settings import AuthSettings
from assigner.service import Service
from assigner.testing.waiting import eventually
from tests.scenarios.kafka_groups.conftest import QUICK
from tests.support.cluster import Cluster
from tests.support.signed_tokens import Signer

SIGNER = Signer()

pytestmark = pytest.mark.virtual_time(sockets="local")


@pytest.fixture
async def service(cluster: Cluster, tmp_path: Path) -> Service:
    auth = AuthSettings(required=True, keys=(SIGNER.publish(tmp_path / "key.pem"),))
    return await cluster.start_service("s1", gateway=QUICK, auth=auth)


class Gateway:
    """A gateway's connections, with a token of these claims; None: with none."""

    def __init__(self, service: Service, token: str | None) -> None:
        self._address = f"127.0.0.1:{service.server.port}"
        source = TokenSource(token) if token is not None else None
        self._connections = LeaderConnections(Dialer(None, 5.0, 5.0, source))

    async def join(self, group: str, org: str = "") -> JoinAnswer:
        request = JoinRequest(
            group=group,
            session_timeout=10_000,
            rebalance_timeout=10_000,
            protocol_type="consumer",
            protocols=(("range", b""),),
            client_id="app",
            requires_known_member=False,
        )
        call = self._connections.call
        return await call(self._address, wire.JOIN, JoinAnswer, request, org=org, principal="acme/ada", timeout=20)

    async def listed(self, org: str = "") -> list[str]:
        call, request = self._connections.call, wire.Listing()
        listing = await call(self._address, wire.LIST, GroupListing, request, org=org, principal="", timeout=20)
        return sorted(one.group for one in listing.groups)

    async def close(self) -> None:
        await self._connections.close()


def token(*groups: str, role: str = "gateway") -> str:
    return SIGNER.token(LoopClock().wall(), roles=[role], groups=list(groups))


async def test_a_gateway_joins_for_clients_of_the_organizations_that_its_token_names(service: Service) -> None:
    gateway = Gateway(service, token("acme/*"))

    async def joins() -> bool:
        # Told first that nobody leads the group yet.
        return (await gateway.join("orders", "acme")).error is KafkaError.NONE

    await eventually(joins, within=30)
    for group, org in (("orders", ""), ("orders", "other"), ("acme", "")):
        with pytest.raises(PermissionDenied, match="claim `groups`"):
            await gateway.join(group, org)
    await gateway.close()


async def test_a_gateway_lists_the_groups_that_its_token_names(service: Service) -> None:
    everything, some = Gateway(service, token("*")), Gateway(service, token("acme/b*"))
    for group in ("billing", "orders"):
        await everything.join(group, "acme")
    await eventually(lambda: service.instance.directory.names("classic") == {"acme/billing", "acme/orders"}, within=30)
    assert await everything.listed("acme") == ["billing", "orders"]
    assert await some.listed("acme") == ["billing"]
    assert await everything.listed() == []
    for one in (everything, some):
        await one.close()


async def test_only_gateways_speak_for_others(service: Service) -> None:
    for role in ("consumer", "operator", "admin"):
        gateway = Gateway(service, token("*", role=role))
        with pytest.raises(PermissionDenied, match="add gateway"):
            await gateway.join("orders")
        await gateway.close()
    nobody = Gateway(service, None)
    with pytest.raises(Unauthenticated):
        await nobody.join("orders")
    await nobody.close()


@pytest.mark.parametrize("org", ["a/b", "a\nb", " a", "x" * 300])
async def test_a_malformed_organization_is_refused(service: Service, org: str) -> None:
    gateway = Gateway(service, token("*"))
    with pytest.raises(InvalidName):
        await gateway.join("orders", org)
    await gateway.close()
