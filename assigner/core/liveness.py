"""Decides whether the session that owns a partition is alive, replaced, dead, or not known to be either.

A lease proves that its holder renewed it lately, never that it stopped working. So a session without a registration is
dead only if the leader saw the registration go, or when the grace period is over: one TTL after the term began. In
`exclusive` groups its lease has to be over too, because until then the old owner's own clock may still admit work.
While the state is unknown, the owner keeps what it has and gets nothing.
"""

from __future__ import annotations

from enum import Enum

from assigner.core.group import GroupState
from assigner.model.records import Assignment, Consumer, HandoffMode, Status, Stored
from assigner.store import NO_LEASE, Absent, Compare, ModRevisionIs


class SessionState(Enum):
    ALIVE = "alive"
    """Registered with this session."""
    UNKNOWN = "unknown"
    """Not registered, and not known to be gone: it keeps what it has and gets nothing."""
    REPLACED = "replaced"
    """Gone, and another session of the same consumer is registered."""
    DEAD = "dead"


class SessionLiveness:
    def __init__(self, state: GroupState, *, ttl: float, term_started: float) -> None:
        self._state = state
        self._ttl = ttl
        self._term_started = term_started
        self._leases: dict[tuple[str, str], set[int]] = {}
        """Leases of every session seen registered during this term. One that lost its registration while its lease
        lived on, and registered again, has more than one."""
        self._inherited: set[tuple[str, str]] = set()
        """Sessions found registered when the term began, and not seen since. During an outage of the service nobody
        renewed their leases, so a registration that ends now proves as little as one that ended before."""
        self._seen_names: set[str] = set()
        """Consumers that registered or changed since the term began."""
        self._missed: dict[tuple[str, str], float] = {}
        """When a session without a known lease was first found missing."""
        self._over: set[int] = set()
        self.leases_to_check: set[int] = set()
        """Leases that have to be over before their sessions are dead."""
        self._outage = False

    @property
    def grace_period_ends(self) -> float:
        """When owners that have been absent since before the term began count as dead."""
        return self._term_started + self._ttl

    def inherited(self, consumer: Stored[Consumer]) -> None:
        """Record a consumer that was registered when the term began. One that was leaving has no grace period."""
        self.seen(consumer)
        if consumer.record.status is Status.READY and not consumer.record.evicted:
            self._inherited.add((consumer.record.consumer_name, consumer.record.session))
            self._seen_names.discard(consumer.record.consumer_name)

    def seen(self, consumer: Stored[Consumer]) -> None:
        """Record that the consumer registered, or changed its registration."""
        record = consumer.record
        self._seen_names.add(record.consumer_name)
        self._inherited.discard((record.consumer_name, record.session))
        self._missed.pop((record.consumer_name, record.session), None)
        self._leases.setdefault((record.consumer_name, record.session), set()).add(consumer.lease)
        for displaced in record.displaced:
            # The last lease it had: it may have registered again in the meantime, unseen.
            self._leases.setdefault((record.consumer_name, displaced.session), set()).add(displaced.lease)
            if displaced.closed:
                self.lease_over(displaced.lease)

    def lease_over(self, lease: int) -> None:
        """Record that the session's lease is over, as the store reported."""
        self._over.add(lease)
        self.leases_to_check.discard(lease)

    def forget_idle_sessions(self) -> None:
        """Drop what is known of sessions that hold nothing and are not registered."""
        held = self._state.holding_sessions()
        registered = {(name, c.record.session) for name, c in self._state.consumers.items()}
        keep = registered | held
        self._leases = {key: leases for key, leases in self._leases.items() if key in keep}
        self._missed = {key: at for key, at in self._missed.items() if key in keep}
        self._inherited &= keep
        self._seen_names &= {name for name, _ in keep}
        for key in registered & self._leases.keys():
            # The lease of its registration counts; of the others only those that may still be alive.
            self._leases[key] -= self._over
        self._over &= set().union(*self._leases.values())
        gone = [leases for key, leases in self._leases.items() if key in held and key not in registered]
        self.leases_to_check &= set().union(*gone)

    def session_state(self, name: str, session: str, now: float) -> SessionState:
        if name in self._state.unreadable_consumers:
            return SessionState.UNKNOWN
        registered = self._state.consumers.get(name)
        if registered and registered.record.session == session:
            return SessionState.ALIVE
        if self._state.options.handoff_mode is HandoffMode.EXCLUSIVE and not self._lease_is_over(name, session, now):
            return SessionState.UNKNOWN
        if registered:
            return SessionState.REPLACED
        seen_going = (name, session) in self._leases and (name, session) not in self._inherited
        if seen_going or now >= self.grace_period_ends:
            return SessionState.DEAD
        return SessionState.UNKNOWN

    def owner_state(self, held: Assignment, now: float) -> SessionState:
        """The state of the session that owns a partition."""
        return self.session_state(held.owner, held.session, now)

    def _lease_is_over(self, name: str, session: str, now: float) -> bool:
        leases = self._leases.get((name, session), set()) - {NO_LEASE}
        if not leases:
            # No lease to ask the store about: any lease it had ends within one TTL of the session being missed.
            missed = self._missed.setdefault((name, session), now)
            return now >= missed + self._ttl
        alive = leases - self._over
        self.leases_to_check |= alive
        return not alive

    def in_grace_period(self, name: str, session: str, now: float) -> bool:
        """Whether the session has been absent since before the term began, and may still rejoin."""
        known = (name, session) in self._leases and (name, session) not in self._inherited
        return bool(name) and name not in self._state.consumers and not known and now < self.grace_period_ends

    def may_return(self, name: str, now: float) -> bool:
        """Whether a consumer of that name has been absent since before the term began, and may still rejoin."""
        known = name in self._state.consumers or name in self._state.unreadable_consumers or name in self._seen_names
        return not known and now < self.grace_period_ends

    def after_an_outage(self, now: float) -> bool:
        """Whether the service seems to have been down, so that consumers may come back that no record names: for one
        TTL, if a consumer that owns or copies something, or was registered when the term began, was missing."""
        if now >= self.grace_period_ends:
            return False
        if not self._outage:
            known = {*self._state.involved(), *self._state.copies, *(name for name, _ in self._inherited)}
            self._outage = any(self.may_return(name, now) for name in known)
        return self._outage

    def unknown_until(self, name: str, session: str, now: float) -> float | None:
        """When an unknown state resolves by time alone; None: it takes an event."""
        missed = self._missed.get((name, session))
        until = self.grace_period_ends if missed is None else missed + self._ttl
        return until if now < until else None

    def eligible(self, name: str) -> Stored[Consumer] | None:
        """The consumer's registration, if partitions may be given to it."""
        registered = self._state.consumers.get(name)
        if registered and registered.record.status is Status.READY and not registered.record.evicted:
            return registered
        return None

    def has_stopped(self, name: str, session: str) -> bool:
        """Whether the session is registered and stepped out: it works on nothing, so it has released everything."""
        registered = self._state.consumers.get(name)
        return registered is not None and registered.record.session == session and registered.record.away

    def is_leaving(self, held: Assignment) -> bool:
        """Whether the owner is registered and must leave the partition: it drains, or unsubscribed from the topic."""
        owner = self._state.consumers.get(held.owner)
        if owner is None or owner.record.session != held.session or owner.record.evicted:
            return False
        return owner.record.status is Status.DRAINING or not owner.record.wants(held.topic)

    def registration_unchanged(self, name: str) -> Compare:
        """The precondition that the registration, or its absence, is what the decision was made on."""
        registered = self._state.consumers.get(name)
        key = self._state.keys.consumer(name)
        return ModRevisionIs(key, registered.mod_revision) if registered else Absent(key)


def is_same_member(before: Consumer, after: Consumer) -> bool:
    """Whether nothing changed in a registration that ownership depends on."""
    return (
        before.session == after.session
        and before.status is after.status
        and before.capacity == after.capacity
        and before.rack == after.rack
        and before.topics == after.topics
        and before.explicit_topics == after.explicit_topics
        and before.cold == after.cold
        and before.release_timeout == after.release_timeout
        and before.away == after.away
        and before.generation == after.generation
        and before.evicted == after.evicted
    )
