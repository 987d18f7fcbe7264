"""Writes one group's changes of ownership during one term to the event log, as the mirror shows them.

Each term begins with a snapshot of all owners, so a log may begin anywhere, and after lost lines another snapshot
follows. A leader that no longer holds its term records nothing, so the lines of two terms never mix.

Not promised: that every change is recorded. The leader never waits for the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from assigner.clock import Clock
from assigner.core.group import Change
from assigner.core.ownership_events import OwnershipEvent, OwnershipEvents
from assigner.core.writes import Moved
from assigner.election import Term
from assigner.logs import get_logger
from assigner.model.names import session_digest
from assigner.observability.event_log import EventLog, LoggedEvent
from assigner.storage.mirror import GroupMirror

log = get_logger("assigner.leader.ownership_log")


class Recording(Protocol):
    def begin(self) -> None: ...

    def expect(self, moves: Iterable[Moved]) -> None:
        """Remember the causes of moves that are about to be written; only the writer knows them."""
        ...

    def end(self) -> None: ...


class NoRecording:
    """Records nothing, for an instance without an event log."""

    def begin(self) -> None:
        pass

    def expect(self, moves: Iterable[Moved]) -> None:
        pass

    def end(self) -> None:
        pass


class EventRecording:
    def __init__(self, events: EventLog, mirror: GroupMirror, term: Term, clock: Clock) -> None:
        self._log = events
        self._mirror = mirror
        self._term = term
        self._clock = clock
        self._ownership = OwnershipEvents(mirror.state)
        self._part = -1
        self._seq = 0
        self._failures = 0
        self._broken = True
        """A line was dropped: a new snapshot is needed before further lines."""

    def begin(self) -> None:
        self._mirror.listen(self)
        self._write_snapshot()

    def end(self) -> None:
        self._mirror.unlisten(self)

    def expect(self, moves: Iterable[Moved]) -> None:
        self._ownership.expect(moves)

    def changed(self, changes: Sequence[Change]) -> None:
        """Record changes of ownership, as a listener of the mirror."""
        if not self._term.held():
            return
        events = self._ownership.observe(changes)
        if not self._broken and (not events or self._append(events)):
            return
        if not self._broken:
            log.warning("ownership_events_dropped", group=self._mirror.group)
            self._broken = True
        self._log.dropped(len(events))
        self._write_snapshot()

    def _write_snapshot(self) -> None:
        # A snapshot takes a while to make, so it is made only when the log has room for it.
        if not self._log.has_room:
            return
        self._part += 1
        self._failures = self._log.failures
        self._broken = not self._append(self._ownership.baseline())

    def _append(self, events: Sequence[OwnershipEvent]) -> bool:
        now = int(self._clock.wall() * 1_000_000)
        return self._log.append([self._line(event, now) for event in events], self._failures)

    def _line(self, event: OwnershipEvent, now: int) -> LoggedEvent:
        self._seq += 1
        return LoggedEvent(
            ts_us=now,
            group=self._mirror.group,
            topic=event.tp.topic,
            partition=event.tp.partition,
            member=event.holding.member,
            session=session_digest(event.holding.session),
            epoch=event.holding.epoch,
            event=event.event.value,
            cause=event.cause,
            instance=self._log.instance,
            mode=self._mirror.state.options.handoff_mode.value,
            term=self._term.revision,
            part=self._part,
            seq=self._seq,
        )
