"""Loads TLS certificates and reloads them when their files change, and refuses to serve others without TLS.

New connections get the newest certificate that could be loaded; open ones keep theirs. A file that can't be loaded is
logged, and the previous certificate stays in use.
"""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from assigner.errors import InvalidInput
from assigner.logs import get_logger
from assigner.server.settings import Reflection, ServerSettings

_Fingerprint = tuple[tuple[int, int, int] | None, ...]

_log = get_logger(__name__)


def check_exposure(settings: ServerSettings) -> None:
    """Raise `InvalidInput` for settings that serve other machines without TLS, unless `insecure` is set."""
    if settings.tls_certificate or settings.insecure or _is_loopback(settings.host):
        return
    raise InvalidInput(
        f"host {settings.host!r} can be reached from outside and TLS is not set up; set tls_certificate and tls_key, "
        "or bind 127.0.0.1, or use --insecure (grpc.insecure) if the network is trusted"
    )


def reflects(settings: ServerSettings) -> bool:
    """Whether gRPC reflection is offered."""
    if settings.reflection == Reflection.LOOPBACK:
        return _is_loopback(settings.host)
    return settings.reflection == Reflection.ON


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ReloadingContext(ssl.SSLContext):
    """An SSL context that delegates each handshake to the `current` one, because asyncio takes a context only once."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **options)


class TlsFiles:
    def __init__(self, settings: ServerSettings) -> None:
        self._certificate = settings.tls_certificate
        self._key = settings.tls_key
        self._client_ca = settings.tls_client_ca
        self._interval = settings.tls_reload_interval
        self._loaded: _Fingerprint = ()
        self.context = ReloadingContext(ssl.PROTOCOL_TLS_SERVER)
        self.reloads = 0
        self.failures = 0

    async def load(self) -> None:
        """Load the files. Raises `InvalidInput` if they can't be used."""
        self._loaded = await run_sync(self._fingerprint)
        try:
            self.context.current = await run_sync(self._read)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"TLS can't be set up from {self._names()}: {error}") from error

    async def watch(self) -> None:
        """Reload the files whenever they change, until cancelled."""
        while True:
            await anyio.sleep(self._interval)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        found = await run_sync(self._fingerprint)
        if found == self._loaded:
            return
        # Noted before reading: a change during the reading is found by the next check, and a broken file is logged
        # once, not at each check.
        self._loaded = found
        try:
            self.context.current = await run_sync(self._read)
        except (OSError, ValueError) as error:
            self.failures += 1
            _log.error("tls_reload_failed", files=self._names(), error=str(error), kept="previous")
            return
        self.reloads += 1
        _log.info("tls_reloaded", files=self._names())

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self._certificate, self._key)
        if self._client_ca:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _files(self) -> list[str]:
        return [file for file in (self._certificate, self._key, self._client_ca) if file]

    def _names(self) -> str:
        return ", ".join(self._files())

    def _fingerprint(self) -> _Fingerprint:
        return tuple(_identity(file) for file in self._files())


def _identity(file: str) -> tuple[int, int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
