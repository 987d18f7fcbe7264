"""Decides who makes a call, by the token that it carries or the certificate that its connection shows.

A token says more than a certificate: the certificate may be a machine's or a proxy's, which many share. So a token that
is sent decides, and the certificate only where there is none; they are never added up. A token that is refused is not
made up for by a certificate: its sender meant to be somebody else, and would go on unnoticed as another one. A
certificate that a `[[deny]]` names is refused with any token.

Nothing here waits or does I/O, but for `load` and `watch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from assigner.auth.certificates import CertificateRules, read_rules
from assigner.auth.identity import Principal, Source
from assigner.auth.keys import KeySet, read_keys
from assigner.auth.reload import INTERVAL, ReloadedFiles, ReloadState
from assigner.auth.rules import Denial, unauthenticated
from assigner.auth.tokens import TokenStatistics, TokenVerifier
from assigner.clock import Clock
from assigner.logs import keep_headers_out

HEADER = "authorization"
_SCHEME = "bearer"

PeerCertificate = Mapping[str, Any]
"""A client's certificate as `ssl.SSLObject.getpeercert()` gives it; empty or None: it showed none."""


class AuthenticatorStatistics(msgspec.Struct, frozen=True):
    keys: ReloadState | None = None
    """None: no keys are set, and tokens are refused."""
    certificates: ReloadState | None = None
    """None: no rules are set, and certificates say nothing about who calls."""
    tokens: TokenStatistics | None = None


class Authenticator:
    """Knows the live keys and the rules for certificates, and decides for each call who makes it.

    `load` before anything else; `watch` runs along with the service.
    """

    def __init__(
        self, *, keys: Sequence[str] = (), certificates: str = "", clock: Clock, interval: float = INTERVAL
    ) -> None:
        """`keys`: files or folders of public keys. `certificates`: the file of rules for certificates. `interval`:
        seconds between looks at them."""
        keep_headers_out()
        self._keys: ReloadedFiles[KeySet] | None = None
        self._certificates: ReloadedFiles[CertificateRules] | None = None
        self._tokens: TokenVerifier | None = None
        if keys:
            paths = tuple(keys)
            self._keys = live = ReloadedFiles("keys", paths, lambda: read_keys(paths), clock, interval)
            self._tokens = TokenVerifier(lambda: live.current)
        if certificates:
            self._certificates = ReloadedFiles(
                "certificate rules", [certificates], lambda: read_rules(certificates), clock, interval
            )

    async def load(self) -> None:
        """Read the keys and the rules. Raises `InvalidInput` if they can't be used."""
        for files in self._files():
            await files.load()

    async def watch(self) -> None:
        """Reload the keys and the rules when they change, until cancelled."""
        async with anyio.create_task_group() as group:
            for files in self._files():
                group.start_soon(files.watch)

    async def look(self) -> None:
        """Reload now what has changed."""
        for files in self._files():
            await files.look()

    def _files(self) -> list[ReloadedFiles[Any]]:
        return [files for files in (self._keys, self._certificates) if files is not None]

    def statistics(self) -> AuthenticatorStatistics:
        return AuthenticatorStatistics(
            keys=None if self._keys is None else self._keys.state(),
            certificates=None if self._certificates is None else self._certificates.state(),
            tokens=None if self._tokens is None else self._tokens.statistics(),
        )

    def authenticate(
        self,
        metadata: Iterable[tuple[str, str]],
        peer_certificate: PeerCertificate | None,
        peer_address: str,
        now: float,
    ) -> Principal | Denial | None:
        """Decide who makes a call with these headers; None: nothing says who. `now` is Unix time.

        `peer_address`: the peer's IP address without the port; failed verifications are counted by it.
        """
        rules = self._rules(peer_certificate)
        sent = [value for name, value in metadata if name == HEADER]
        if not sent:
            return rules.decide(peer_certificate) if rules is not None and peer_certificate else None
        if rules is not None and peer_certificate:
            denial = rules.denies(peer_certificate)
            if denial is not None:
                return denial
        token = _bearer(sent)
        if isinstance(token, Denial):
            return token
        if self._tokens is None:
            return unauthenticated("", "no tokens are verified here; leave it out, or set auth.keys at the service")
        return self._tokens.verify(token, peer_address, now)

    def confirm(self, caller: Principal, peer_certificate: PeerCertificate | None) -> Principal | Denial:
        """Decide again about a caller that was recognized before, by the keys and the rules of now and not by the time:
        who it is, or why its credentials were withdrawn."""
        rules = self._rules(peer_certificate)
        if rules is not None and peer_certificate:
            if caller.source is Source.CERTIFICATE:
                return rules.decide(peer_certificate)
            denial = rules.denies(peer_certificate)
            if denial is not None:
                return denial
        return (self._tokens.withdrawn(caller) if self._tokens is not None else None) or caller

    def _rules(self, peer_certificate: PeerCertificate | None) -> CertificateRules | None:
        return self._certificates.current if self._certificates is not None and peer_certificate else None


def _bearer(sent: Sequence[str]) -> str | Denial:
    if len(sent) > 1:
        return unauthenticated("", f"the call has {len(sent)} `{HEADER}` headers; send one")
    scheme, _, token = sent[0].strip().partition(" ")
    token = token.strip()
    if scheme.lower() != _SCHEME or not token:
        return unauthenticated("", f"the header `{HEADER}` holds no bearer token; send: {HEADER}: Bearer TOKEN")
    return token
