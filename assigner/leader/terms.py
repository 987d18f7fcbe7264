"""Runs the coordinator of each group that this instance leads, and none for groups that are idle."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from assigner.clock import Clock
from assigner.core.group import Change
from assigner.election import Term
from assigner.leader.coordinator import Coordinator, CoordinatorSettings
from assigner.model.keys import Keys
from assigner.observability.event_log import EventLog
from assigner.observability.metrics import Metrics
from assigner.storage.mirror import GroupMirror, Mirrors
from assigner.store import Store


class Coordinators:
    """Runs a coordinator for each term that this instance wins, and lists the active ones."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        mirrors: Mirrors,
        clock: Clock,
        metrics: Metrics,
        settings: CoordinatorSettings,
        events: EventLog | None = None,
    ) -> None:
        """`events`: the log of ownership changes; None: they are not logged."""
        self._store = store
        self._keys = keys
        self._mirrors = mirrors
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._events = events
        self.active: dict[str, Coordinator] = {}
        self.leading: dict[str, GroupMirror] = {}
        """Group -> mirror, for every term held here, including idle groups that have no coordinator."""

    async def run_term(self, term: Term) -> None:
        """Coordinate the group whenever it is not idle, until cancelled or until the term ends."""
        async with self._mirrors.of(term.group, leads=True) as mirror:
            # The leader key lies in the group's own prefix: once it is mirrored, so is everything before the term.
            await mirror.wait_for(term.revision)
            self.leading[term.group] = mirror
            try:
                while True:
                    woken = await _until_needed(mirror)
                    await self._coordinate(term, mirror, newcomers=woken)
                    if not term.held():
                        return
            finally:
                if self.leading.get(term.group) is mirror:
                    del self.leading[term.group]

    async def _coordinate(self, term: Term, mirror: GroupMirror, *, newcomers: bool) -> None:
        coordinator = Coordinator(
            self._store, self._keys, mirror, term, self._clock, self._metrics, self._settings, self._events
        )
        if newcomers:
            coordinator.observe_registered()
        self.active[term.group] = coordinator
        try:
            await coordinator.run()
        finally:
            if self.active.get(term.group) is coordinator:
                del self.active[term.group]


async def _until_needed(mirror: GroupMirror) -> bool:
    """Wait until the group is not idle, and return whether it was idle. An idle group costs its leader no more than
    this: there may be thousands."""
    if not mirror.state.is_idle:
        return False
    waker = _Waker(mirror)
    mirror.listen(waker)
    try:
        await waker.needed.wait()
    finally:
        mirror.unlisten(waker)
    return True


class _Waker:
    def __init__(self, mirror: GroupMirror) -> None:
        self._mirror = mirror
        self.needed = anyio.Event()

    def changed(self, _: Sequence[Change]) -> None:
        if not self._mirror.state.is_idle:
            self.needed.set()
