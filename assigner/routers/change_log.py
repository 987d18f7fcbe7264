"""Remembers which partitions have changed, once for all streams of a group: each stream has a place in the log.

A stream that is not read would otherwise collect a set of its own, of up to all partitions of the group; and a change
would be put into a thousand sets. A partition that changes again moves to the end of the log, so that each stream meets
it once, however far behind it is, and the log holds about as many entries as partitions have changed.

Not promised: what a partition looked like when it changed. Who takes it out looks at how it is now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from assigner.model.keys import TopicPartition

SLACK = 1_000
"""Entries that are not worth tidying up."""


class ChangeLog:
    """The log of one group. Entries are numbered from the first one there ever was."""

    def __init__(self) -> None:
        self._entries: list[TopicPartition] = []
        self._first = 0
        """The number of the first entry that is kept."""
        self._newest: dict[TopicPartition, int] = {}
        """The number of each partition's newest entry, which is the one that counts."""
        self._readers: dict[LogReader, None] = {}
        self._tidy_at = SLACK

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._entries)

    @property
    def end(self) -> int:
        """The number of the next entry."""
        return self._first + len(self._entries)

    @property
    def partitions(self) -> int:
        """How many partitions the entries are of."""
        return len(self._newest)

    def add(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._newest[tp] = self.end
            self._entries.append(tp)
        if len(self._entries) >= self._tidy_at:
            self._tidy()

    def reader(self) -> LogReader:
        """A place at the end of the log, from which on everything is kept until the reader has taken it, or is
        closed."""
        reader = LogReader(self)
        self._readers[reader] = None
        return reader

    def forget(self, reader: LogReader) -> None:
        self._readers.pop(reader, None)

    def holds(self, reader: LogReader) -> bool:
        return reader in self._readers

    def read(self, place: int, most: int) -> tuple[list[TopicPartition], int]:
        """Read the entries that count, at most so many, from this place on. Returns the next place, too."""
        found: list[TopicPartition] = []
        number = place
        for number in range(place, self.end):
            if len(found) == most:
                return found, number
            tp = self._entries[number - self._first]
            if self._newest[tp] == number:
                found.append(tp)
        return found, self.end

    def _tidy(self) -> None:
        """Drop what every reader has taken. If one of them keeps too much, drop the entries that do not count."""
        place = min((reader.place for reader in self._readers), default=self.end)
        for number in range(self._first, place):
            tp = self._entries[number - self._first]
            if self._newest[tp] == number:
                del self._newest[tp]
        del self._entries[: place - self._first]
        self._first = place
        if len(self._entries) > 2 * len(self._newest):
            self._close_ranks()
        self._tidy_at = 2 * len(self._entries) + SLACK

    def _close_ranks(self) -> None:
        """Number the entries that count anew, and move the readers with them."""
        readers = deque(sorted(self._readers, key=lambda reader: reader.place))
        kept: list[TopicPartition] = []
        for number, tp in enumerate(self._entries, self._first):
            while readers and readers[0].place <= number:
                readers.popleft().place = self._first + len(kept)
            if self._newest[tp] == number:
                kept.append(tp)
        self._entries = kept
        for reader in readers:
            reader.place = self.end
        self._newest = {tp: number for number, tp in enumerate(kept, self._first)}


class LogReader:
    """A stream's place in the log."""

    def __init__(self, log: ChangeLog) -> None:
        self.place = log.end
        """The number of the first entry that it has not taken."""
        self._log = log

    def __len__(self) -> int:
        """How many partitions it has not taken, at most; 0 for a closed one."""
        return min(self._log.end - self.place, self._log.partitions) if self._log.holds(self) else 0

    def skip(self) -> None:
        """Go to the end."""
        self.place = self._log.end

    def take(self, most: int) -> list[TopicPartition]:
        """Take partitions that have changed, in order; none for a closed reader."""
        if not self._log.holds(self):
            return []
        found, self.place = self._log.read(self.place, most)
        return sorted(found)

    def close(self) -> None:
        """Let go of what was not taken. Idempotent."""
        self._log.forget(self)
