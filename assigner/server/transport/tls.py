"""Loads TLS certificates and reloads them when their files change, and refuses to serve others without TLS.

New connections get the newest certificate that could be loaded; open ones keep theirs. A file that can't be loaded is
logged, and the previous certificate stays in use.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from assigner.auth.reload import ReloadedFiles
from assigner.clock import Clock
from assigner.errors import InvalidInput
from assigner.server.settings import Reflection, ServerSettings, is_loopback


def check_exposure(settings: ServerSettings) -> None:
    """Raise `InvalidInput` for settings that serve other machines without TLS, unless `insecure` is set."""
    if settings.tls_certificate or settings.insecure or is_loopback(settings.host):
        return
    raise InvalidInput(
        f"host {settings.host!r} can be reached from outside and TLS is not set up; set tls_certificate and tls_key, "
        "or bind 127.0.0.1, or use --insecure (grpc.insecure) if the network is trusted"
    )


def reflects(settings: ServerSettings) -> bool:
    """Whether gRPC reflection is offered."""
    if settings.reflection == Reflection.LOOPBACK:
        return is_loopback(settings.host)
    return settings.reflection == Reflection.ON


class ReloadingContext(ssl.SSLContext):
    """An SSL context that delegates each handshake to the newest one, because asyncio takes a context only once."""

    files: ReloadedFiles[ssl.SSLContext]

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.files.current.wrap_bio(*args, **options)


class TlsFiles:
    def __init__(self, settings: ServerSettings, clock: Clock, *, protocols: Sequence[str] = ("h2",)) -> None:
        """`protocols`: offered by ALPN; none: clients name none."""
        self._protocols = list(protocols)
        self._certificate = settings.tls_certificate
        self._key = settings.tls_key
        self._client_ca = settings.tls_client_ca
        paths = [file for file in (self._certificate, self._key, self._client_ca) if file]
        self.files = ReloadedFiles("TLS", paths, self._read, clock, settings.tls_reload_interval)
        self.context = ReloadingContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.files = self.files

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        context.load_cert_chain(self._certificate, self._key)
        if self._client_ca:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
