"""Deletes committed offsets of classic groups that nobody has needed for the retention time, and groups without any.

The group's leader looks at them at an interval, a page at a time, and deletes under the fences of the group as it is: a
member that joins meanwhile keeps its offsets. The time is wall time, as it is on record: a clock that is wrong by hours
changes when an offset expires by as much.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import msgspec

from assigner.clock import Clock
from assigner.core.kafka_groups.classic.offsets import Expiry
from assigner.errors import StoreError, UnreadableRecord
from assigner.kafka_groups.commits import ClassicOffsets
from assigner.kafka_groups.coordinator import GroupCoordinator
from assigner.logs import get_logger
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Offset, decode
from assigner.store import Entry, Store

LONGEST = 600.0
"""Seconds between two looks; a tenth of the retention time, if that is less."""
_PAGE = 1_000

log = get_logger("assigner.kafka_groups.expiry")


class _Committed(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    revision: int
    at: int | None
    """Wall time in milliseconds; None: it can't be read, and so is never deleted."""


class OffsetExpiry:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        offsets: ClassicOffsets,
        clock: Clock,
        retention: float,
        forget: Callable[[GroupCoordinator, int], Awaitable[None]],
    ) -> None:
        """`retention`: seconds. `forget` deletes a group that has neither members nor offsets, unless somebody has
        committed since there were so many commits."""
        self._store = store
        self._keys = keys
        self._offsets = offsets
        self._clock = clock
        self._retention = retention
        self._interval = min(LONGEST, retention / 10)
        self._forget = forget

    async def run(self, group: GroupCoordinator) -> None:
        """Look after one group until cancelled."""
        while True:
            await anyio.sleep(self._interval)
            if group.refusal:
                continue
            try:
                await self.look(group)
            except StoreError as error:
                log.info("classic_expiry_delayed", group=group.term.group, error=str(error))

    async def look(self, group: GroupCoordinator) -> None:
        """Delete what has expired by now, and the group if nothing is left of it."""
        commits, wall = group.commits, int(self._clock.wall() * 1000)
        expiry = Expiry(group.machine, group.records.since, int(self._retention * 1000), wall)
        left = 0
        async for page in self._pages(group.term.group):
            if not expiry.can_tell:
                # It is only asked whether there are any.
                left = len(page)
                break
            doomed = [one for one in page if one.at is not None and expiry.has_expired(one.tp.topic, one.at)]
            if doomed and not await self._offsets.expire(group, [(one.tp, one.revision) for one in doomed]):
                # One was committed, or somebody joined, a moment ago.
                return
            if doomed:
                log.info("classic_offsets_expired", group=group.term.group, offsets=len(doomed))
            left += len(page) - len(doomed)
        if not left and not group.refusal and group.records.since <= wall - self._interval * 1000:
            await self._forget(group, commits)

    async def _pages(self, group: str) -> AsyncIterator[list[_Committed]]:
        after = ""
        while True:
            page = await self._store.list(self._keys.offsets(group), after=after, limit=_PAGE)
            yield [found for entry in page.entries if (found := self._committed(group, entry))]
            if not page.more:
                return
            after = page.entries[-1].key

    def _committed(self, group: str, entry: Entry) -> _Committed | None:
        tp = self._keys.parse_offset(group, entry.key)
        try:
            at = decode(Offset, entry.value)[0].committed_at * 1000
        except UnreadableRecord:
            at = None
        return _Committed(tp, entry.mod_revision, at) if tp else None
