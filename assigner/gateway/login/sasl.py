"""Logs a Kafka client in: SaslHandshake and SaslAuthenticate with PLAIN, SCRAM, or a token of this service.

An exchange belongs to one connection and goes step by step: the handshake names the mechanism, and one or two messages
follow. Whatever is wrong is answered with 33, 34 or 58 and ends the connection; the answer does not say whether the
user exists. Failed tries are limited by address, as those of tokens are. A client whose login ends at a time is told
so and logs in again before it (KIP-368), as the same principal.

The iterations of a password's check run on a thread, a few at a time.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Sequence

import anyio
import anyio.to_thread
import msgspec

from assigner.auth.authenticator import HEADER, Authenticator, PeerCertificate
from assigner.auth.failed_verifications import FailedVerifications
from assigner.auth.identity import Principal
from assigner.auth.reload import ReloadedFiles
from assigner.auth.rules import Denial
from assigner.clock import Clock
from assigner.gateway.login.credentials import Credential, Credentials
from assigner.gateway.login.scram import (
    HASHES,
    ScramError,
    ScramKeys,
    ScramServer,
    has_password,
    read_client_first,
)
from assigner.gateway.settings import SaslMechanism
from assigner.logs import get_logger
from assigner.logs.printable import one_line

UNSUPPORTED_MECHANISM = 33
ILLEGAL_STATE = 34
AUTHENTICATION_FAILED = 58
LONGEST_MESSAGE = 64 * 1024
_CHECKS_AT_ONCE = 2
"""Passwords that are checked on threads at a time."""
_REFUSED = "authentication failed"
_BEARER = "auth="

_log = get_logger(__name__)


class LoginAnswer(msgspec.Struct, frozen=True):
    """What a SaslAuthenticate is answered with."""

    error: int = 0
    message: str | None = None
    data: bytes = b""
    lifetime: float = 0.0
    """Seconds after which the client has to log in again; 0: never."""
    done: bool = False
    """The client is logged in."""


class Logins:
    """What the logins of all connections share."""

    def __init__(
        self,
        mechanisms: Sequence[SaslMechanism],
        clock: Clock,
        *,
        credentials: ReloadedFiles[Credentials] | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        """`credentials`: for passwords; `authenticator`: for tokens and for certificates."""
        self.mechanisms = tuple(one.value for one in mechanisms)
        self.clock = clock
        self.failed = FailedVerifications()
        self.outcomes: Counter[str] = Counter()
        """Logins by how they ended."""
        self._credentials = credentials
        self._authenticator = authenticator
        self._checking = anyio.CapacityLimiter(_CHECKS_AT_ONCE)

    @property
    def credentials(self) -> Credentials | None:
        return None if self._credentials is None else self._credentials.current

    def by_certificate(self, certificate: PeerCertificate | None, host: str) -> Principal | Denial | None:
        """Decide who shows the certificate; None: it does not say."""
        if self._authenticator is None or not certificate:
            return None
        return self._authenticator.authenticate((), certificate, host, self.clock.wall())

    def by_token(self, token: str, certificate: PeerCertificate | None, host: str) -> Principal | Denial | None:
        if self._authenticator is None:
            return None
        header = ((HEADER, f"Bearer {token}"),)
        return self._authenticator.authenticate(header, certificate, host, self.clock.wall())

    def withdrawn(self, principal: Principal, certificate: PeerCertificate | None) -> bool:
        """Whether what the principal was recognized by does not count any more."""
        return self._authenticator is not None and isinstance(
            self._authenticator.confirm(principal, certificate), Denial
        )

    async def has_password(self, keys: ScramKeys, password: str) -> bool:
        return await anyio.to_thread.run_sync(has_password, keys, password, limiter=self._checking)


class Login:
    """Who one connection is, and how far its login has come."""

    def __init__(self, logins: Logins, host: str, certificate: PeerCertificate | None = None) -> None:
        self.principal: Principal | None = None
        self._logins = logins
        self._host = host
        self._certificate = certificate
        self._mechanism = ""
        """Named by the handshake, for the messages that follow."""
        self._scram: ScramServer | None = None
        self._user = ""
        self._credential: Credential | None = None
        """What the user had when it logged in, by a password."""
        self._tried: Credential | None = None
        """What the user has whose SCRAM exchange goes on."""

    @property
    def in_exchange(self) -> bool:
        return bool(self._mechanism)

    @property
    def expires(self) -> float | None:
        """Unix time after which it has to log in again; None: never."""
        return None if self.principal is None else self.principal.expires

    def still_counts(self) -> bool:
        """Whether the login would succeed again now, as far as files say."""
        if self.principal is None:
            return True
        if self._credential is not None:
            credentials = self._logins.credentials
            return credentials is not None and credentials.still_counts(self._user, self._credential)
        return not self._logins.withdrawn(self.principal, self._certificate)

    def handshake(self, mechanism: str) -> int:
        """Begin an exchange; return Kafka's code."""
        if mechanism not in self._logins.mechanisms:
            self._logins.outcomes["mechanism"] += 1
            return UNSUPPORTED_MECHANISM
        self._mechanism = mechanism
        self._scram = None
        return 0

    def authenticate(self, message: bytes) -> LoginAnswer | Awaitable[LoginAnswer]:
        """Take one message of the exchange."""
        if not self._mechanism:
            return LoginAnswer(ILLEGAL_STATE, "send SaslHandshake first")
        if self._logins.failed.wait(self._host, self._logins.clock.now()):
            self._logins.outcomes["limited"] += 1
            self._mechanism = ""
            return LoginAnswer(AUTHENTICATION_FAILED, "too many failed logins from this address; try again later")
        if self._mechanism == SaslMechanism.PLAIN:
            return self._plain(message)
        try:
            return self._token(message) if self._mechanism not in HASHES else self._scram_step(message)
        except ScramError as error:
            return self._refuse(str(error))

    # --- the mechanisms ---

    async def _plain(self, message: bytes) -> LoginAnswer:
        try:
            authzid, user, password = message.decode().split("\0")
        except ValueError:
            return self._refuse("the message of PLAIN is malformed")
        self._user = user
        if authzid and authzid != user:
            return self._refuse("a client can't act as another user")
        credentials = self._logins.credentials
        found = None if credentials is None else credentials.get(user)
        if found is not None:
            keys = found.keys_for_plain()
        elif credentials is not None:
            keys = credentials.keys_of_nobody("SCRAM-SHA-256", user)
        else:
            return self._refuse("there are no users")
        if not await self._logins.has_password(keys, password) or found is None:
            return self._refuse("the password is wrong, or there is no such user")
        return self._accept(found.principal, found)

    def _scram_step(self, message: bytes) -> LoginAnswer:
        if self._scram is not None:
            final = self._scram.finish(message)
            if self._tried is None:
                return self._refuse("there is no such user")
            accepted = self._accept(self._tried.principal, self._tried)
            return msgspec.structs.replace(accepted, data=final) if accepted.done else accepted
        first = read_client_first(message)
        self._user = first.user
        credentials = self._logins.credentials
        if credentials is None:
            return self._refuse("there are no users")
        found = credentials.get(first.user)
        keys = None if found is None else found.keys.get(self._mechanism)
        self._tried = found if keys is not None else None
        self._scram = ScramServer(
            first, keys or credentials.keys_of_nobody(self._mechanism, first.user), secrets.token_urlsafe(18)
        )
        return LoginAnswer(data=self._scram.challenge())

    def _token(self, message: bytes) -> LoginAnswer:
        """OAUTHBEARER (RFC 7628): `n,,^Aauth=Bearer TOKEN^A^A`."""
        try:
            fields = message.decode().split("\x01")
        except UnicodeDecodeError:
            return self._refuse("the message of OAUTHBEARER is malformed")
        bearer = next((one.removeprefix(_BEARER) for one in fields if one.startswith(_BEARER)), "")
        scheme, _, token = bearer.partition(" ")
        if scheme.lower() != "bearer" or not token:
            return self._refuse("the message of OAUTHBEARER has no token")
        found = self._logins.by_token(token.strip(), self._certificate, self._host)
        if not isinstance(found, Principal):
            return self._refuse("no tokens are verified here" if found is None else found.message)
        self._user = found.name
        return self._accept(found, None)

    # --- outcomes ---

    def _accept(self, found: Principal, credential: Credential | None) -> LoginAnswer:
        if self.principal is not None and self.principal.identity != found.identity:
            return self._refuse("a connection stays with the principal that it began with")
        self.principal, self._credential = found, credential
        self._mechanism, self._scram = "", None
        self._logins.outcomes["accepted"] += 1
        lifetime = 0.0 if found.expires is None else max(0.001, found.expires - self._logins.clock.wall())
        return LoginAnswer(lifetime=lifetime, done=True)

    def _refuse(self, why: str) -> LoginAnswer:
        """Refuse the login. What is wrong is for the log, and not for whoever tries."""
        mechanism, self._mechanism, self._scram = self._mechanism, "", None
        self._logins.failed.failed(self._host, self._logins.clock.now())
        self._logins.outcomes["refused"] += 1
        _log.warning(
            "kafka_login_refused", mechanism=mechanism, user=one_line(self._user[:100]), host=self._host, reason=why
        )
        return LoginAnswer(AUTHENTICATION_FAILED, _REFUSED)
