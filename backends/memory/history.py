"""Keeps the bounded history of writes, revision by revision.

Watches are replayed from it, and reads at an old revision undo it. It is bounded in revisions and in bytes; older
revisions are compacted, and a read or watch of them raises `Compacted`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from assigner.errors import Compacted
from assigner.store import Entry, Event

EVENT_OVERHEAD = 400
"""Approximate bytes that a change occupies besides its keys and values."""


class StoredChange(msgspec.Struct, frozen=True, gc=False):
    key: str
    event: Event
    before: Entry | None
    after: Entry | None

    @property
    def size(self) -> int:
        size = EVENT_OVERHEAD + len(self.key)
        if self.before is not None:
            size += len(self.before.value)
        if self.after is not None:
            size += len(self.after.value)
        return size


Changes = tuple[StoredChange, ...]


class EventHistory:
    def __init__(self, *, revisions: int, size: int) -> None:
        self.max_revisions = revisions
        self.max_size = size
        self.compacted = 0
        """The highest compacted revision."""
        self.revision = 1
        """The revision of an empty store is 1, so that 0 can mean 'no revision'."""
        self._log: list[Changes] = [()]
        """The changes of consecutive revisions; the first `_dropped` of them are compacted and await removal."""
        self._dropped = 0
        self._size = 0

    def append(self, changes: Changes) -> None:
        self._log.append(changes)
        self.revision += 1
        for change in changes:
            self._size += change.size
        if self.revision - self.compacted > self.max_revisions or self._size > self.max_size:
            self._drop()

    def compact(self, revision: int) -> None:
        while self.compacted < min(revision, self.revision):
            self._drop()
        self.trim()

    @property
    def wants_trim(self) -> bool:
        """Whether enough was compacted to remove it from the list, which takes time in proportion to its length."""
        return self._dropped > max(64, len(self._log) // 2)

    def trim(self) -> None:
        del self._log[: self._dropped]
        self._dropped = 0

    def between(self, after: int, until: int) -> Iterator[tuple[int, Changes]]:
        """Yield (revision, changes) for every revision above `after` and up to `until`."""
        if after < self.compacted:
            raise Compacted(self.compacted)
        first = self.compacted + 1 - self._dropped
        for revision in range(after + 1, until + 1):
            yield revision, self._log[revision - first]

    def before(self, revision: int, prefix: str) -> dict[str, Entry | None]:
        """Map each key under the prefix that changed later to its entry at `revision`."""
        was: dict[str, Entry | None] = {}
        for _, changes in self.between(revision, self.revision):
            for change in changes:
                if change.key.startswith(prefix) and change.key not in was:
                    was[change.key] = change.before
        return was

    def _drop(self) -> None:
        """Compact the oldest revision, and more while the rest is too large, even the newest one."""
        while True:
            for change in self._log[self._dropped]:
                self._size -= change.size
            self._log[self._dropped] = ()
            self._dropped += 1
            self.compacted += 1
            if self._size <= self.max_size:
                return
