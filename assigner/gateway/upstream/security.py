"""Reads how to reach the brokers from librdkafka's properties: TLS, and SASL PLAIN or SCRAM.

The properties are those that the rest of the service gives to librdkafka, so that one set serves both. What is not
about security is ignored. Not supported: Kerberos, OAUTHBEARER, and client keys in PKCS#12.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import anyio.to_thread
import msgspec

from assigner.errors import InvalidInput
from assigner.secret_files import read_properties, stamp

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class BrokerLogin(msgspec.Struct, frozen=True):
    """How the gateway says to brokers who it is."""

    mechanism: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"BrokerLogin({self.mechanism!r}, {self.user!r})"


class BrokerSecurity(msgspec.Struct, frozen=True):
    tls: ssl.SSLContext | None = None
    login: BrokerLogin | None = None
    checks_host: bool = True


def read_security(properties: Mapping[str, str]) -> BrokerSecurity:
    """Make it from the properties; reads the files that they name. Raises `InvalidInput`."""
    protocol = properties.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise InvalidInput(f"security.protocol {protocol!r} is unknown; use one of: {', '.join(_PROTOCOLS)}")
    checks_host = properties.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
    return BrokerSecurity(
        tls=_tls(properties, checks_host) if protocol.endswith("ssl") else None,
        login=_login(properties) if protocol.startswith("sasl") else None,
        checks_host=checks_host,
    )


def _login(properties: Mapping[str, str]) -> BrokerLogin:
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "")).upper()
    if mechanism not in _MECHANISMS:
        raise InvalidInput(
            f"sasl.mechanism {mechanism or '(unset)'!r} can't be used towards the brokers; "
            f"use one of: {', '.join(_MECHANISMS)}"
        )
    user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
    if not user or not password:
        raise InvalidInput(f"sasl.mechanism {mechanism} needs sasl.username and sasl.password; set both")
    return BrokerLogin(mechanism, user, password)


def _tls(properties: Mapping[str, str], checks_host: bool) -> ssl.SSLContext:
    authority = properties.get("ssl.ca.location")
    try:
        context = ssl.create_default_context(
            cafile=authority, cadata=properties.get("ssl.ca.pem") if authority is None else None
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = checks_host
        if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate := properties.get("ssl.certificate.location"):
            context.load_cert_chain(certificate, properties.get("ssl.key.location"), properties.get("ssl.key.password"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"TLS towards the brokers can't be set up: {error}; check the ssl.* properties") from error
    return context


class BrokerSecurityFile:
    """The security in force: that of the properties, and of a file with more of them, read again when it changed."""

    def __init__(self, properties: Mapping[str, str], file: str | None) -> None:
        self._properties = properties
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._current: BrokerSecurity | None = None

    async def current(self) -> BrokerSecurity:
        """Return it, for the next connection. Raises `InvalidInput`."""
        if self._current is not None and self._file is None:
            return self._current
        return await anyio.to_thread.run_sync(self._look)

    def _look(self) -> BrokerSecurity:
        at = stamp(self._file) if self._file else None
        if self._current is None or at != self._stamp:
            more = read_properties(self._file) if self._file else {}
            self._current = read_security({**self._properties, **more})
            self._stamp = at
        return self._current
