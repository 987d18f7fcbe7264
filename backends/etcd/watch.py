"""Keeps the state of one watch: its position, its buffer, and the assembly of etcd's responses to whole revisions.

etcd may cut a large response into fragments, even within a revision. The events of a revision are delivered once all of
them have arrived, so a reader never sees half a transaction, and a stream lost in between loses nothing: the watch
resumes after the last whole revision. The buffer is bounded: when it is full the watch is cancelled on the stream, and
it is resumed once its reader has caught up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from assigner.aio.wakeup import Wakeup
from assigner.backends.etcd import rpc
from assigner.backends.etcd.convert import prefix_range, to_events
from assigner.errors import StoreError
from assigner.store import Batch, Progress, WatchItem

CHUNK_EVENTS = 1000
"""Events converted at once, so that other tasks get a turn during a long catch-up."""


class Buffer(msgspec.Struct, frozen=True):
    """The limits of events and bytes that a watch may buffer."""

    events: int = 20_000
    bytes: int = 16 * 1024 * 1024


class _Run:
    """Events of whole revisions, as etcd sent them, and how many of them the reader has taken."""

    __slots__ = ("_bytes_each", "_events", "_next", "_stop")

    def __init__(self, events: Sequence[Any], stop: int, bytes_each: float) -> None:
        self._events = events
        self._next = 0
        self._stop = stop
        self._bytes_each = bytes_each

    def __len__(self) -> int:
        return self._stop - self._next

    @property
    def size(self) -> float:
        return len(self) * self._bytes_each

    def take(self) -> list[Any]:
        """Take the next events: about `CHUNK_EVENTS`, up to the end of a revision."""
        stop = min(self._next + CHUNK_EVENTS, self._stop)
        revision = self._events[stop - 1].kv.mod_revision
        while stop < self._stop and self._events[stop].kv.mod_revision == revision:
            stop += 1
        taken = list(self._events[self._next : stop])
        self._next = stop
        return taken


class EtcdWatch:
    def __init__(self, prefix: str, start_revision: int, buffer: Buffer, on_room: Callable[[EtcdWatch], None]) -> None:
        self.prefix = prefix
        self.key, self.range_end = prefix_range(prefix)
        self.next_revision = max(1, start_revision)
        self.seen = 0
        """The last revision that etcd sent, 0 before the first."""
        self.watch_id = 0
        """The id on the present stream; 0 while the watch is on none."""
        self.paused = False
        self.refusals = 0
        self._buffer = buffer
        self._on_room = on_room
        self._progress = 0
        self._unread: deque[_Run | Progress] = deque()
        self._events = 0
        self._bytes = 0.0
        self._partial: list[Any] = []
        """Events of a revision whose other events are in the next fragment."""
        self._error: StoreError | None = None
        self._arrived = Wakeup()

    # -- the stream's side -----------------------------------------------------------------------------------------

    def create_request(self, watch_id: int, *, fragment: bool) -> Any:
        """Make the request that resumes the watch under `watch_id` after the last whole revision."""
        self.watch_id = watch_id
        self._partial = []
        return rpc.WatchRequest(
            create_request=rpc.WatchCreateRequest(
                key=self.key,
                range_end=self.range_end,
                start_revision=self.next_revision,
                progress_notify=True,
                watch_id=watch_id,
                fragment=fragment,
            )
        )

    @property
    def is_full(self) -> bool:
        return self._events > self._buffer.events or self._bytes > self._buffer.bytes

    def accept(self, response: Any) -> None:
        if not response.events and not self._partial:
            self.accept_progress(response.header.revision)
            return
        events: Sequence[Any] = [*self._partial, *response.events] if self._partial else response.events
        if events[0].kv.mod_revision < self.next_revision:
            events = [event for event in events if event.kv.mod_revision >= self.next_revision]
        whole = _last_revision_starts(events) if response.fragment else len(events)
        self._partial = list(events[whole:])
        if whole:
            run = _Run(events, whole, response.ByteSize() / len(events))
            self._unread.append(run)
            self._events += len(run)
            self._bytes += run.size
            self.seen = events[whole - 1].kv.mod_revision
            self.next_revision = self.seen + 1
            self._arrived.notify()

    def accept_progress(self, revision: int) -> None:
        """Record that etcd has sent every event up to `revision`."""
        # A member that lags may send a revision that we have passed.
        if revision < self.next_revision - 1 or revision <= self._progress:
            return
        self._progress = self.seen = revision
        self.next_revision = revision + 1
        if self._unread and isinstance(self._unread[-1], Progress):
            self._unread.pop()
        self._unread.append(Progress(revision))
        self._arrived.notify()

    def end(self, error: StoreError) -> None:
        """Raise `error` to the reader once it has taken the buffered events."""
        if self._error is None:
            self._error = error
            self._arrived.notify()

    # -- the reader's side -----------------------------------------------------------------------------------------

    def __aiter__(self) -> EtcdWatch:
        return self

    async def __anext__(self) -> WatchItem:
        await anyio.lowlevel.checkpoint()
        while not self._unread:
            if self._error is not None:
                raise self._error
            await self._arrived.next()
        item = self._unread[0]
        if isinstance(item, Progress):
            self._unread.popleft()
            return item
        return self._fetch(item)

    def _fetch(self, run: _Run) -> Batch:
        size = run.size
        events = run.take()
        if not len(run):
            self._unread.popleft()
        self._events -= len(events)
        self._bytes -= size - run.size
        if self.paused and self._events <= self._buffer.events // 2 and self._bytes <= self._buffer.bytes / 2:
            self._on_room(self)
        return Batch(events[-1].kv.mod_revision, to_events(events))


def _last_revision_starts(events: Sequence[Any]) -> int:
    """Find the index of the first event of the last revision in `events`."""
    index = len(events)
    while index and events[index - 1].kv.mod_revision == events[-1].kv.mod_revision:
        index -= 1
    return index
