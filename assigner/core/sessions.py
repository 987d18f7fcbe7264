"""Decides who may register under a name, who may act for it, and when a session is over.

A session is one life of a consumer process and named by it; a client that names none gets one from the server. The
registration on record names the one session that has the consumer's name now.

    the name is free             join
    the session has the name     resume: the session goes on where it was, draining if it was draining
    another session has it       takeover: that one is displaced, and remembered while its lease may live

A session that registers without the right to take over is refused while another one has the name, unless that one
stepped out: it works on nothing any more, and its partitions wait for the next session of the name.

A displaced session never gets the name back, or two processes would displace each other endlessly. An evicted session
stays evicted, or its partitions would never become free. A call acts for the session it names; a call without one acts
only for a session that the server made up, and never in an exclusive group, where a Released or a Deregister on behalf
of another would give a partition two owners.

A session is bound to the identity that opened it, if the service knows identities: nobody else takes its name, resumes
it or acts for it, whether or not they know the session. A registration without an identity, made where identity was
off, is bound to the one that resumes it.

The functions decide on records that were read before. What they return is written only if those records still stand.
"""

from __future__ import annotations

import math

import msgspec

from assigner.api import Registration
from assigner.core.group import GroupState
from assigner.errors import (
    AssignerError,
    Evicted,
    FailedPrecondition,
    InvalidInput,
    NotRegistered,
    PermissionDenied,
    SessionHeld,
    Superseded,
)
from assigner.model.names import session_digest
from assigner.model.records import ANY_SESSION, Consumer, Displaced, GroupOptions, HandoffMode, Status, Stored
from assigner.store import NO_LEASE

MOST_DISPLACED = 8
"""Displaced sessions that a registration remembers."""
RELEASE_TIMEOUTS = (1.0, 3600.0)
"""The shortest and the longest time that a consumer may ask for to release a partition; others count as the nearest."""


class RegistrationTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a registration asks for, and what the instance that admits it decides: session, TTL, time."""

    registration: Registration
    session: str
    """The one that the registration names, or the one that the server made up."""
    instance: str
    ttl: float
    now: int
    """Wall time, for people."""


# --- registering -------------------------------------------------------------------------------------------------


def keeps_a_session(registration: Registration) -> bool:
    """Whether the client names its session and renews it by its own clock, as exclusive groups demand."""
    return registration.renews and bool(registration.session)


def check_mode(options: GroupOptions, registration: Registration) -> None:
    """Raise `FailedPrecondition` for a client that an exclusive group can't rely on."""
    if options.handoff_mode is HandoffMode.EXCLUSIVE and not keeps_a_session(registration):
        raise FailedPrecondition(
            f"group {registration.group!r} hands partitions over exclusively, which needs clients that renew their "
            "session; use a client that names one and calls Renew, or set the group's handoff_mode to overlap"
        )


def check_may_register(current: Stored[Consumer] | None, session: str, group: str, principal: str) -> None:
    """Raise `PermissionDenied` if the name is another identity's, `Superseded` for a session that was displaced,
    `Evicted` for one that was evicted."""
    check_principal(current, group, principal)
    _check_not_displaced(current, session, group)
    if current and current.record.session == session and current.record.evicted:
        raise evicted(current.record)


def check_not_held(current: Stored[Consumer] | None, session: str, registration: Registration) -> None:
    """Raise `SessionHeld` if the name is another session's, and the registration may not take it over.

    A session that stepped out or was evicted does not hold the name: nothing that it does counts any more."""
    if registration.takeover or current is None or current.record.session == session:
        return
    if not current.record.away and not current.record.evicted:
        raise SessionHeld(
            f"consumer {registration.name!r} of group {registration.group!r} is registered by another session "
            f"({session_digest(current.record.session)}); wait until that one has left, or use another name"
        )


def check_release_timeout(registration: Registration) -> None:
    """Raise `InvalidInput` for a time that is none."""
    seconds = registration.release_timeout
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidInput(f"release_timeout is {seconds}; it must be a number of seconds from 0 up")


def lease_to_resume(current: Stored[Consumer] | None, session: str) -> int:
    """The lease that a resuming session had, if it is worth renewing; else `NO_LEASE`."""
    if current is None or current.record.session != session or current.record.evicted:
        return NO_LEASE
    return current.lease


def register(current: Stored[Consumer] | None, terms: RegistrationTerms) -> Consumer:
    """Make the registration to write in place of the one on record."""
    if current is None:
        return join(terms)
    if current.record.session == terms.session:
        return resume(current.record, terms)
    return takeover(current, terms)


def join(terms: RegistrationTerms) -> Consumer:
    registration = terms.registration
    return Consumer(
        consumer_name=registration.name,
        status=Status.READY,
        registered_at=terms.now,
        generation=registration.generation,
        session=terms.session,
        capacity=registration.capacity,
        rack=registration.rack,
        topics=tuple(sorted(set(registration.topics))),
        address=registration.address,
        instance=terms.instance,
        ttl=terms.ttl,
        renews=registration.renews,
        minted=not registration.session,
        principal=registration.principal,
        cold=registration.cold,
        release_timeout=_bounded(registration.release_timeout),
        explicit_topics=registration.explicit_topics,
        pattern=registration.pattern,
        kind=registration.kind,
        client_id=registration.client_id,
        host=registration.host,
    )


def _bounded(release_timeout: float) -> float:
    shortest, longest = RELEASE_TIMEOUTS
    return min(max(release_timeout, shortest), longest) if release_timeout else 0.0


def resume(before: Consumer, terms: RegistrationTerms) -> Consumer:
    return msgspec.structs.replace(
        join(terms),
        status=before.status,
        registered_at=before.registered_at,
        displaced=_displaced(before.displaced, terms.session),
    )


def takeover(before: Stored[Consumer], terms: RegistrationTerms) -> Consumer:
    """The leader waits for the end of a displaced session's lease before it hands the session's partitions over
    exclusively, so the registration keeps the lease. A registration without one, as upstream's server writes it, has
    nothing to wait for."""
    displaced = before.record.displaced
    if before.lease:
        displaced = (*displaced, Displaced(before.record.session, before.lease, before.record.away))
    return msgspec.structs.replace(join(terms), displaced=_displaced(displaced, terms.session))


def _displaced(displaced: tuple[Displaced, ...], session: str) -> tuple[Displaced, ...]:
    return tuple(one for one in displaced if one.session != session)[-MOST_DISPLACED:]


# --- acting for a session ----------------------------------------------------------------------------------------


def may_act(consumer: Consumer, session: str) -> bool:
    """Whether a call with this session is the consumer's own."""
    return consumer.session == session or (session == ANY_SESSION and consumer.minted)


def may_use(consumer: Consumer, principal: str) -> bool:
    """Whether the identity may be behind this registration. Where the caller's is not known, it is nobody's that is
    bound to one: an instance with identity off must not be a way round the others."""
    return not consumer.principal or consumer.principal == principal


def check_principal(current: Stored[Consumer] | None, group: str, principal: str) -> None:
    """Raise `PermissionDenied` if the registration on record is bound to another identity."""
    if current and not may_use(current.record, principal):
        raise PermissionDenied(
            f"consumer {current.record.consumer_name!r} of group {group!r} is registered by another identity than "
            f"{principal or 'none'!r}; use its token, or another name, or wait until its session has ended"
        )


def check_call_mode(options: GroupOptions, group: str, name: str, session: str) -> None:
    """Raise `FailedPrecondition` for a call without a session in an exclusive group."""
    if session == ANY_SESSION and options.handoff_mode is HandoffMode.EXCLUSIVE:
        raise FailedPrecondition(
            f"group {group!r} hands partitions over exclusively, which needs clients with sessions; "
            f"name the session of {name!r} in the call"
        )


def authorize(
    current: Stored[Consumer] | None, group: str, name: str, session: str, principal: str
) -> Stored[Consumer]:
    """Return the registration on record, if a call of this identity with this session acts for it.

    Raises `PermissionDenied` for another identity, `Superseded` for a displaced session, `FailedPrecondition` for a
    call without a session, else `NotRegistered`."""
    check_principal(current, group, principal)
    if current and may_act(current.record, session):
        return current
    if current and session == ANY_SESSION:
        raise FailedPrecondition(
            f"consumer {name!r} of group {group!r} registered with a session of its own; name that session in the call"
        )
    _check_not_displaced(current, session, group)
    raise NotRegistered(
        f"consumer {name!r} is not registered in group {group!r}"
        + (f" with session {session_digest(session)}" if session else "")
        + "; register first"
    )


def check_registered(current: Stored[Consumer] | None, group: str, name: str) -> Stored[Consumer]:
    """Return the registration on record, of any session. Raises `NotRegistered`."""
    if current is None:
        raise NotRegistered(f"consumer {name!r} is not registered in group {group!r}")
    return current


def check_on_record(current: Stored[Consumer] | None, session: str, group: str) -> None:
    """Raise `Superseded` if another session has the name by now."""
    if current and current.record.session != session:
        raise superseded(group, current.record)


# --- leaving -----------------------------------------------------------------------------------------------------


def drain(consumer: Consumer) -> Consumer:
    return msgspec.structs.replace(consumer, status=Status.DRAINING)


def step_out(consumer: Consumer) -> Consumer:
    return msgspec.structs.replace(consumer, away=True)


def left_behind(before: Stored[Consumer] | None, after: Consumer) -> int:
    """The lease of a session that had stepped out and that this registration displaced: it need not live on, because
    nothing is done under it. `NO_LEASE` if there is none."""
    if before is None or not before.record.away or before.record.session == after.session:
        return NO_LEASE
    return before.lease


def has_to_wait(state: GroupState, name: str) -> bool:
    """Whether a draining consumer still has partitions to hand over, and another consumer could take them."""
    others = (
        other.record.status is Status.READY and not other.record.evicted
        for other_name, other in state.consumers.items()
        if other_name != name
    )
    return bool(state.to_hand_over(name)) and any(others)


def displaced_lease(current: Stored[Consumer] | None, session: str) -> int:
    """The lease of a session that lost the name to the one on record; `NO_LEASE` if it did not."""
    if current is None or not session or current.record.session == session:
        return NO_LEASE
    return next((one.lease for one in current.record.displaced if one.session == session), NO_LEASE)


# --- the end of a session ----------------------------------------------------------------------------------------


def ended(state: GroupState, name: str, session: str) -> AssignerError | None:
    """Why the session is over; None: it is not, as far as the group's records can be read."""
    consumer = state.consumers.get(name)
    if consumer is None:
        if name in state.unreadable_consumers:
            return None
        return NotRegistered(f"consumer {name!r} is not registered any more; register again")
    if consumer.record.session != session:
        return superseded(state.keys.group, consumer.record)
    return evicted(consumer.record) if consumer.record.evicted else None


def is_drained(state: GroupState, name: str) -> bool:
    """Whether the consumer is draining and has nothing left to hand over."""
    consumer = state.consumers.get(name)
    return bool(consumer and consumer.record.status is Status.DRAINING and not state.to_hand_over(name))


def superseded(group: str, by: Consumer) -> Superseded:
    where = f" at {by.address}" if by.address else ""
    return Superseded(
        f"another process{where} registered as {by.consumer_name!r} in group {group!r} "
        f"(session {session_digest(by.session)}); "
        "give each process a name of its own"
    )


def evicted(consumer: Consumer) -> Evicted:
    return Evicted(
        f"consumer {consumer.consumer_name!r} was evicted: it {consumer.evicted}; register anew, with another session"
    )


def _check_not_displaced(current: Stored[Consumer] | None, session: str, group: str) -> None:
    if current and any(one.session == session for one in current.record.displaced):
        raise superseded(group, current.record)
