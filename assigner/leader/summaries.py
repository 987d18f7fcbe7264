"""A line on each group, written by its leader for whoever lists the groups.

To tell how many consumers and partitions a group has, somebody must have read it. Its leader has; so it writes the line
that a list of groups shows, when it has changed and not more often than every few seconds. Listing them all is then a
few reads, however many there are.

Not promised: that the line of a group led elsewhere is newer than the interval.
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
"""Seconds between two looks at everything that is led here."""
_TOGETHER = 50
"""Groups looked at before others get their turn."""

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
        """By group: under which term what was written."""
        self.written = 0

    async def run(self, led: Callable[[], Mapping[str, Term]]) -> None:
        while True:
            await anyio.sleep(INTERVAL)
            await self._write_changed(led())

    async def _write_changed(self, led: Mapping[str, Term]) -> None:
        self._last = {group: told for group, told in self._last.items() if group in led}
        for number, (group, term) in enumerate(tuple(led.items())):
            if number % _TOGETHER == _TOGETHER - 1:
                await anyio.lowlevel.checkpoint()
            mirror = self._leading.get(group)
            if mirror is None or not term.held():
                continue
            told = (term.revision, summary(mirror.state))
            if self._last.get(group) != told:
                await self._write(group, term, told)

    async def _write(self, group: str, term: Term, told: tuple[int, GroupSummary]) -> None:
        compares: list[Compare] = [term.fence, Exists(self._keys.group_index(group))]
        try:
            result = await self._store.transact(compares, [Put(self._keys.summary(group), encode(told[1]))])
        except StoreError as error:
            log.info("summary_write_failed", group=group, error=str(error))
            return
        if isinstance(result, Committed):
            self._last[group] = told
            self.written += 1
