"""Decides which router may register under a name, who may call for it, and when its session is over.

As for consumers (`core.sessions`), a session is one life of a process. The same session resumes, another one takes the
name over, and one that lost its name never gets it back, or two processes would displace each other endlessly.

A router that lost its name may go on sending until it hears of it, or until two thirds of its TTL are over. So a
takeover moves its record to a key of its own, under its own lease, where freezes go on waiting for it: until the lease
has ended, or until it deregisters. Nobody renews that lease any more.

The functions decide on records that were read before. What they return is written only if those records still stand.
"""

from __future__ import annotations

import msgspec

from assigner.api import RouterRegistration
from assigner.core.group import GroupState
from assigner.errors import AssignerError, InvalidInput, LimitReached, NotRegistered, PermissionDenied, Superseded
from assigner.model.keys import GroupKeys, RouterKey
from assigner.model.names import check_name, session_digest
from assigner.model.records import Router, Stored
from assigner.store import NO_LEASE, Operation, Put

MOST_ROUTERS = 1_000
"""Routers of a group. Each freeze waits for every one of them."""
MOST_DISPLACED = 8
"""Sessions that lost their name and that a registration remembers; and of one name, how many may still be at work."""


class RouterTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a router asks for, and what the instance that admits it decides."""

    registration: RouterRegistration
    instance: str
    ttl: float
    now: int
    """Wall time, for people."""


# --- registering -------------------------------------------------------------------------------------------------


def check_registration(registration: RouterRegistration) -> None:
    """Raise `InvalidName` for a name that is none, `InvalidInput` for a router without a session."""
    check_name("router_name", registration.name)
    if not registration.session:
        raise InvalidInput(
            f"router {registration.name!r} names no session; choose one per process, such as a random one, and name it "
            "in every call"
        )
    check_name("session", registration.session)


def check_room(state: GroupState, name: str) -> None:
    """Raise `LimitReached` for one more router in a group that has too many."""
    if name not in state.routers and len(state.routers) + len(state.displaced_routers) >= MOST_ROUTERS:
        raise LimitReached(
            f"group {state.keys.group!r} has {MOST_ROUTERS} routers, and each handoff waits for all; stop those "
            "that are not needed, or split the group"
        )


def check_takeover(state: GroupState, current: Stored[Router] | None, session: str) -> None:
    """Raise `LimitReached` for another session of a name that so many sessions have lost of late: each is waited for
    until its lease ends, and one more would have the first of them forgotten."""
    if current is None or current.record.session == session:
        return
    name = current.record.router_name
    if sum(key.name == name for key in state.displaced_routers) >= MOST_DISPLACED:
        raise LimitReached(
            f"router {name!r} of group {state.keys.group!r} was taken over {MOST_DISPLACED} times within its TTL; give "
            "each process a name of its own, and look why it is restarted so often"
        )


def check_may_register(current: Stored[Router] | None, registration: RouterRegistration) -> None:
    """Raise `PermissionDenied` if the name is another identity's, `Superseded` for a session that lost the name."""
    check_principal(current, registration.group, registration.principal)
    _check_not_displaced(current, registration.group, registration.session)


def lease_to_resume(current: Stored[Router] | None, session: str) -> int:
    """The lease of a session that resumes; `NO_LEASE`: it needs another one."""
    return current.lease if current and current.record.session == session else NO_LEASE


def register(current: Stored[Router] | None, terms: RouterTerms) -> Router:
    """Make the registration to write in place of the one on record: join, resume or takeover."""
    registration = terms.registration
    joined = Router(
        router_name=registration.name,
        session=registration.session,
        registered_at=terms.now,
        instance=terms.instance,
        ttl=terms.ttl,
        principal=registration.principal,
    )
    if current is None:
        return joined
    before = current.record
    if before.session == registration.session:
        return msgspec.structs.replace(joined, registered_at=before.registered_at, displaced=before.displaced)
    displaced = (*before.displaced, session_digest(before.session))
    return msgspec.structs.replace(joined, displaced=displaced[-MOST_DISPLACED:])


def displace(keys: GroupKeys, current: Stored[Router] | None, session: str) -> tuple[Operation, ...]:
    """What a takeover writes besides its own registration: the one that it replaces, under that one's own lease. A
    record without a lease, as nobody here writes it, has no process behind it to wait for."""
    if current is None or current.record.session == session or not current.lease:
        return ()
    before = current.record
    key = keys.displaced_router(before.router_name, before.session)
    return (Put(key, current.encode(before), current.lease),)


# --- acting for a session ----------------------------------------------------------------------------------------


def may_use(router: Router, principal: str) -> bool:
    """Whether the identity may be behind this registration."""
    return not router.principal or router.principal == principal


def may_act(router: Router, session: str, principal: str) -> bool:
    """Whether a call of this identity with this session is the router's own."""
    return bool(session) and router.session == session and may_use(router, principal)


def check_principal(current: Stored[Router] | None, group: str, principal: str) -> None:
    """Raise `PermissionDenied` if the registration on record is bound to another identity."""
    if current and not may_use(current.record, principal):
        raise PermissionDenied(
            f"router {current.record.router_name!r} of group {group!r} is registered by another identity than "
            f"{principal or 'none'!r}; use its token, or another name, or wait until its session has ended"
        )


def authorize(current: Stored[Router] | None, group: str, name: str, session: str, principal: str) -> Stored[Router]:
    """Return the registration on record, if a call of this identity with this session acts for it.

    Raises `PermissionDenied` for another identity, `Superseded` for a session that lost the name, else
    `NotRegistered`."""
    check_principal(current, group, principal)
    if current and may_act(current.record, session, principal):
        return current
    _check_not_displaced(current, group, session)
    raise not_registered(group, name, session)


# --- the end of a session ----------------------------------------------------------------------------------------


def ended(state: GroupState, name: str, session: str) -> AssignerError | None:
    """Why the session is over; None: it is not, as far as the group's records can be read."""
    router = state.routers.get(name)
    if router is None:
        if RouterKey(name) in state.unreadable_routers:
            return None
        return not_registered(state.keys.group, name, session)
    if router.record.session != session:
        return superseded(state.keys.group, router.record)
    return None


def check_on_record(state: GroupState, name: str, session: str) -> None:
    """Raise if the session has ended by now."""
    error = ended(state, name, session)
    if error:
        raise error


def not_registered(group: str, name: str, session: str) -> NotRegistered:
    with_session = f" with session {session_digest(session)}" if session else ""
    return NotRegistered(
        f"router {name!r} is not registered in group {group!r}{with_session}; hold all requests back and register again"
    )


def superseded(group: str, by: Router) -> Superseded:
    return Superseded(
        f"another process registered as router {by.router_name!r} in group {group!r} "
        f"(session {session_digest(by.session)}); give each process a name of its own"
    )


def _check_not_displaced(current: Stored[Router] | None, group: str, session: str) -> None:
    if current and session and session_digest(session) in current.record.displaced:
        raise superseded(group, current.record)
