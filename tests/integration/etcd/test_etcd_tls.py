"""etcd over TLS: who is trusted, who is refused with which words, and that renewed certificates are picked up."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import trustme

from assigner.errors import StoreError, StoreUnavailable
from assigner.store import Written
from assigner.testing.waiting import eventually
from tests.conftest import StartEtcd
from tests.support.servers.etcd import EtcdServer, EtcdTls
from tests.support.servers.etcd_access import events_of, opened


class Files:
    """An authority's certificate and those it gives, as files."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.authority = trustme.CA()
        self._directory = directory
        self.ca = directory / f"{name}.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, host: str, name: str) -> tuple[Path, Path]:
        given = self.authority.issue_cert(host)
        cert, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        given.cert_chain_pems[0].write_to_path(cert)
        given.private_key_pem.write_to_path(key)
        return cert, key


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def server_tls(files: Files, host: str = "127.0.0.1", *, client_ca: Path | None = None) -> EtcdTls:
    cert, key = files.issue(host, "server")
    return EtcdTls(cert, key, client_ca)


async def test_a_server_of_the_given_authority_is_trusted(start_etcd: StartEtcd, files: Files) -> None:
    server = start_etcd(tls=server_tls(files))
    async with opened(server.endpoints, tls_ca=str(files.ca)) as store:
        assert isinstance(await store.put("/k", b""), Written)
    async with opened([server.url], tls_ca=str(files.ca)) as store:
        assert isinstance(await store.put("/k", b""), Written)


async def test_a_server_of_another_authority_is_refused_with_the_reason(
    start_etcd: StartEtcd, files: Files, tmp_path: Path
) -> None:
    server = start_etcd(tls=server_tls(files))
    stranger = Files(tmp_path, "stranger")
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        async with opened(server.endpoints, tls_ca=str(stranger.ca), request_timeout=1.0):
            pass


async def test_a_server_of_another_name_is_refused_unless_the_name_is_given(
    start_etcd: StartEtcd, files: Files
) -> None:
    server = start_etcd(tls=server_tls(files, "etcd.example"))
    with pytest.raises(StoreUnavailable):
        async with opened(server.endpoints, tls_ca=str(files.ca), request_timeout=1.0):
            pass
    async with opened(server.endpoints, tls_ca=str(files.ca), tls_server_name="etcd.example") as store:
        assert isinstance(await store.put("/k", b""), Written)


async def test_a_client_shows_its_certificate_where_one_is_wanted(start_etcd: StartEtcd, files: Files) -> None:
    server = start_etcd(tls=server_tls(files, client_ca=files.ca))
    cert, key = files.issue("client.example", "client")
    with pytest.raises(StoreUnavailable):
        async with opened(server.endpoints, tls_ca=str(files.ca), request_timeout=1.0):
            pass
    async with opened(server.endpoints, tls_ca=str(files.ca), tls_cert=str(cert), tls_key=str(key)) as store:
        assert isinstance(await store.put("/k", b""), Written)


async def test_a_plain_client_of_a_tls_server_ends_with_an_error(start_etcd: StartEtcd, files: Files) -> None:
    server = start_etcd(tls=server_tls(files))
    with pytest.raises(StoreUnavailable, match=server.endpoint):
        async with opened(server.endpoints, request_timeout=1.0):
            pass


@pytest.mark.parametrize("content", [None, b"", b"not a certificate"])
async def test_a_file_that_is_no_certificate_is_reported(
    start_etcd: StartEtcd, files: Files, tmp_path: Path, content: bytes | None
) -> None:
    server = start_etcd(tls=server_tls(files))
    path = tmp_path / "bad.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=server.endpoint):
        async with opened(server.endpoints, tls_ca=str(path), request_timeout=1.0):
            pass


async def test_certificates_are_read_anew_for_each_connection(
    start_etcd: StartEtcd, files: Files, tmp_path: Path
) -> None:
    server: EtcdServer = start_etcd(tls=server_tls(files), killed=True)
    async with opened(server.endpoints, tls_ca=str(files.ca)) as store:
        await store.put("/k", b"")
        async with store.watch("/", start_revision=2) as items:
            await events_of(items, 1)
            # The same paths, another authority: what a renewal of certificates looks like.
            server_tls(Files(tmp_path))
            await anyio.to_thread.run_sync(server.restart)

            async def written() -> bool:
                try:
                    await store.put("/k", b"")
                except StoreError:
                    return False
                return True

            await eventually(written)
            await events_of(items, 1)
