"""Defines principals, their roles, and the patterns that say which groups and which names are theirs.

A pattern is compared with the whole text, character by character; `*` stands for any characters, also none, and nothing
else is special. So a pattern can't take long, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NoReturn

import msgspec

from assigner.errors import InvalidInput, InvalidName
from assigner.model.names import check_name

MOST_PATTERNS = 64
"""Patterns per claim: all of them may be compared at each call."""
ANY = "*"


class Role(str, Enum):
    CONSUMER = "consumer"
    ROUTER = "router"
    READER = "reader"
    OPERATOR = "operator"
    ADMIN = "admin"
    GATEWAY = "gateway"
    """Passes on the calls of Kafka clients, and answers for who they are."""


class Source(str, Enum):
    """What a principal was recognized by."""

    TOKEN = "token"
    CERTIFICATE = "certificate"
    PASSWORD = "password"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls: one tenant's workload or person, with what it may touch. Made by `principal`."""

    name: str
    """The token's `sub`, the certificate's SAN, or the user's name."""
    organization: str = ""
    groups: tuple[str, ...] = ()
    """Patterns of the groups that it may name."""
    names: tuple[str, ...] = ()
    """Patterns of the consumers or routers that it may be."""
    roles: frozenset[Role] = frozenset()
    expires: float | None = None
    """Unix time from which it counts no more; None: no end is known."""
    source: Source = Source.TOKEN
    key: str = ""
    """Thumbprint of the key that signed the token; empty for a certificate or a password."""

    @property
    def identity(self) -> str:
        """What records and logs name it by: the same for every token of the same caller."""
        return f"{self.organization}/{self.name}"


def principal(
    name: str,
    *,
    organization: str = "",
    groups: Iterable[str] = (),
    names: Iterable[str] = (),
    roles: Iterable[str] = (),
    expires: float | None = None,
    source: Source = Source.TOKEN,
) -> Principal:
    """Make a principal from claims. Raises `InvalidName` or `InvalidInput` for malformed ones."""
    check_name("principal", name)
    if organization:
        check_name("organization", organization)
    if "/" in organization:
        # Or "a" with "b/c" and "a/b" with "c" would be the same identity.
        raise InvalidName(f"organization {organization!r} holds a slash; leave it out")
    return Principal(
        name=name,
        organization=organization,
        groups=check_patterns("groups", groups),
        names=check_patterns("names", names),
        roles=frozenset(map(_role, roles)),
        expires=expires,
        source=source,
    )


def _role(role: str) -> Role:
    try:
        return Role(role)
    except ValueError:
        known = ", ".join(known.value for known in Role)
        raise InvalidInput(f"role {role!r} is unknown; use one of: {known}") from None


# --- patterns ----------------------------------------------------------------------------------------------------


def check_patterns(claim: str, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns, each once. Raises `InvalidName` or `InvalidInput`."""
    found = tuple(dict.fromkeys(patterns))
    if len(found) > MOST_PATTERNS:
        _too_many(claim, len(found))
    for pattern in found:
        check_name(f"pattern of {claim}", pattern)
    return found


def _too_many(claim: str, count: int) -> NoReturn:
    raise InvalidInput(f"claim `{claim}` has {count} patterns; at most {MOST_PATTERNS} count: use `*` in them")


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern stands for the whole text."""
    first, *others = pattern.split(ANY)
    if not others:
        return pattern == text
    *middle, last = others
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    # The leftmost place of each part leaves the most room for the next ones, so nothing is ever tried twice.
    at, end = len(first), len(text) - len(last)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def matches_any(patterns: Iterable[str], text: str) -> bool:
    return any(matches(pattern, text) for pattern in patterns)
