"""Sends the published loads of partitions to the routers that asked for them, once per interval.

They are advice for requests without a key. A router uses them for `VALID` intervals, so that one that hears of no
others falls back to taking turns.

Not promised: that a load is still what it was, or that it is sent at all. Nothing but balance depends on it.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import numpy as np

from assigner.aio.wakeup import Wakeup
from assigner.clock import Clock
from assigner.core.group import GroupState
from assigner.core.loads.weights import RecordedLoads
from assigner.errors import StoreError, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.records import Loads, decode
from assigner.model.routes import PublishedLoads
from assigner.routers.streams import RouterStreams, RoutingStream
from assigner.store import Store, read_all

VALID = 2
"""Intervals for which loads count that were sent once."""
_PAGE = 4
"""Records of loads per page: each may have some hundred kilobytes."""

StateOf = Callable[[str], GroupState | None]
"""Returns the mirrored records of a group."""

log = get_logger("assigner.routers.loads")


class RouterLoads:
    def __init__(
        self, store: Store, keys: Keys, clock: Clock, streams: RouterStreams, state_of: StateOf, *, interval: float
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._streams = streams
        self._state_of = state_of
        self._interval = interval
        self._asked = Wakeup()

    def ask(self) -> None:
        """Send the loads soon, because a router has registered that wants them."""
        self._asked.notify()

    async def run(self) -> None:
        while True:
            mark = self._asked.mark()
            for group, streams in self._streams.wanting_loads().items():
                await self._send(group, streams)
            with anyio.move_on_after(self._interval):
                await self._asked.since(mark)

    async def _send(self, group: str, streams: list[RoutingStream]) -> None:
        state = self._state_of(group)
        if state is None:
            return
        try:
            recorded = await self._read(group)
        except StoreError as error:
            log.info("load_read_failed", group=group, error=str(error))
            return
        loads = await _published(recorded, state, self._clock.wall())
        for stream in streams if loads else ():
            stream.publish(loads, VALID * self._interval)

    async def _read(self, group: str) -> RecordedLoads:
        prefix = self._keys.loads(group)
        records: dict[str, Loads] = {}
        for entry in (await read_all(self._store, prefix, page_size=_PAGE)).entries:
            try:
                records[entry.key[len(prefix) :]] = decode(Loads, entry.value)[0]
            except UnreadableRecord as error:
                log.error("record_unreadable", key=entry.key, error=str(error))
        return RecordedLoads(records)


async def _published(recorded: RecordedLoads, state: GroupState, wall: float) -> list[PublishedLoads]:
    published: list[PublishedLoads] = []
    for topic, config in list(state.topics.items()):
        loads = recorded.loads([(topic, config.record.partition_count)], wall)
        known = np.flatnonzero(~np.isnan(loads))
        if len(known):
            published.append(PublishedLoads(topic, tuple(known.tolist()), tuple(loads[known].tolist())))
        await anyio.lowlevel.checkpoint()
    return published
