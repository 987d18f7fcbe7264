"""Sends the published loads of partitions to the routers that asked for them, when they come and once per interval.

They are advice for requests without a key. A router uses them for `VALID` intervals, so that one that hears of no
others falls back to taking turns.

Not promised: that a load is still what it was, or that it is sent at all. Nothing but balance depends on it.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import msgspec
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


class _Latest(msgspec.Struct, frozen=True):
    """What was read of a group last."""

    loads: list[PublishedLoads]
    valid_until: float


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
        self._newcomers: list[RoutingStream] = []
        """Streams that have not been sent any loads yet."""
        self._latest: dict[str, _Latest] = {}

    def ask(self, stream: RoutingStream) -> None:
        """Send the loads to this stream soon, whose router has just registered."""
        self._newcomers.append(stream)
        self._asked.notify()

    async def run(self) -> None:
        while True:
            await self._send_to_all()
            with anyio.move_on_after(self._interval):
                while True:
                    mark = self._asked.mark()
                    await self._send_to_newcomers()
                    await self._asked.since(mark)

    async def _send_to_all(self) -> None:
        self._newcomers.clear()
        wanting = self._streams.wanting_loads()
        for group in self._latest.keys() - wanting.keys():
            del self._latest[group]
        for group, streams in wanting.items():
            if await self._refresh(group):
                self._send(group, streams)

    async def _send_to_newcomers(self) -> None:
        """Send what was read last: routers that come one after another must not have it read for each of them."""
        while self._newcomers:
            stream = self._newcomers.pop()
            latest = self._latest.get(stream.group)
            is_fresh = latest is not None and self._clock.now() < latest.valid_until
            if is_fresh or await self._refresh(stream.group):
                self._send(stream.group, [stream])

    def _send(self, group: str, streams: list[RoutingStream]) -> None:
        latest = self._latest[group]
        for stream in streams if latest.loads else ():
            stream.publish(latest.loads, latest.valid_until - self._clock.now())

    async def _refresh(self, group: str) -> bool:
        """Read the group's loads; returns whether that was possible."""
        state, began = self._state_of(group), self._clock.now()
        if state is None:
            return False
        try:
            recorded = await self._read(group)
        except StoreError as error:
            log.info("load_read_failed", group=group, error=str(error))
            return False
        loads = await _published(recorded, state, self._clock.wall())
        self._latest[group] = _Latest(loads, began + VALID * self._interval)
        return True

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
