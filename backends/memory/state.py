"""Holds the memory store's state: entries, history, leases and watches.

Everything here is synchronous, so an operation can't be interrupted between its compares and its writes. Several
`MemoryStore` handles may share one state, on one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import assert_never

import msgspec

from assigner.backends.memory.history import EventHistory, StoredChange
from assigner.backends.memory.index import KeyIndex
from assigner.backends.memory.leases import Leases, StoredLease
from assigner.backends.memory.watches import Channels
from assigner.clock import Clock, LoopClock
from assigner.errors import InvalidInput, LeaseNotFound, TransactionTooLarge
from assigner.store import (
    NO_LEASE,
    Absent,
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    Entry,
    Exists,
    Found,
    GetResult,
    Limits,
    Missing,
    ModRevisionIs,
    Operation,
    Page,
    Put,
    PutEvent,
    ValueIs,
    VersionIs,
)


class Bounds(msgspec.Struct, frozen=True):
    """The limits of the history."""

    history_revisions: int = 10_000
    history_bytes: int = 64 * 1024 * 1024
    progress_interval: float = 5.0
    """Seconds after a write until watches of other prefixes report progress to its revision."""


class MemoryState:
    def __init__(
        self, clock: Clock | None = None, *, limits: Limits | None = None, bounds: Bounds | None = None
    ) -> None:
        bounds = bounds or Bounds()
        self.limits = limits or Limits()
        self.history = EventHistory(revisions=bounds.history_revisions, size=bounds.history_bytes)
        self.channels = Channels(self.history, progress_interval=bounds.progress_interval)
        self.leases = Leases(clock or LoopClock(), self._end_lease)
        self.handles = 0
        self._entries: dict[str, Entry] = {}
        self._index = KeyIndex()

    @property
    def revision(self) -> int:
        return self.history.revision

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, key: str) -> GetResult:
        entry = self._entries.get(key)
        return Missing(self.revision) if entry is None else Found(self.revision, entry)

    def list(self, prefix: str, after: str, limit: int, revision: int) -> Page:
        if limit < 1:
            raise InvalidInput(f"list of {prefix!r} with limit {limit}; ask for at least 1 entry")
        if revision > self.revision:
            raise InvalidInput(f"list of {prefix!r} at revision {revision}; the store is at {self.revision}")
        shown = revision or self.revision
        entries = self._current(prefix, after) if shown == self.revision else self._past(prefix, after, shown)
        found = tuple(islice(entries, limit + 1))
        return Page(shown, found[:limit], len(found) > limit)

    def _current(self, prefix: str, after: str) -> Iterator[Entry]:
        return map(self._entries.__getitem__, self._index.under(prefix, after))

    def _past(self, prefix: str, after: str, revision: int) -> Iterator[Entry]:
        was = self.history.before(revision, prefix)
        gone = sorted(key for key in was if key not in self._entries and key > after)
        for key in merge(self._index.under(prefix, after), gone):
            entry = was[key] if key in was else self._entries[key]
            if entry is not None:
                yield entry

    # --- writing ---------------------------------------------------------------------------------------------------

    def check(self, operations: Sequence[Operation], *others: Sequence[object]) -> None:
        """Raise for operations that no state of the store would allow."""
        for asked in (operations, *others):
            if len(asked) > self.limits.operations:
                raise TransactionTooLarge(
                    f"a transaction of {len(asked)} operations or compares; the store takes {self.limits.operations}"
                )
        keys: set[str] = set()
        size = 0
        for operation in operations:
            if not operation.key:
                raise InvalidInput("a write without a key; name one")
            if operation.key in keys:
                raise InvalidInput(f"{operation.key!r} is written twice in one transaction; once is allowed")
            keys.add(operation.key)
            if isinstance(operation, Put):
                size += len(operation.value)
        if size > self.limits.value_bytes:
            raise TransactionTooLarge(f"{size} bytes of values; the store takes {self.limits.value_bytes} at once")

    def holds(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        match compare:
            case Exists():
                return entry is not None
            case Absent():
                return entry is None
            case VersionIs(version=version):
                return version == (entry.version if entry else 0)
            case ModRevisionIs(revision=revision):
                return revision == (entry.mod_revision if entry else 0)
            case CreateRevisionIs(revision=revision):
                return revision == (entry.create_revision if entry else 0)
            case ValueIs(value=value):
                return entry is not None and entry.value == value
            case _:
                assert_never(compare)

    def apply(self, operations: Sequence[Operation]) -> int:
        """Apply all operations at one new revision, or raise and apply none. Returns the number of changed keys."""
        for operation in operations:
            if isinstance(operation, Put) and not self._lease_lives(operation.lease):
                raise LeaseNotFound(f"lease {operation.lease:x} has ended; grant a new one")
        revision = self.revision + 1
        changes = []
        for operation in operations:
            if isinstance(operation, Put):
                changes.append(self._put(operation, revision))
            elif operation.key in self._entries:
                changes.append(self._delete(operation.key, revision))
        if changes:
            self.history.append(tuple(changes))
            self.channels.publish(revision, tuple(changes))
            if self.history.wants_trim:
                self.history.trim()
                self.channels.compact()
        return len(changes)

    def compact(self, revision: int) -> None:
        """Compact the history up to a revision. Present entries stay."""
        self.history.compact(revision)
        self.channels.compact()

    def _put(self, put: Put, revision: int) -> StoredChange:
        before = self._entries.get(put.key)
        if before is None:
            self._index.add(put.key)
            after = Entry(put.key, put.value, revision, revision, 1, put.lease)
        else:
            after = Entry(put.key, put.value, before.create_revision, revision, before.version + 1, put.lease)
        self._entries[put.key] = after
        self._attach(put.key, before.lease if before else NO_LEASE, put.lease)
        return StoredChange(put.key, PutEvent(after), before, after)

    def _delete(self, key: str, revision: int) -> StoredChange:
        before = self._entries.pop(key)
        self._index.remove(key)
        self._attach(key, before.lease, NO_LEASE)
        return StoredChange(key, DeleteEvent(key, revision), before, None)

    def _lease_lives(self, lease: int) -> bool:
        return lease == NO_LEASE or self.leases.get(lease) is not None

    def _attach(self, key: str, old: int, new: int) -> None:
        if old == new:
            return
        if (lease := self.leases.get(old)) is not None:
            lease.keys.discard(key)
        if (lease := self.leases.get(new)) is not None:
            lease.keys.add(key)

    def _end_lease(self, lease: StoredLease) -> None:
        self.apply(_deletes(sorted(lease.keys)))


def _deletes(keys: Iterable[str]) -> list[Operation]:
    return [Delete(key) for key in keys]
