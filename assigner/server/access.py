"""Decides who makes a call and whether they may, and records what was denied.

What a token or a certificate says is checked when a call arrives, before there is a task for it, so that a refusal is
cheap: who calls, the role, and that the connection is theirs. Group and name are checked when the request is read, by
the `AdmittedCall` that the call runs with. Sessions are none of this module's business: see `assigner.core.sessions`.

A connection belongs to the first principal that made a call over it. Another one's token on it is refused: what reads
and writes one connection is one process, or a proxy that must not mix its clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from assigner.auth import rules
from assigner.auth.actions import REQUIREMENTS, Action, action_of
from assigner.auth.identity import Principal
from assigner.auth.rules import Denial, DenialKind, Resource, denied
from assigner.clock import Clock
from assigner.errors import AssignerError, InvalidInput, LimitReached, PermissionDenied, Unauthenticated
from assigner.logs import get_logger
from assigner.server.settings import AuthSettings, ServerSettings, is_loopback

if TYPE_CHECKING:
    # PyJWT and cryptography take longer to import than the rest of the server: only where they are used.
    from assigner.auth.authenticator import Authenticator, PeerCertificate

EXPIRY_GRACE = 30.0
"""Seconds that a stream may outlive its token, its key or its certificate's rule, for the clocks of those who issue
tokens, and for files that are replaced one by one."""
SESSION = "session"
"""What a denial counts as that is about no claim, but about a session which another identity opened."""
_CLAIMS = frozenset(
    {"", "aud", "exp", "iat", "nbf", "sub", "org", "groups", "names", "roles", "kid", "alg", "crit", "certificate"}
)
"""Claims that are counted by name, besides."""

_log = get_logger(__name__)


def check_identity(auth: AuthSettings, server: ServerSettings) -> None:
    """Raise `InvalidInput` for settings that require an identity which nobody can show."""
    if auth.certificates and not server.tls_client_ca:
        raise InvalidInput(
            "auth.certificates is set, and no client is asked for a certificate; set grpc.tls_client_ca too"
        )
    if auth.recognizes or not is_required(auth, server):
        return
    why = "auth.required is set" if auth.required else f"host {server.host!r} can be reached from outside"
    raise InvalidInput(
        f"{why}, and no caller can be recognized: set auth.keys to the public keys of your tokens (`assigner token "
        "keygen` makes a pair) or auth.certificates to a file of rules; or, if whoever reaches the port may make every "
        "call, say so: --auth-required false (auth.required)"
    )


def is_required(auth: AuthSettings, server: ServerSettings) -> bool:
    return not is_loopback(server.host) if auth.required is None else auth.required


def access_by(auth: AuthSettings, server: ServerSettings, clock: Clock) -> Access:
    """Make the rules that the settings ask for. Nothing is read yet."""
    if not auth.recognizes:
        return Access()
    from assigner.auth.authenticator import Authenticator

    authenticator = Authenticator(
        keys=auth.keys, certificates=auth.certificates, clock=clock, interval=auth.reload_interval
    )
    return Access(authenticator, required=is_required(auth, server), wall=clock.wall)


class Access:
    """The rules of one server: how callers are recognized, and whether they have to be."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        *,
        required: bool = True,
        wall: Callable[[], float] = lambda: 0.0,
        grace: float = EXPIRY_GRACE,
    ) -> None:
        """Without an authenticator identity is off: whoever reaches the port may make every call. `required`: a call
        must show an identity; else one that shows none may do everything that is not bound to somebody's."""
        self.authenticator = authenticator
        self.required = required
        self.wall = wall
        self.grace = grace
        self.denials: Counter[tuple[str, str]] = Counter()
        """By kind and claim."""

    @property
    def mode(self) -> str:
        """How identity is used, for people."""
        if self.authenticator is None:
            return "off"
        return "required" if self.required else "optional"

    def connection(self, certificate: PeerCertificate | None, address: str) -> ConnectionOwner:
        return ConnectionOwner(self, certificate, address)

    def note(self, denial: Denial, action: Action | None, principal: Principal | None, **facts: str | None) -> None:
        claim = denial.claim if denial.claim in _CLAIMS or denial.claim == SESSION else "other"
        self.denials[denial.kind.value, claim] += 1
        _log.warning(
            "call_denied",
            principal=principal.identity if principal else "",
            action=action.value if action else "",
            **{name: value for name, value in facts.items() if value is not None},
            kind=denial.kind.value,
            claim=denial.claim,
            reason=denial.message,
        )


class ConnectionOwner:
    """The principal that a connection belongs to, as far as its calls have shown one."""

    def __init__(self, access: Access, certificate: PeerCertificate | None, address: str) -> None:
        self._access = access
        self._certificate = certificate
        self._address = address
        self._newest: Principal | None = None
        """By the credentials that were shown last."""

    def admit(self, path: str, metadata: Iterable[tuple[str, str]]) -> AdmittedCall | Denial:
        """Admit a call before its request is read, or say why not."""
        access, action = self._access, action_of(path)
        found: Principal | Denial | None = None
        if access.authenticator is not None and action is not None and not REQUIREMENTS[action].is_open:
            found = access.authenticator.authenticate(metadata, self._certificate, self._address, access.wall())
        principal = found if isinstance(found, Principal) else None
        denial = found if isinstance(found, Denial) else self._refusal(principal, action)
        if denial is not None:
            access.note(denial, action, principal, peer=self._address)
            return denial
        assert action is not None
        self._newest = principal or self._newest
        return AdmittedCall(access, self, principal, action, self._address)

    def _refusal(self, principal: Principal | None, action: Action | None) -> Denial | None:
        access = self._access
        if action is None or (access.authenticator is not None and (principal is not None or access.required)):
            denial = rules.decide_role(principal, action, access.wall())
            if denial is not None:
                return denial
        if principal is not None and self._newest is not None and principal.identity != self._newest.identity:
            return denied(
                "sub", f"this connection is another principal's than {principal.identity!r}; open one of your own"
            )
        return None

    @property
    def newest(self) -> Principal | None:
        return self._newest

    def confirm(self, principal: Principal) -> Principal | Denial:
        """Who the principal is by the keys and the rules of now, or why its credentials were withdrawn."""
        authenticator = self._access.authenticator
        return principal if authenticator is None else authenticator.confirm(principal, self._certificate)


class AdmittedCall:
    """A call whose caller and role are accepted; what it is about is checked when the request is read."""

    __slots__ = ("_access", "_denial", "_owner", "_resource", "_withdrawn_at", "action", "peer", "principal")

    def __init__(
        self, access: Access, owner: ConnectionOwner | None, principal: Principal | None, action: Action, peer: str
    ) -> None:
        self.principal = principal
        self.action = action
        self.peer = peer
        """The address that it came from."""
        self._access = access
        self._owner = owner
        self._resource: Resource | None = None
        self._denial: Denial | None = None
        self._withdrawn_at: float | None = None
        """Wall time at which the credentials of a stream were found withdrawn."""

    @property
    def identity(self) -> str:
        """What a session that the call opens is bound to; empty: the caller is not known."""
        return self.principal.identity if self.principal is not None else ""

    @property
    def group(self) -> str:
        """The group that the call is about, once that was checked."""
        return (self._resource.group if self._resource else None) or ""

    @property
    def changes(self) -> bool:
        """Whether it is an operator's change, which is audited."""
        return REQUIREMENTS[self.action].changes

    def check(self, group: str, name: str | None = None) -> None:
        """Raise `PermissionDenied` or `Unauthenticated` if the caller may not do this to the group, or as `name`."""
        self._resource = Resource(group, name)
        if not self._is_checked():
            return
        self._denial = self._decide(self.principal, self._access.wall())
        if self._denial is not None:
            raise error_of(self._denial)

    def may_see(self, group: str) -> bool:
        """Whether the group belongs into an answer that lists groups."""
        return self.principal is None or rules.may_see(self.principal, group)

    def ended(self) -> AssignerError | None:
        """Why a stream has to end: neither its own credentials nor the newest of its connection allow it any more.
        What has expired or was withdrawn counts for the grace time still."""
        if not self._is_checked() or self._owner is None:
            return None
        now = self._access.wall()
        then, newest = now - self._access.grace, self._owner.newest
        denial = self._lapsed(self.principal, then)
        if denial is None or self._lapsed(newest, then) is None:
            self._withdrawn_at = None
            return None
        if self._decide(self.principal, then) is None or self._decide(newest, then) is None:
            if self._withdrawn_at is None:
                self._withdrawn_at = now
            if self._withdrawn_at > then:
                return None
        self._denial = denial
        return error_of(denial)

    def _lapsed(self, principal: Principal | None, then: float) -> Denial | None:
        """Why what this principal has shown does not allow the call: it had expired by then, or was withdrawn since."""
        denial = self._decide(principal, then)
        if denial is not None or principal is None or self._owner is None:
            return denial
        found = self._owner.confirm(principal)
        if isinstance(found, Denial):
            return found
        if found.identity != principal.identity:
            return denied("org", f"{principal.identity!r} is called {found.identity!r} now; register anew")
        return self._decide(found, then)

    def note_denial(self, kind: DenialKind, message: str) -> None:
        """Record that the call ended with a denial: by its claims, or else by the session that it named."""
        denial = self._denial or Denial(kind, SESSION, message)
        name = self._resource.name if self._resource else None
        self._access.note(denial, self.action, self.principal, group=self.group, name=name, peer=self.peer)

    def _decide(self, principal: Principal | None, now: float) -> Denial | None:
        if self._resource is None:
            return rules.decide_role(principal, self.action, now)
        return rules.decide(principal, self.action, self._resource, now)

    def _is_checked(self) -> bool:
        return self._access.authenticator is not None and (self.principal is not None or self._access.required)


def error_of(denial: Denial) -> AssignerError:
    match denial.kind:
        case DenialKind.UNAUTHENTICATED:
            return Unauthenticated(denial.message)
        case DenialKind.DENIED:
            return PermissionDenied(denial.message)
        case DenialKind.LIMITED:
            return LimitReached(denial.message)


# --- the call that a task works for ------------------------------------------------------------------------------

_current: ContextVar[AdmittedCall] = ContextVar("assigner.server.access")


def work_for(call: AdmittedCall) -> None:
    """Let `current_call` return this call in the present task."""
    _current.set(call)


def current_call() -> AdmittedCall:
    """Return the call that the present task works for. Raises `LookupError` outside of calls."""
    return _current.get()


def unchecked_call() -> AdmittedCall:
    """Return a call that may do everything, for code that reads requests without a server."""
    return AdmittedCall(Access(), None, None, Action.CHECK_HEALTH, "")
