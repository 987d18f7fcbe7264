"""Deletes committed offsets of classic groups that nobody has needed for the retention time, and groups without any.

The group's leader looks at them at an interval, a page at a time, and deletes under the fences of the group as it is: a
member that joins meanwhile keeps its offsets. The time is wall time, as it is on record: a clock that is wrong by hours
changes when an offset expires by as much.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio

from assigner.clock import Clock
from assigner.core.kafka_groups.classic.offsets import Expiry
from assigner.errors import StoreError, UnreadableRecord
from assigner.kafka_groups.commits import ClassicOffsets
from assigner.kafka_groups.coordinator import GroupCoordinator
from assigner.logs import get_logger
from assigner.model.kafka_groups import ClassicState
from assigner.model.keys import Keys
from assigner.model.records import Offset, decode
from assigner.store import Entry, Store

LONGEST = 600.0
"""Seconds between two looks; a tenth of the retention time, if that is less."""
_PAGE = 1_000

log = get_logger("assigner.kafka_groups.expiry")


class OffsetExpiry:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        offsets: ClassicOffsets,
        clock: Clock,
        retention: float,
        forget: Callable[[GroupCoordinator], Awaitable[None]],
    ) -> None:
        """`retention`: seconds. `forget` deletes a group that has neither members nor offsets."""
        self._store = store
        self._keys = keys
        self._offsets = offsets
        self._clock = clock
        self._retention = retention
        self._forget = forget

    async def run(self, group: GroupCoordinator) -> None:
        """Look after one group until cancelled."""
        while True:
            await anyio.sleep(min(LONGEST, self._retention / 10))
            if group.refusal:
                continue
            try:
                await self.look(group)
            except StoreError as error:
                log.info("classic_expiry_delayed", group=group.term.group, error=str(error))

    async def look(self, group: GroupCoordinator) -> None:
        """Delete what has expired by now."""
        wall = int(self._clock.wall() * 1000)
        retention = int(self._retention * 1000)
        expiry = Expiry(group.machine, group.records.since, retention, wall)
        if not expiry.can_tell:
            return
        left = expired = 0
        async for page in self._pages(group.term.group):
            doomed = expiry.expired((topic, partition, at) for topic, partition, at in page)
            if doomed and not await self._offsets.remove(group, doomed):
                return
            expired += len(doomed)
            left += len(page) - len(doomed)
        if expired:
            log.info("classic_offsets_expired", group=group.term.group, offsets=expired)
        if left or group.refusal or group.records.since > wall - retention:
            return
        if group.machine.state is ClassicState.EMPTY and group.machine.is_forgettable:
            await self._forget(group)

    async def _pages(self, group: str) -> AsyncIterator[list[tuple[str, int, int]]]:
        """Topic, partition and time of commit in milliseconds of the group's offsets."""
        after = ""
        while True:
            page = await self._store.list(self._keys.offsets(group), after=after, limit=_PAGE)
            yield [found for entry in page.entries if (found := self._committed(group, entry))]
            if not page.more:
                return
            after = page.entries[-1].key

    def _committed(self, group: str, entry: Entry) -> tuple[str, int, int] | None:
        tp = self._keys.parse_offset(group, entry.key)
        try:
            at = decode(Offset, entry.value)[0].committed_at
        except UnreadableRecord:
            return None
        return (tp.topic, tp.partition, at * 1000) if tp else None
