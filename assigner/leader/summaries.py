"""Stores a summary of each group, written by its leader and read by calls that list groups.

To count a group's consumers and partitions one has to read the group, and its leader has read it. The leader writes the
summary when it changed, at most once per `INTERVAL`. Listing all groups then takes a few reads.

Not promised: that a summary is newer than the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import anyio.lowlevel

from assigner.api import GroupSummary
from assigner.core.group import GroupState
from assigner.election import Term
from assigner.errors import StoreError
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.records import encode
from assigner.storage.mirror import GroupMirror
from assigner.store import Committed, Compare, Exists, Put, Store

INTERVAL = 5.0
"""Seconds between two checks of all groups led here."""
_PER_TURN = 50
"""Groups checked before other tasks get a turn."""

log = get_logger("assigner.leader.summaries")


def summary(state: GroupState) -> GroupSummary:
    return GroupSummary(
        group=state.keys.group,
        leader=state.leader.record.holder if state.leader else "",
        consumers=len(state.consumers),
        topics=len(state.topics),
        partitions=state.partitions(),
        unowned=state.unowned(),
        handoffs=len(state.handoffs),
        generation=state.plan.generation,
        paused=state.options.paused,
    )


class SummaryWriter:
    def __init__(self, store: Store, keys: Keys, leading: Mapping[str, GroupMirror]) -> None:
        self._store = store
        self._keys = keys
        self._leading = leading
        self._last: dict[str, tuple[int, GroupSummary]] = {}
        """Group -> (term, summary) of the last write."""
        self.written = 0

    async def run(self, led: Callable[[], Mapping[str, Term]]) -> None:
        while True:
            await anyio.sleep(INTERVAL)
            await self._write_changed(led())

    async def _write_changed(self, led: Mapping[str, Term]) -> None:
        self._last = {group: latest for group, latest in self._last.items() if group in led}
        for number, (group, term) in enumerate(tuple(led.items())):
            if number % _PER_TURN == _PER_TURN - 1:
                await anyio.lowlevel.checkpoint()
            mirror = self._leading.get(group)
            if mirror is None or not term.held():
                continue
            latest = (term.revision, summary(mirror.state))
            if self._last.get(group) != latest:
                await self._write(group, term, latest)

    async def _write(self, group: str, term: Term, latest: tuple[int, GroupSummary]) -> None:
        compares: list[Compare] = [term.fence, Exists(self._keys.group_index(group))]
        try:
            result = await self._store.transact(compares, [Put(self._keys.summary(group), encode(latest[1]))])
        except StoreError as error:
            log.info("summary_write_failed", group=group, error=str(error))
            return
        if isinstance(result, Committed):
            self._last[group] = latest
            self.written += 1
