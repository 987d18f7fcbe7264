"""TLS and mTLS from files, replaced while the server runs; and no serving in the open by accident."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from grpclib.exceptions import GRPCError, StreamTerminatedError

from assigner.clock import SystemClock
from assigner.errors import InvalidInput
from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition
from assigner.proto.kafka_assigner import v1
from assigner.server import GrpcServer, ServerSettings
from tests.support.fakes.fake_routers import FakeRouters
from tests.support.fakes.fake_service import FakeAdministration, FakeMembers, FakeOffsets
from tests.support.fakes.grpc_serving import Serving, eventually, serving
from tests.support.network.raw_http2 import RawPeer


class Files:
    """A certificate, its key and a client authority on disk."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.client_ca = folder / "ca.crt"

    def issue(self, authority: trustme.CA) -> None:
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        self.key.write_bytes(certificate.private_key_pem.bytes())
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))

    def settings(self, *, mutual: bool = False) -> dict[str, Any]:
        settings = {"tls_certificate": str(self.certificate), "tls_key": str(self.key), "tls_reload_interval": 0.05}
        return settings | ({"tls_client_ca": str(self.client_ca)} if mutual else {})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def trusting(authority: trustme.CA, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2"])
    if client is not None:
        client.configure_cert(context)
    return context


async def renewed(service: Serving, context: ssl.SSLContext | None) -> bool:
    """Whether a call over a new connection works."""
    try:
        await service.consumer(ssl=context).renew(v1.RenewRequest(consumer_name="c"), timeout=10)
    except (OSError, StreamTerminatedError, GRPCError, TimeoutError):
        return False
    return True


async def test_calls_work_over_tls_and_not_without(files: Files) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    files.issue(authority)
    async with serving(**files.settings()) as service:
        assert await renewed(service, trusting(authority))
        assert not await renewed(service, trusting(stranger))
        assert not await renewed(service, None)


@pytest.mark.parametrize("offered", [[], ["http/1.1"]], ids=["nothing", "http/1.1"])
async def test_a_client_that_does_not_offer_http2_gets_a_goaway_and_is_closed(files: Files, offered: list[str]) -> None:
    authority = trustme.CA()
    files.issue(authority)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if offered:
        context.set_alpn_protocols(offered)
    async with serving(**files.settings()) as service:
        reader, writer = await asyncio.open_connection("localhost", service.server.port, ssl=context)
        peer = RawPeer(reader, writer)
        peer.greet()
        await peer.until_closed()
        writer.transport.abort()
        assert peer.goodbye is not None
        assert peer.goodbye.additional_data == b"this is gRPC: offer h2 by ALPN"
        assert service.refused("protocol") == 1


async def test_with_a_client_authority_only_its_clients_get_in(files: Files) -> None:
    authority, clients, stranger = trustme.CA(), trustme.CA(), trustme.CA()
    files.issue(authority)
    clients.cert_pem.write_to_path(files.client_ca)
    async with serving(**files.settings(mutual=True)) as service:
        assert await renewed(service, trusting(authority, clients.issue_cert("client")))
        assert not await renewed(service, trusting(authority, stranger.issue_cert("client")))
        assert not await renewed(service, trusting(authority))
        assert service.server.statistics().streams == 0


async def test_new_connections_get_a_new_certificate_and_old_ones_go_on(files: Files) -> None:
    first, second = trustme.CA(), trustme.CA()
    files.issue(first)
    async with serving(**files.settings()) as service:
        old = service.consumer(ssl=trusting(first))
        stream = old.register(v1.RegisterRequest(consumer_name="old"))
        await anext(stream)
        files.issue(second)
        await eventually(lambda: service.server.statistics().tls_reloads >= 1)
        assert await renewed(service, trusting(second))
        assert not await renewed(service, trusting(first))
        assert (await old.renew(v1.RenewRequest(consumer_name="old"))).ttl_ms == 30_000
        service.members.streams["old"].put(None)
        assert [message async for message in stream] == []


async def test_a_new_client_authority_replaces_the_old_one(files: Files) -> None:
    authority, before, after = trustme.CA(), trustme.CA(), trustme.CA()
    files.issue(authority)
    before.cert_pem.write_to_path(files.client_ca)
    async with serving(**files.settings(mutual=True)) as service:
        after.cert_pem.write_to_path(files.client_ca)
        await eventually(lambda: service.server.statistics().tls_reloads == 1)
        assert await renewed(service, trusting(authority, after.issue_cert("client")))
        assert not await renewed(service, trusting(authority, before.issue_cert("client")))


async def test_a_broken_new_file_is_reported_and_the_old_certificate_kept(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    files.issue(authority)
    async with serving(**files.settings()) as service:
        files.certificate.write_text("not a certificate")
        await eventually(lambda: service.server.statistics().tls_reload_failures == 1)
        assert await renewed(service, trusting(authority))
        files.certificate.unlink()
        await eventually(lambda: service.server.statistics().tls_reload_failures == 2)
        assert await renewed(service, trusting(authority))
        files.issue(authority)
        await eventually(lambda: service.server.statistics().tls_reloads >= 1)
        assert await renewed(service, trusting(authority))
    failures = [str(record.msg) for record in caplog.records if "files_reload_failed" in str(record.msg)]
    assert str(files.certificate) in failures[0]


async def test_files_that_can_not_be_used_stop_the_start(files: Files) -> None:
    authority = trustme.CA()
    files.issue(authority)
    files.key.write_text("not a key")
    with pytest.raises(InvalidInput, match=r"tls\.key"):
        async with serving(**files.settings()):
            pass


# --- without TLS -------------------------------------------------------------------------------------------------


def server(**settings: Any) -> GrpcServer:
    return GrpcServer(
        ServerSettings(port=0, **settings),
        FakeMembers(),
        FakeAdministration(),
        FakeOffsets(),
        FakeRouters(),
        default_group="default",
        clock=SystemClock(),
        ready=lambda: True,
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "assigner.example"])
async def test_without_tls_an_address_that_others_reach_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match=r"tls_certificate.*127\.0\.0\.1.*insecure"):
        server(host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
async def test_without_tls_loopback_is_fine(host: str) -> None:
    server(host=host)


async def test_without_tls_the_flag_allows_any_address() -> None:
    async with serving(host="0.0.0.0", insecure=True) as service:
        assert await renewed(service, None)


async def test_long_messages_and_a_drain_work_over_tls_too(files: Files) -> None:
    authority = trustme.CA()
    files.issue(authority)
    async with serving(**files.settings()) as service:
        owned = tuple((TopicPartition("orders", number), 1) for number in range(50_000))
        service.members.opening = Commands(full=True, assigned=owned)
        stream = service.consumer(ssl=trusting(authority)).register(v1.RegisterRequest(consumer_name="c", packed=True))
        update = (await anext(stream)).assignment
        assert update is not None
        assert sum(len(one.partitions) for one in update.assigned_packed) == 50_000
        await service.server.drain(5)
        with pytest.raises(GRPCError, match="shutting down"):
            await anext(stream)
        assert service.server.statistics().connections == 0
