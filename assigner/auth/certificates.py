"""Makes principals of TLS client certificates, by a file of rules in TOML.

A certificate's name is its URI SAN (a SPIFFE id), else its DNS SANs; never its common name, which every authority fills
as it likes. The first `[[allow]]` whose `who` matches says what it may do; a `[[deny]]` that matches any of its names
wins over all of them, and over a token that comes with it. In `who`, `*` stands for any characters.

```toml
[[allow]]
who = "spiffe://corp/ns/billing/sa/worker"
org = "acme"
role = "consumer"
groups = ["billing", "billing-*"]
names = "worker-*"

[[deny]]
who = "spiffe://corp/ns/billing/sa/leaked"
```

Not promised: revocation lists. TLS has checked the certificate before it gets here; a `[[deny]]` ends a leaked one.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from assigner.auth.identity import Principal, Source, check_patterns, matches_any, principal
from assigner.auth.rules import Denial, unauthenticated
from assigner.errors import AssignerError, InvalidInput
from assigner.secret_files import read_start, why_unread

MAX_BYTES = 1024 * 1024
MOST_RULES = 500
"""Rules of a file: all of them are compared for a certificate that is new, which takes the event loop's time."""
REMEMBERED = 4_096
"""Certificates' names whose rule is remembered."""
CLAIM = "certificate"
"""What denials call the certificate, as if it were a claim."""

_OneOrMore = str | tuple[str, ...]


class _Allow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    who: _OneOrMore
    role: _OneOrMore
    groups: _OneOrMore
    names: _OneOrMore = ()
    org: str = ""


class _Deny(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    who: _OneOrMore


class _RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allow: tuple[_Allow, ...] = ()
    deny: tuple[_Deny, ...] = ()


class CertificateNames(msgspec.Struct, frozen=True):
    """The names in a certificate, each kind in its own order."""

    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.uris + self.dns

    @property
    def own(self) -> tuple[str, ...]:
        """Those that say who it is."""
        return self.uris or self.dns


class CertificateRules:
    """Decides what a certificate may do. Made by `read_rules`; frozen, so that answers can be remembered."""

    def __init__(self, allowed: tuple[tuple[tuple[str, ...], Principal], ...], denied: tuple[str, ...]) -> None:
        """`allowed`: patterns with what they allow. `denied`: patterns."""
        self._allowed = allowed
        self._denied = denied
        self._decide = lru_cache(REMEMBERED)(self._look_up)
        self._denial = lru_cache(REMEMBERED)(self._denial_of)

    def decide(self, certificate: Mapping[str, Any]) -> Principal | Denial:
        """Decide who shows the certificate, which is as `getpeercert()` of its connection gives it."""
        found = self._decide(names_of(certificate))
        if isinstance(found, Denial):
            return found
        return msgspec.structs.replace(found, expires=_end(certificate))

    def denies(self, certificate: Mapping[str, Any]) -> Denial | None:
        """The denial if a `[[deny]]` names the certificate."""
        return self._denial(names_of(certificate).all) if self._denied else None

    def _look_up(self, names: CertificateNames) -> Principal | Denial:
        denial = self._denial(names.all)
        if denial is not None:
            return denial
        if not names.own:
            return unauthenticated(CLAIM, "the certificate has neither a URI nor a DNS name (SAN); issue it with one")
        if len(names.uris) > 1:
            return unauthenticated(CLAIM, f"the certificate has {len(names.uris)} URI names (SAN); issue it with one")
        for patterns, allowed in self._allowed:
            for name in names.own:
                if matches_any(patterns, name):
                    return _named(allowed, name)
        return unauthenticated(CLAIM, f"no [[allow]] names certificate {names.own[0]!r}; add a rule for it")

    def _denial_of(self, names: tuple[str, ...]) -> Denial | None:
        for name in names:
            if matches_any(self._denied, name):
                return unauthenticated(CLAIM, f"a [[deny]] names certificate {name!r}; use another certificate")
        return None


def _named(allowed: Principal, name: str) -> Principal | Denial:
    try:
        return msgspec.structs.replace(allowed, name=principal(name).name)
    except AssignerError as error:
        return unauthenticated(CLAIM, str(error))


def names_of(certificate: Mapping[str, Any]) -> CertificateNames:
    """Return the names of a certificate. DNS names are compared in lower case."""
    found = certificate.get("subjectAltName", ())
    return CertificateNames(
        tuple(value for kind, value in found if kind == "URI"),
        tuple(value.lower() for kind, value in found if kind == "DNS"),
    )


def _end(certificate: Mapping[str, Any]) -> float | None:
    text = certificate.get("notAfter")
    return float(ssl.cert_time_to_seconds(text)) if text else None


# --- the file ------------------------------------------------------------------------------------------------------


def read_rules(path: str) -> CertificateRules:
    """Read the rules of the file. Raises `InvalidInput` if one can't be used: none of them counts then."""
    try:
        content = read_start(path, MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"can't read the certificate rules in {path}: {why_unread(error)}") from error
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"the certificate rules in {path} are longer than {MAX_BYTES} bytes; use `*` in `who`")
    try:
        found = msgspec.toml.decode(content, type=_RulesFile)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the certificate rules in {path} are wrong: {error}; see [[allow]], [[deny]]") from error
    if len(found.allow) + len(found.deny) > MOST_RULES:
        raise InvalidInput(f"there are more than {MOST_RULES} certificate rules in {path}; use `*` in `who`")
    try:
        allowed = tuple((_who(rule.who), _allowed(rule)) for rule in found.allow)
        return CertificateRules(allowed, tuple(who for rule in found.deny for who in _who(rule.who)))
    except AssignerError as error:
        raise InvalidInput(f"the certificate rules in {path} are wrong: {error}") from error


def _allowed(rule: _Allow) -> Principal:
    """What the rule allows; the name is that of each certificate."""
    return principal(
        "-",
        organization=rule.org,
        groups=_several(rule.groups),
        names=_several(rule.names),
        roles=_several(rule.role),
        source=Source.CERTIFICATE,
    )


def _who(who: _OneOrMore) -> tuple[str, ...]:
    found = check_patterns("who", _several(who))
    if not found:
        raise InvalidInput("a rule names nobody; add `who`")
    # URIs keep their case, DNS names have none.
    return tuple(one if "://" in one else one.lower() for one in found)


def _several(value: _OneOrMore) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
