"""Decides whether a principal may do an action, and names the claim that is missing or wrong.

The functions are pure: the caller passes the time. They know nothing of sessions; that a session belongs to the
principal that opened it is decided where registrations are, in `assigner.core.sessions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from assigner.auth.actions import REQUIREMENTS, Action
from assigner.auth.identity import Principal, matches_any

_SHOWN = 5
"""Patterns of a claim that a denial lists."""


class DenialKind(str, Enum):
    UNAUTHENTICATED = "unauthenticated"
    """Who calls is not known: another token may help."""
    DENIED = "denied"
    """Who calls is known, and may not do this."""
    LIMITED = "limited"
    """Who calls was not looked at: the same token may be taken a little later."""


class Denial(msgspec.Struct, frozen=True):
    """Why a call is refused, in words for the caller."""

    kind: DenialKind
    claim: str
    """The claim that is missing or wrong; empty: there is no token at all, or it can't be read."""
    message: str


class Resource(msgspec.Struct, frozen=True):
    """What an action is done to. A field that the action needs and that is None is denied."""

    group: str | None = None
    name: str | None = None
    """The consumer or router that the caller acts as."""


def decide(principal: Principal | None, action: Action | None, resource: Resource, now: float) -> Denial | None:
    """Decide whether the principal may do the action to the resource; None: it may. `now` is Unix time."""
    denial = decide_role(principal, action, now)
    if denial is not None or principal is None or action is None:
        return denial
    needs = REQUIREMENTS[action]
    if needs.group and not _covers(principal.groups, resource.group):
        return _mismatch("groups", principal.groups, "group", resource.group)
    if needs.name and not _covers(principal.names, resource.name):
        return _mismatch("names", principal.names, "name", resource.name)
    return None


def decide_role(principal: Principal | None, action: Action | None, now: float) -> Denial | None:
    """Decide what can be decided before the request is read: who calls, whether that still counts, and the role."""
    if action is None:
        return denied("", "this call has no action in assigner.auth.actions, so nobody may make it")
    needs = REQUIREMENTS[action]
    if needs.is_open:
        return None
    if principal is None:
        return unauthenticated("", f"{action.value} needs an identity; send a token or show a client certificate")
    if principal.expires is not None and now >= principal.expires:
        return unauthenticated("exp", f"the {principal.source.value} of {principal.identity!r} has expired; renew it")
    if needs.roles & principal.roles:
        return None
    wanted = " or ".join(sorted(role.value for role in needs.roles))
    held = _listed(sorted(role.value for role in principal.roles))
    return denied(
        "roles", f"claim `roles` {held} of {principal.identity!r} does not allow {action.value}: add {wanted}"
    )


def may_see(principal: Principal, group: str) -> bool:
    """Whether the group belongs into an answer that lists groups for the principal."""
    return matches_any(principal.groups, group)


def unauthenticated(claim: str, message: str) -> Denial:
    return Denial(DenialKind.UNAUTHENTICATED, claim, message)


def limited(message: str) -> Denial:
    return Denial(DenialKind.LIMITED, "", message)


def denied(claim: str, message: str) -> Denial:
    return Denial(DenialKind.DENIED, claim, message)


def _covers(patterns: Iterable[str], text: str | None) -> bool:
    return text is not None and matches_any(patterns, text)


def _mismatch(claim: str, patterns: tuple[str, ...], what: str, text: str | None) -> Denial:
    if text is None:
        return denied(claim, f"the call names no {what}, which claim `{claim}` could match; name one")
    mismatch = f"claim `{claim}` {_listed(patterns)} does not match {what} {text!r}"
    return denied(claim, f"{mismatch}; use another {what}, or add a pattern")


def _listed(values: Sequence[str]) -> str:
    more = [f"and {len(values) - _SHOWN} more"] if len(values) > _SHOWN else []
    return "[" + ", ".join([*values[:_SHOWN], *more]) + "]"
