"""Watches over the memory store.

All watches of one prefix read the same list of events, each from a position of its own, so a slow one costs no memory:
when events it has not read yet are compacted, it is told so. A burst of writes wakes a prefix's watchers once, and each
takes all there is as one batch.
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
"""Events after which a batch ends, at the next revision's border."""
WATCHERS_PER_TURN = 4
MAX_TURNS = 64

Waiter = asyncio.Future[None]


class Channel:
    """The events under one prefix and those who wait for more."""

    def __init__(self, prefix: str, revision: int) -> None:
        """It begins at the present `revision`, and reaches back when a watch starts in the past."""
        self.prefix = prefix
        self.watchers = 0
        self.base = 0
        """Position of the first event. Events dropped from the front raise it, those added there lower it."""
        self.waiting: set[Waiter] = set()
        self._events: list[Event] = []
        self._revisions: list[int] = []
        self._turns = 0
        """Loop turns left until the waiting are woken; 0 when no waking is under way."""
        self._pending = 0
        self._shared: tuple[int, Batch] = (-1, Batch(0, ()))
        """The last batch and its position: watchers that keep pace with one another share it."""
        self._floor = revision
        """All events after this revision are here."""

    def reach_back(self, history: EventHistory, revision: int) -> None:
        """Have all events after the revision, too."""
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
        """Forget the events up to a revision."""
        gone = bisect_right(self._revisions, compacted)
        del self._events[:gone], self._revisions[:gone]
        self.base += gone
        self._floor = max(self._floor, compacted)

    def position(self, revision: int) -> int:
        """Of the first event at or after the revision."""
        return self.base + bisect_left(self._revisions, revision)

    def batch(self, position: int, revision: int) -> tuple[int, Batch] | None:
        """What follows a position, and the position after it. The store stands at `revision`."""
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
        # Waking many watchers costs more than a write does. Letting a few turns of the loop pass, or as many events
        # gather, keeps a writer's pace independent of how many watch; turns pass on a virtual clock too.
        if self._turns == 0:
            return
        self._turns -= 1
        if self._turns == 0 or self._pending * WATCHERS_PER_TURN >= len(self.waiting):
            self.wake()
        else:
            asyncio.get_running_loop().call_soon(self._turn)


class Channels:
    """All watched prefixes. Finds those a key belongs to by one lookup per distinct prefix length."""

    def __init__(self, history: EventHistory, *, progress_interval: float) -> None:
        self.history = history
        self.tick = 0
        """Raised when it is time to tell quiet watchers how far the store has come."""
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
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tell_progress)

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

    def _tell_progress(self) -> None:
        self._timer = None
        self.tick += 1
        for channel in self._all():
            channel.wake()


class MemoryWatch(AsyncIterator[WatchItem]):
    """One watch: a context manager that is its own iterator, for one reader at a time."""

    def __init__(self, channels: Channels, opened: set[MemoryWatch], prefix: str, start_revision: int) -> None:
        """`opened`: the open watches of the store handle, which ends them when it is closed."""
        self._channels = channels
        self._opened = opened
        self._prefix = prefix
        self._start = start_revision
        self._channel: Channel | None = None
        self._position = 0
        self._told = start_revision - 1
        """The revision up to which the reader knows everything."""
        self._tick = -1
        self._too_old = False
        self._waiter: Waiter | None = None
        self._ended = ""

    async def __aenter__(self) -> Self:
        # Others run first, as they would if this went over a wire.
        await anyio.lowlevel.checkpoint()
        self._too_old = self._start <= self._channels.history.compacted
        self._channel = self._channels.join(self._prefix)
        if not self._too_old:
            self._channel.reach_back(self._channels.history, self._start - 1)
        self._position = self._channel.position(self._start)
        self._opened.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end("its context was left")
        self._opened.discard(self)
        if self._channel is not None:
            self._channels.leave(self._channel)
            self._channel = None

    def end(self, reason: str) -> None:
        """Make the reader, now or next time, raise `WatchEnded`."""
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
                self._told = item.revision
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
        # The first time round this says that the watch has caught up; later, that it is alive though quiet.
        if self._tick != self._channels.tick and history.revision >= self._told:
            repeated = self._tick >= 0 and history.revision == self._told
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
