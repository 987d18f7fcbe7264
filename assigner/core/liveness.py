"""Whether the session that holds a partition is still there: dead means gone, and doubt means wait.

A lease tells that its holder renewed it lately, never that it stopped acting. So a missing registration is taken for a
death only when the leader saw it come and go, or a whole TTL after its term began; in `exclusive` groups only when the
session's lease is over too, because until then the old owner's own clock may still admit work.
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
    """Not known to be gone: it keeps what it has and gets nothing."""
    REPLACED = "replaced"
    """Gone, and another session of the same name is registered."""
    DEAD = "dead"


class SessionLiveness:
    def __init__(self, state: GroupState, *, ttl: float, term_started: float) -> None:
        self._state = state
        self._ttl = ttl
        self._term_started = term_started
        self._leases: dict[tuple[str, str], set[int]] = {}
        """Leases of every session seen registered during this term: one that lost its registration while its lease
        lived on, and registered again, has more than one."""
        self._inherited: set[tuple[str, str]] = set()
        """Sessions found registered as the term began, of which nothing was heard since. During an outage of the
        service nobody renewed them, so that they end at once means as little as if they had ended before."""
        self._heard: set[str] = set()
        """Names of which something was heard since the term began."""
        self._missed: dict[tuple[str, str], float] = {}
        """When a session without a known lease was first found missing."""
        self._over: set[int] = set()
        self.wanted: set[int] = set()
        """Leases whose end the leader waits for."""
        self._outage = False

    @property
    def grace_period_ends(self) -> float:
        """When owners that were absent as the term began are dead."""
        return self._term_started + self._ttl

    def inherited(self, consumer: Stored[Consumer]) -> None:
        """Registered when the term began. One that was leaving is not waited for."""
        self.seen(consumer)
        if consumer.record.status is Status.READY and not consumer.record.evicted:
            self._inherited.add((consumer.record.consumer_name, consumer.record.session))
            self._heard.discard(consumer.record.consumer_name)

    def seen(self, consumer: Stored[Consumer]) -> None:
        record = consumer.record
        self._heard.add(record.consumer_name)
        self._inherited.discard((record.consumer_name, record.session))
        self._missed.pop((record.consumer_name, record.session), None)
        self._leases.setdefault((record.consumer_name, record.session), set()).add(consumer.lease)
        for displaced in record.displaced:
            # Its last one: it may have registered again in the meantime, unseen.
            self._leases.setdefault((record.consumer_name, displaced.session), set()).add(displaced.lease)

    def lease_over(self, lease: int) -> None:
        self._over.add(lease)
        self.wanted.discard(lease)

    def forget_idle_sessions(self) -> None:
        """Drop what is known of sessions that hold nothing and are not registered."""
        held = self._state.holding_sessions()
        registered = {(name, c.record.session) for name, c in self._state.consumers.items()}
        keep = registered | held
        self._leases = {key: leases for key, leases in self._leases.items() if key in keep}
        self._missed = {key: at for key, at in self._missed.items() if key in keep}
        self._inherited &= keep
        self._heard &= {name for name, _ in keep}
        for key in registered & self._leases.keys():
            # The present one counts; of the others only those that may still live.
            self._leases[key] -= self._over
        self._over &= set().union(*self._leases.values())
        gone = [leases for key, leases in self._leases.items() if key in held and key not in registered]
        self.wanted &= set().union(*gone)

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
            # Nothing to ask the store about: whatever lease it had ends within one TTL of being missed.
            missed = self._missed.setdefault((name, session), now)
            return now >= missed + self._ttl
        alive = leases - self._over
        self.wanted |= alive
        return not alive

    def in_grace_period(self, name: str, session: str, now: float) -> bool:
        """Absent since before the term began, and not for so long that it is given up."""
        known = (name, session) in self._leases and (name, session) not in self._inherited
        return bool(name) and name not in self._state.consumers and not known and now < self.grace_period_ends

    def may_return(self, name: str, now: float) -> bool:
        """Whether somebody who is not there may yet come back with all it had: nothing was heard of it since the term
        began, and that was less than a TTL ago. For what hangs on names and not on sessions."""
        known = name in self._state.consumers or name in self._state.unreadable_consumers or name in self._heard
        return not known and now < self.grace_period_ends

    def after_an_outage(self, now: float) -> bool:
        """Whether the service seems to have been away, so that more consumers may come back than are known of: for
        one TTL, if somebody who owns or copies something, or was registered when the term began, was missing."""
        if now >= self.grace_period_ends:
            return False
        if not self._outage:
            known = {*self._state.involved(), *self._state.copies, *(name for name, _ in self._inherited)}
            self._outage = any(self.may_return(name, now) for name in known)
        return self._outage

    def unknown_until(self, name: str, session: str, now: float) -> float | None:
        """When a doubt resolves by time alone; None if it takes an event."""
        missed = self._missed.get((name, session))
        until = self.grace_period_ends if missed is None else missed + self._ttl
        return until if now < until else None

    def eligible(self, name: str) -> Stored[Consumer] | None:
        """The consumer, if partitions may be given to it."""
        registered = self._state.consumers.get(name)
        if registered and registered.record.status is Status.READY and not registered.record.evicted:
            return registered
        return None

    def is_leaving(self, held: Assignment) -> bool:
        """Whether the owner is here and has to part with the partition: it drains, or does not want the topic."""
        owner = self._state.consumers.get(held.owner)
        if owner is None or owner.record.session != held.session or owner.record.evicted:
            return False
        return owner.record.status is Status.DRAINING or not owner.record.wants(held.topic)

    def registration_unchanged(self, name: str) -> Compare:
        """The compare that holds as long as the registration is what the decision was made on."""
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
        and before.generation == after.generation
        and before.evicted == after.evicted
    )
