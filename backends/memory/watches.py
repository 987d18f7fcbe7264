"""Delivers the events of the memory store to its watches.

All watches of one prefix read the same list of events, each from its own position, so a slow one costs no memory: when
events that it has not read are compacted, it raises `Compacted`. A burst of writes wakes the watchers of a prefix once,
and each takes all new events as one batch.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import anyio.lowlevel

from assigner.backends.memory.history import Changes, EventHistory
from assigner.errors import Compacted, WatchEnded
from assigner.store import Batch, Event, Progress, WatchItem

BATCH = 1000
"""Events after which a batch ends, with the revision it is at."""
WATCHERS_PER_TURN = 4
MAX_TURNS = 64

Waiter = asyncio.Future[None]


class Channel:
    """The events under one prefix, and the watchers that wait for more."""

    def __init__(self, prefix: str, revision: int) -> None:
        """`revision`: the present one, where the events begin; `extend_back` adds earlier ones for a watch that starts
        in the past."""
        self.prefix = prefix
        self.watchers = 0
        self.base = 0
        """Position of the first event. Dropping events from the front raises it, adding some there lowers it."""
        self.waiting: set[Waiter] = set()
        self._events: list[Event] = []
        self._revisions: list[int] = []
        self._turns = 0
        """Loop turns until the watchers are woken; 0: no wake-up is scheduled."""
        self._pending = 0
        self._shared: tuple[int, Batch] = (-1, Batch(0, ()))
        """The last batch and its position: watchers at the same position share it."""
        self._floor = revision
        """All events above this revision are in the list."""

    def extend_back(self, history: EventHistory, revision: int) -> None:
        """Add the earlier events down to after `revision`."""
        if revision >= self._floor:
            return
        found = [
            (number, change.event)
            for number, changes in history.between(revision, self._floor)
            for change in changes
            if change.key.startswith(self.prefix)
        ]
        self._revisions[:0] = [number for number, _ in found]
        self._events[:0] = [event for _, event in found]
        self.base -= len(found)
        self._floor = revision

    def append(self, revision: int, event: Event) -> None:
        self._events.append(event)
        self._revisions.append(revision)
        self._pending += 1
        if self.waiting and not self._turns:
            self._turns = min(1 + len(self.waiting) // WATCHERS_PER_TURN, MAX_TURNS)
            asyncio.get_running_loop().call_soon(self._turn)

    def drop(self, compacted: int) -> None:
        """Drop the events up to a revision."""
        gone = bisect_right(self._revisions, compacted)
        del self._events[:gone], self._revisions[:gone]
        self.base += gone
        self._floor = max(self._floor, compacted)

    def position(self, revision: int) -> int:
        """Find the position of the first event at or after the revision."""
        return self.base + bisect_left(self._revisions, revision)

    def batch(self, position: int, revision: int) -> tuple[int, Batch] | None:
        """Return the batch at a position, and the position after it. `revision`: the store's present one."""
        start, end = position - self.base, len(self._events)
        if start >= end:
            return None
        if end - start > BATCH:
            end = bisect_right(self._revisions, self._revisions[start + BATCH - 1])
        if end < len(self._events):
            revision = self._revisions[end - 1]
        known, batch = self._shared
        if known != position or batch.revision != revision:
            batch = Batch(revision, tuple(self._events[start:end]))
            self._shared = (position, batch)
        return self.base + end, batch

    def wake(self) -> None:
        self._turns = self._pending = 0
        waiting, self.waiting = self.waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _turn(self) -> None:
        # Waking many watchers costs more than a write. Waiting for a few turns of the loop, or for as many events,
        # keeps the rate of writes independent of the number of watchers; turns pass on a virtual clock too.
        if self._turns == 0:
            return
        self._turns -= 1
        if self._turns == 0 or self._pending * WATCHERS_PER_TURN >= len(self.waiting):
            self.wake()
        else:
            asyncio.get_running_loop().call_soon(self._turn)


class Channels:
    """The channels of all watched prefixes. Those of a key are found by one lookup per distinct prefix length."""

    def __init__(self, history: EventHistory, *, progress_interval: float) -> None:
        self.history = history
        self.tick = 0
        """Incremented when quiet watchers have to report progress."""
        self._interval = progress_interval
        self._by_length: dict[int, dict[str, Channel]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, revision: int, changes: Changes) -> None:
        if not self._by_length:
            return
        for change in changes:
            for length, channels in self._by_length.items():
                channel = channels.get(change.key[:length])
                if channel is not None:
                    channel.append(revision, change.event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._report_progress)

    def compact(self) -> None:
        for channel in self._all():
            channel.drop(self.history.compacted)

    def join(self, prefix: str) -> Channel:
        channels = self._by_length.setdefault(len(prefix), {})
        channel = channels.get(prefix)
        if channel is None:
            channel = channels[prefix] = Channel(prefix, self.history.revision)
        channel.watchers += 1
        return channel

    def leave(self, channel: Channel) -> None:
        channel.watchers -= 1
        if channel.watchers:
            return
        channels = self._by_length[len(channel.prefix)]
        del channels[channel.prefix]
        if not channels:
            del self._by_length[len(channel.prefix)]
        if not self._by_length and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _all(self) -> list[Channel]:
        return [channel for channels in self._by_length.values() for channel in channels.values()]

    def _report_progress(self) -> None:
        self._timer = None
        self.tick += 1
        for channel in self._all():
            channel.wake()


class MemoryWatch(AsyncIterator[WatchItem]):
    """A watch: a context manager that is its own iterator, for one reader at a time."""

    def __init__(self, channels: Channels, opened: dict[MemoryWatch, None], prefix: str, start_revision: int) -> None:
        """`opened`: the open watches of the store handle, which ends them when it is closed; in order of opening, so
        that a test with virtual time takes the same course each time."""
        self._channels = channels
        self._opened = opened
        self._prefix = prefix
        self._start = start_revision
        self._channel: Channel | None = None
        self._position = 0
        self._delivered = start_revision - 1
        """The revision up to which the reader has everything."""
        self._tick = -1
        self._too_old = False
        self._waiter: Waiter | None = None
        self._ended = ""

    async def __aenter__(self) -> Self:
        # Yields to other tasks, as a call over a network would.
        await anyio.lowlevel.checkpoint()
        self._too_old = self._start <= self._channels.history.compacted
        self._channel = self._channels.join(self._prefix)
        if not self._too_old:
            self._channel.extend_back(self._channels.history, self._start - 1)
        self._position = self._channel.position(self._start)
        self._opened[self] = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end("its context was left")
        self._opened.pop(self, None)
        if self._channel is not None:
            self._channels.leave(self._channel)
            self._channel = None

    def end(self, reason: str) -> None:
        """Raise `WatchEnded` to the reader, now or at its next read."""
        self._ended = self._ended or reason
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __anext__(self) -> WatchItem:
        while True:
            channel = self._channel
            if self._ended or channel is None:
                raise WatchEnded(f"watch of {self._prefix!r} is over: {self._ended or 'it was never entered'}")
            item = self._next(channel)
            if item is not None:
                self._delivered = item.revision
                return item
            await self._wait(channel)

    def _next(self, channel: Channel) -> WatchItem | None:
        history = self._channels.history
        if self._too_old or self._position < channel.base:
            self._too_old = True
            raise Compacted(history.compacted)
        found = channel.batch(self._position, history.revision)
        if found is not None:
            self._position, batch = found
            return batch
        # The first time this reports that the watch has caught up; later, that it is alive though quiet.
        if self._tick != self._channels.tick and history.revision >= self._delivered:
            repeated = self._tick >= 0 and history.revision == self._delivered
            self._tick = self._channels.tick
            return None if repeated else Progress(history.revision)
        return None

    async def _wait(self, channel: Channel) -> None:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        channel.waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            channel.waiting.discard(waiter)
