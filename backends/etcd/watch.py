"""One watch: where it stands, what it holds for its reader, and how etcd's responses become whole revisions.

etcd cuts large responses into fragments, even within a revision. Here the events of a revision wait until all of
them are there, so a reader never sees half a transaction, and a stream lost in between costs nothing: the watch goes
on after the last whole revision. What is read but not fetched is bounded; past the bound the watch is taken off the
stream and put back where it stood once its reader has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from assigner.errors import StoreError
from assigner.store import Batch, Progress, WatchItem
from backends.etcd import rpc
from backends.etcd.convert import prefix_range, to_events

CHUNK_EVENTS = 1000
"""Events turned into our own in one go, so that a long catch-up leaves the loop to others now and then."""


class Buffer(msgspec.Struct, frozen=True):
    """How much of a watch may lie unread."""

    events: int = 20_000
    bytes: int = 16 * 1024 * 1024


class _Chunk(msgspec.Struct, frozen=True):
    """Whole revisions, still in etcd's words."""

    revision: int
    events: list[Any]
    size: int


class Watch:
    def __init__(self, prefix: str, start_revision: int, buffer: Buffer, on_room: Callable[[Watch], None]) -> None:
        self.prefix = prefix
        self.key, self.range_end = prefix_range(prefix)
        self.next_revision = max(1, start_revision)
        self.seen = 0
        """The last revision that etcd told us of, 0 before the first."""
        self.watch_id = 0
        """On the present stream; 0 while it is on none."""
        self.paused = False
        self.refusals = 0
        self._buffer = buffer
        self._on_room = on_room
        self._chunks: deque[_Chunk | Progress] = deque()
        self._events = 0
        self._bytes = 0
        self._partial: list[Any] = []
        """Events of a revision whose other events are in the next fragment."""
        self._error: StoreError | None = None
        self._arrived = anyio.Event()

    # -- the stream's side -----------------------------------------------------------------------------------------

    def create_request(self, watch_id: int) -> Any:
        """The request to go on under `watch_id` after the last whole revision."""
        self.watch_id = watch_id
        self._partial = []
        return rpc.WatchRequest(
            create_request=rpc.WatchCreateRequest(
                key=self.key,
                range_end=self.range_end,
                start_revision=self.next_revision,
                progress_notify=True,
                watch_id=watch_id,
                fragment=True,
            )
        )

    @property
    def is_full(self) -> bool:
        return self._events > self._buffer.events or self._bytes > self._buffer.bytes

    def accept(self, response: Any) -> None:
        if not response.events and not response.fragment and not self._partial:
            self._accept_progress(response.header.revision)
            return
        events = [*self._partial, *response.events]
        if events and events[0].kv.mod_revision < self.next_revision:
            events = [event for event in events if event.kv.mod_revision >= self.next_revision]
        whole = _last_revision_starts(events) if response.fragment else len(events)
        self._partial = events[whole:]
        if whole:
            self._take(events, whole, response.ByteSize() / max(1, len(events)))
            self._arrived.set()

    def _accept_progress(self, revision: int) -> None:
        # A member that lags behind may speak of revisions that we are past.
        if revision < self.next_revision:
            return
        self.next_revision = revision + 1
        self.seen = revision
        if self._chunks and isinstance(self._chunks[-1], Progress):
            self._chunks.pop()
        self._chunks.append(Progress(revision))
        self._arrived.set()

    def _take(self, events: list[Any], count: int, bytes_each: float) -> None:
        start = 0
        revision = events[0].kv.mod_revision
        for index in range(1, count + 1):
            upcoming = events[index].kv.mod_revision if index < count else 0
            if upcoming == revision:
                continue
            if index - start >= CHUNK_EVENTS or index == count:
                chunk = _Chunk(revision, events[start:index], round((index - start) * bytes_each))
                self._chunks.append(chunk)
                self._bytes += chunk.size
                start = index
            self.seen, self.next_revision = revision, revision + 1
            revision = upcoming
        self._events += count

    def end(self, error: StoreError) -> None:
        """Let the reader have what is there, then raise `error`."""
        if self._error is None:
            self._error = error
            self._arrived.set()

    # -- the reader's side -----------------------------------------------------------------------------------------

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchItem:
        await anyio.lowlevel.checkpoint()
        while not self._chunks:
            if self._error is not None:
                raise self._error
            self._arrived = anyio.Event()
            await self._arrived.wait()
        item = self._chunks.popleft()
        if isinstance(item, Progress):
            return item
        self._events -= len(item.events)
        self._bytes -= item.size
        if self.paused and self._events <= self._buffer.events // 2 and self._bytes <= self._buffer.bytes // 2:
            self._on_room(self)
        return Batch(item.revision, to_events(item.events))


def _last_revision_starts(events: list[Any]) -> int:
    """Index of the first event of the last revision in `events`."""
    index = len(events)
    while index and events[index - 1].kv.mod_revision == events[-1].kv.mod_revision:
        index -= 1
    return index
