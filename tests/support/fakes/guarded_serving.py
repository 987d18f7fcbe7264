"""A gRPC server that requires an identity, with keys, rules for certificates and a clock that tests can change."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trustme

from assigner.clock import SystemClock
from assigner.proto.kafka_assigner import v1
from assigner.server.settings import AuthSettings
from tests.support.fakes.grpc_serving import Serving, serving
from tests.support.servers.uri_certificates import client_context
from tests.support.signed_tokens import Signer

GROUP = "billing-1"

WORKER = "spiffe://corp/ns/billing/sa/worker"
RULES = f"""
[[allow]]
who = "{WORKER}"
org = "acme"
role = "consumer"
groups = "billing-*"
names = "worker-*"

[[allow]]
who = "*.ops.example"
role = ["reader", "operator"]
groups = "*"

[[deny]]
who = "spiffe://corp/ns/billing/sa/leaked"
"""


class JumpingClock(SystemClock):
    """The machine's clock, whose wall time a test may put forward."""

    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


class Guarded:
    """A server that requires an identity, with a key folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        self.keys.mkdir()
        self.signer = Signer()
        self.signer.publish(self.keys / "one.pem")
        self.clock = JumpingClock()
        self.auth = AuthSettings(required=True, keys=(str(self.keys),), reload_interval=0.05)

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[Serving]:
        async with serving(auth=self.auth, clock=self.clock, **{"ping_interval": 0.05} | settings) as service:
            yield service

    def shows(self, signer: Signer | None = None, **claims: Any) -> dict[str, str]:
        return bearer((signer or self.signer).token(self.clock.wall(), **claims))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def renewal(name: str = "worker-1") -> v1.RenewRequest:
    return v1.RenewRequest(consumer_name=name, group=GROUP)


def registration(name: str = "worker-1") -> v1.RegisterRequest:
    return v1.RegisterRequest(consumer_name=name, group=GROUP)


class Mutual:
    """A server that knows its callers by their certificates."""

    def __init__(self, folder: Path, guarded: Guarded) -> None:
        self.authority, self.guarded = trustme.CA(), guarded
        self.rules = folder / "rules.toml"
        self.rules.write_text(RULES)
        own = self.authority.issue_cert("127.0.0.1")
        key, certificate, ca = folder / "tls.key", folder / "tls.crt", folder / "ca.crt"
        key.write_bytes(own.private_key_pem.bytes())
        certificate.write_bytes(b"".join(blob.bytes() for blob in own.cert_chain_pems))
        self.authority.cert_pem.write_to_path(ca)
        self.tls: dict[str, Any] = {"tls_certificate": str(certificate), "tls_key": str(key), "tls_client_ca": str(ca)}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Serving]:
        auth = msgspec.structs.replace(self.guarded.auth, certificates=str(self.rules))
        async with serving(auth=auth, clock=self.guarded.clock, ping_interval=0.05, **self.tls) as service:
            yield service

    def client(self, uri: str) -> ssl.SSLContext:
        return client_context(self.authority, self.rules.parent, uri)

    def host(self, name: str, common_name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        context.set_alpn_protocols(["h2"])
        self.authority.issue_cert(name, common_name=common_name).configure_cert(context)
        return context
