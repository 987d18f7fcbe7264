"""Appends ownership events, which session held which partition when, to files that a bulk job can read.

Events are JSON lines: any program reads them, and a truncated file loses its last line only. A thread of its own writes
segments of bounded size, count and age. A segment has a hidden name while it grows and is renamed when it is complete
and on disk, so readers see whole segments only. The log never blocks the leader: events that do not fit into its queue,
or that the disk refuses, are dropped and counted, and the leader then starts again with a baseline of all holdings.

Not promised: the events of the last seconds before a crash, nor that segments are kept without limit.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import BinaryIO

import msgspec

from assigner.clock import Clock, SystemClock
from assigner.logs import get_logger
from assigner.model.keys import encode_segment
from assigner.observability.metrics import Metrics

SUFFIX = ".jsonl"
_OPEN = ".open"
_POLL = 1.0
"""Seconds without new events after which the age of the open segment is checked."""
_RETRY = 5.0
"""Seconds before a write is retried after the disk refused one."""

log = get_logger("assigner.observability.event_log")


class Sync(str, Enum):
    SEGMENT = "segment"
    """A segment is on the disk before it gets its name."""
    BATCH = "batch"
    """Besides, after every batch of events."""
    NEVER = "never"
    """When the system sees fit."""


class EventSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    directory: str = ""
    """Where the segments go; empty: nothing is logged."""
    segment_bytes: int = 64 * 2**20
    segment_events: int = 1_000_000
    segment_seconds: float = 60.0
    keep_segments: int = 1_000
    """Complete segments of this instance that stay; beyond, the oldest is deleted."""
    queue: int = 100_000
    """Events that may wait for the disk."""
    sync: Sync = Sync.SEGMENT


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """A line of the log. (term, part, seq) orders a group's events; `ts_us` is wall time, for people."""

    ts_us: int
    group: str
    topic: str
    partition: int
    member: str
    session: str
    epoch: int
    event: str
    cause: str
    instance: str
    mode: str
    """The group's handoff mode: `overlap` or `exclusive`."""
    term: int
    """Of the leader that saw it."""
    part: int
    """Numbers the log's restarts within the term. Each starts with a baseline; events before it may be missing."""
    seq: int


class EventLog:
    """Takes events from the event loop and writes them on a thread. `open` it before, `close` it after use."""

    def __init__(self, settings: EventSettings, instance: str, metrics: Metrics, clock: Clock | None = None) -> None:
        """`clock`: for the age of segments; read by the log's thread."""
        self._settings = settings
        self._metrics = metrics
        self._batches: deque[Sequence[LoggedEvent]] = deque()
        self._waiting = 0
        self._ready = threading.Condition()
        self._closing = False
        self._segments = _Segments(settings, instance, metrics, clock or SystemClock())
        self._thread: threading.Thread | None = None
        self._failures = 0
        self.instance = instance

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def has_room(self) -> bool:
        """Whether the queue has room, so that building a large batch is worth its cost."""
        return self._waiting <= self._settings.queue // 2

    def open(self) -> None:
        """Open the first segment. Raises OSError if the directory can't be written."""
        self._segments.prepare()
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    @property
    def failures(self) -> int:
        """How often a write failed. Events that were queued at that time are dropped."""
        return self._failures

    def append(self, events: Sequence[LoggedEvent], failures: int) -> bool:
        """Queue all of the events or none. A batch larger than the queue is accepted if the queue is empty.

        `failures`: that property's value as the caller last read it. If it has changed, events are missing, and nothing
        is queued."""
        with self._ready:
            fits = not self._waiting or self._waiting + len(events) <= self._settings.queue
            if not fits or self._closing or failures != self._failures:
                return False
            self._batches.append(events)
            self._waiting += len(events)
            self._ready.notify()
            return True

    def dropped(self, count: int) -> None:
        """Count events that will never be written."""
        self._metrics.events_logged("dropped", count)

    def close(self, timeout: float = 10.0) -> None:
        """Write the queued events and complete the segment, within `timeout` seconds."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread:
            self._thread.join(timeout)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._segments.write(batch)
                self._segments.complete_if_due()
            except OSError as error:
                self._fail(len(batch), error)
        try:
            self._segments.complete()
        except OSError as error:
            log.error("segment_completion_failed", error=str(error))

    def _next(self) -> Sequence[LoggedEvent] | None:
        """Wait for the next batch; an empty one after a while without events; None when the log is closed and
        written."""
        with self._ready:
            if not self._batches and not self._closing:
                self._ready.wait(_POLL)
            if self._batches:
                batch = self._batches.popleft()
                self._waiting -= len(batch)
                return batch
            return None if self._closing else ()

    def _fail(self, count: int, error: OSError) -> None:
        log.error("ownership_events_write_failed", error=str(error), retry_in=_RETRY)
        self._segments.abandon()
        with self._ready:
            self._failures += 1
            count += self._waiting
            self._batches.clear()
            self._waiting = 0
            self.dropped(count)
            self._ready.wait_for(lambda: self._closing, _RETRY)


class _Segments:
    """The segment files. Only the log's thread uses them, except for `prepare`."""

    def __init__(self, settings: EventSettings, instance: str, metrics: Metrics, clock: Clock) -> None:
        self._settings = settings
        self._directory = Path(settings.directory)
        self._prefix = f"{encode_segment(instance)}-"
        self._clock = clock
        self._metrics = metrics
        self._encoder = msgspec.json.Encoder()
        self._file: BinaryIO | None = None
        self._number = 0
        self._events = self._bytes = 0
        self._since = 0.0

    def prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(f".{self._prefix}*{SUFFIX}{_OPEN}"):
            name = left.name[1 : -len(_OPEN)]
            if self._number_of(name):
                # An earlier process ended without closing the segment: it is complete but for a torn last line.
                _cut_torn_line(left)
                left.replace(self._directory / name)
        self._number = max(self._complete(), default=0)

    def write(self, events: Sequence[LoggedEvent]) -> None:
        for event in events:
            line = self._encoder.encode(event)
            if self._events >= self._settings.segment_events or self._bytes + len(line) > self._settings.segment_bytes:
                self.complete()
            file = self._file or self._begin()
            file.write(line + b"\n")
            self._events += 1
            self._bytes += len(line) + 1
        if events and self._file:
            self._file.flush()
            if self._settings.sync is Sync.BATCH:
                os.fsync(self._file.fileno())
            self._metrics.events_logged("written", len(events))

    def complete_if_due(self) -> None:
        if self._file and self._clock.now() - self._since >= self._settings.segment_seconds:
            self.complete()

    def complete(self) -> None:
        """Rename the open segment to its final name."""
        if self._file is None:
            return
        self._file.flush()
        if self._settings.sync is not Sync.NEVER:
            os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._open_path().replace(self._path())
        if self._settings.sync is not Sync.NEVER:
            _sync_directory(self._directory)
        self._metrics.event_segment("complete")
        self._delete_oldest()

    def abandon(self) -> None:
        """Leave the segment as it is after a failed write; the next events go to another one."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError:
            # Buffered events are lost; they were counted as dropped.
            log.info("segment_abandoned", segment=self._open_path().name)
        self._metrics.event_segment("failed")

    def _begin(self) -> BinaryIO:
        self._number += 1
        self._events = self._bytes = 0
        self._since = self._clock.now()
        self._file = self._open_path().open("xb")
        return self._file

    def _path(self) -> Path:
        return self._directory / f"{self._prefix}{self._number:010}{SUFFIX}"

    def _open_path(self) -> Path:
        return self._directory / f".{self._path().name}{_OPEN}"

    def _complete(self) -> dict[int, Path]:
        """List the complete segments of this instance, by number. Another instance's name may have ours as its
        prefix."""
        found = ((self._number_of(path.name), path) for path in self._directory.glob(f"{self._prefix}*{SUFFIX}"))
        return {number: path for number, path in found if number}

    def _number_of(self, name: str) -> int:
        text = name.removeprefix(self._prefix).removesuffix(SUFFIX)
        return int(text) if len(text) == 10 and text.isdecimal() else 0

    def _delete_oldest(self) -> None:
        complete = self._complete()
        for number in sorted(complete)[: -self._settings.keep_segments]:
            complete[number].unlink(missing_ok=True)
            self._metrics.event_segment("deleted")


def _cut_torn_line(path: Path) -> None:
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
