"""Derives ownership events from changes of a group's records: one for each holding that begins or ends.

A partition is held by the owner on record and, after the flip of a handoff in an overlap group, by the old owner too
until it releases. A holding is a member's session under one epoch. Changes come in the store's order; those of one
transaction are examined together, so a flip is never taken for a loss.

Not promised: the moment at which a consumer really began or stopped. The records say what was granted and acked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

import msgspec

from assigner.core.group import Change, GroupState
from assigner.core.writes import Moved
from assigner.model.keys import AssignmentKey, ConsumerKey, HandoffKey, TopicPartition
from assigner.model.records import ANY_SESSION, Assignment, Handoff, Step


class Happened(str, Enum):
    ASSIGNED = "assigned"
    RELEASED = "released"
    """Released, by its own ack."""
    LOST = "lost"
    """Ended without an ack: another session or epoch replaced it, or the assignment was removed."""
    AWAY = "away"
    """Its registration ended; the record still names it."""
    BACK = "back"
    """Its session registered again, and goes on under the same epoch."""
    HELD = "held"
    """In the baseline of a log: this is held now."""
    UNOWNED = "unowned"
    """In the baseline of a log: no registered member holds this."""


class Holding(msgspec.Struct, frozen=True, gc=False, order=True):
    epoch: int
    member: str
    session: str


class OwnershipEvent(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    event: Happened
    holding: Holding
    cause: str = ""


class _Known(msgspec.Struct):
    """A partition as it was when it was last examined."""

    assignment: Assignment | None = None
    handoff: Handoff | None = None
    granted: frozenset[Holding] = frozenset()
    """Holdings by the records."""
    held: frozenset[Holding] = frozenset()
    """Those of them whose session is registered."""


NO_HOLDING = Holding(0, "", "")


class OwnershipEvents:
    """Derives the events of one group. Call `observe` with each batch of changes after the state has applied it."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._known: dict[TopicPartition, _Known] = {}
        self._expected: dict[TopicPartition, tuple[int, str]] = {}

    def expect(self, moves: Iterable[Moved]) -> None:
        """Note the causes of moves about to be written: the records do not contain them."""
        for move in moves:
            self._expected[move.tp] = (move.epoch, move.cause.value)

    def baseline(self) -> list[OwnershipEvent]:
        """An event for each holding, and for each partition without one, to start a log with."""
        self._known = {tp: self._recorded(tp) for tp in self._partitions()}
        return [event for tp in sorted(self._known) for event in _as_it_is(tp, self._known[tp])]

    def observe(self, changes: Sequence[Change]) -> list[OwnershipEvent]:
        return list(self._observe(changes))

    def _observe(self, changes: Sequence[Change]) -> Iterator[OwnershipEvent]:
        touched: dict[TopicPartition, _Pending] = {}
        for change in changes:
            match change.key:
                case AssignmentKey(tp) | HandoffKey(tp):
                    kind = type(change.key)
                    pending = touched.setdefault(tp, _Pending(self._records(tp)))
                    if kind in pending.seen:
                        # A transaction writes a key once: what follows is a later one.
                        yield from self._settle(tp, pending)
                        pending.seen.clear()
                    pending.take(kind, change)
                case ConsumerKey(name):
                    for tp in self._state.touching(name):
                        touched.setdefault(tp, _Pending(self._records(tp)))
                case _:
                    pass
        for tp in sorted(touched):
            yield from self._settle(tp, touched[tp])

    def _records(self, tp: TopicPartition) -> tuple[Assignment | None, Handoff | None]:
        known = self._known.get(tp)
        return (known.assignment, known.handoff) if known else (None, None)

    def _settle(self, tp: TopicPartition, pending: _Pending) -> Iterator[OwnershipEvent]:
        if tp in self._state.unreadable_partitions:
            # What can't be read is left alone, and not reported as ended.
            return
        before = self._known.get(tp) or _Known()
        after = self._look(pending.assignment, pending.handoff)
        if after.assignment is None and after.handoff is None:
            self._known.pop(tp, None)
        else:
            self._known[tp] = after
        for holding in sorted(before.held - after.held):
            yield OwnershipEvent(tp, *_end(before, after, holding), self._why_ended(tp, before, after, holding))
        for holding in sorted(after.held - before.held):
            if holding in before.granted:
                yield OwnershipEvent(tp, Happened.BACK, holding)
            else:
                yield OwnershipEvent(tp, Happened.ASSIGNED, holding, self._why_granted(tp, before, after, holding))

    # --- looking -------------------------------------------------------------------------------------------------

    def _partitions(self) -> set[TopicPartition]:
        state = self._state
        configured = (
            TopicPartition(topic, number)
            for topic, stored in state.topics.items()
            for number in range(stored.record.partition_count)
        )
        return {*configured, *state.assignments, *state.handoffs}

    def _recorded(self, tp: TopicPartition) -> _Known:
        assignment, handoff = self._state.assignments.get(tp), self._state.handoffs.get(tp)
        return self._look(assignment.record if assignment else None, handoff.record if handoff else None)

    def _look(self, assignment: Assignment | None, handoff: Handoff | None) -> _Known:
        granted = frozenset(_granted(assignment, handoff))
        held = frozenset(holding for holding in granted if self._is_registered(holding))
        return _Known(assignment, handoff, granted, held)

    def _is_registered(self, holding: Holding) -> bool:
        if holding.member in self._state.unreadable_consumers:
            return True
        stored = self._state.consumers.get(holding.member)
        if stored is None:
            return False
        sessions = (stored.record.session, *(displaced.session for displaced in stored.record.displaced))
        return holding.session == ANY_SESSION or holding.session in sessions

    # --- causes --------------------------------------------------------------------------------------------------

    def _why_granted(self, tp: TopicPartition, before: _Known, after: _Known, holding: Holding) -> str:
        epoch, cause = self._expected.get(tp, (0, ""))
        if epoch == holding.epoch:
            return cause
        for handoff in (after.handoff, before.handoff):
            if handoff and handoff.new_owner == holding.member and handoff.new_session == holding.session:
                return handoff.cause.value
        if before.assignment and before.assignment.owner == holding.member:
            return _why_again(before.assignment, after.assignment, holding)
        return ""

    def _why_ended(self, tp: TopicPartition, before: _Known, after: _Known, holding: Holding) -> str:
        if holding in after.granted:
            return "left"
        if after.assignment is None:
            return "removed"
        if before.handoff and _is_old_owner(before.handoff, holding):
            return before.handoff.cause.value
        newest = max(after.granted, default=NO_HOLDING)
        return self._why_granted(tp, before, after, newest)


class _Pending:
    """A partition's records after the changes taken so far."""

    def __init__(self, records: tuple[Assignment | None, Handoff | None]) -> None:
        self.assignment, self.handoff = records
        self.seen: set[type] = set()

    def take(self, kind: type, change: Change) -> None:
        self.seen.add(kind)
        record = change.after.record if change.after else None
        if kind is AssignmentKey:
            self.assignment = record
        else:
            self.handoff = record


def _as_it_is(tp: TopicPartition, known: _Known) -> Iterator[OwnershipEvent]:
    for holding in sorted(known.held):
        yield OwnershipEvent(tp, Happened.HELD, holding)
    if not known.held:
        yield OwnershipEvent(tp, Happened.UNOWNED, NO_HOLDING)


def _granted(assignment: Assignment | None, handoff: Handoff | None) -> Iterator[Holding]:
    if assignment:
        holding = Holding(assignment.epoch, assignment.owner, assignment.session)
        if not (handoff and handoff.at is Step.RELEASED and _is_old_owner(handoff, holding)):
            yield holding
    if handoff and handoff.at is Step.COMPLETE:
        yield Holding(handoff.old_epoch, handoff.old_owner, handoff.old_session)


def _is_old_owner(handoff: Handoff, holding: Holding) -> bool:
    old = Holding(handoff.old_epoch or holding.epoch, handoff.old_owner, handoff.old_session)
    return old == holding


def _end(before: _Known, after: _Known, holding: Holding) -> tuple[Happened, Holding]:
    if holding in after.granted:
        return Happened.AWAY, holding
    handed_over = before.handoff is not None and _is_old_owner(before.handoff, holding)
    released = after.handoff is not None and after.handoff.at is Step.RELEASED and _is_old_owner(after.handoff, holding)
    again = any((new.member, new.session) == (holding.member, holding.session) for new in after.granted)
    at_the_end = handed_over and before.handoff is not None and before.handoff.at is Step.COMPLETE
    return (Happened.RELEASED if released or (at_the_end and not again) else Happened.LOST), holding


def _why_again(before: Assignment, after: Assignment | None, holding: Holding) -> str:
    if before.session != holding.session:
        return "takeover"
    if after and before.topic_id != after.topic_id:
        return "recreated"
    return "reaffirmed"
