"""Defines the `Store` interface: the guarantees that the service needs of a coordination store, each with its reason.

A store is an ordered map of keys to values in which every write has a revision. The service runs on any
implementation that keeps these guarantees; the tests in `assigner.testing` check them.

- **Linearizable.** Every read without a revision sees every write that was acknowledged before it began. A consumer's
  first snapshot must not show an ownership that was already taken away.
- **One revision per write.** Each write, a whole transaction included, gets the next revision; each response carries
  the store's revision. A watch starts from it, so that no event is missed between a snapshot and its watch.
- **Compare and swap.** A transaction applies all its operations if all its compares hold, else none. A lease shows
  who is alive; only compares keep two writers from overwriting each other.
- **Leases end.** A key put with a lease disappears, as a delete at a revision, when the lease does: at the earliest
  one TTL after its last confirmed keep-alive. So a dead consumer is noticed without a process that checks for it.
- **Watches are ordered, unique, atomic and resumable.** Events come in revision order, each once, all of one
  revision in one batch; after a lost connection the watch resumes without a gap. A watch that can't continue raises
  `Compacted` or `WatchEnded` and never goes silent, because a missed event means a partition that nobody consumes.
- **Every call ends.** Each has a deadline and raises `StoreUnavailable` (no effect) or `OutcomeUnknown` (a write that
  may have happened). A hung store must not hang the service.

Not promised: that a read at an old revision works for ever (history is compacted), or that a lease keeps its holder
from acting late (it may be frozen): epochs guard against that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

NO_LEASE = 0


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key with its value at some revision."""

    key: str
    value: bytes
    create_revision: int
    """Revision of the write that made the key appear. Changes only when it is deleted and made again."""
    mod_revision: int
    version: int
    """Writes since the key appeared, from 1. It starts over when the key is recreated, so compare `mod_revision`
    instead."""
    lease: int = NO_LEASE


# --- results -----------------------------------------------------------------------------------------------------


class Found(msgspec.Struct, frozen=True):
    revision: int
    entry: Entry


class Missing(msgspec.Struct, frozen=True):
    revision: int


GetResult = Found | Missing


class Page(msgspec.Struct, frozen=True):
    """Part of a prefix, in key order. `more`: another page follows after `entries[-1].key`."""

    revision: int
    """The revision the page shows. Ask for the next page at this one to get a consistent whole."""
    entries: tuple[Entry, ...]
    more: bool


class Written(msgspec.Struct, frozen=True):
    revision: int


class Deleted(msgspec.Struct, frozen=True):
    revision: int
    count: int


class Committed(msgspec.Struct, frozen=True):
    """The compares held and every operation was applied, all at `revision`."""

    revision: int
    reads: tuple[GetResult, ...] = ()


class Conflict(msgspec.Struct, frozen=True):
    """A compare failed and nothing was written. `reads`: the results for the `otherwise` keys."""

    revision: int
    reads: tuple[GetResult, ...] = ()


TransactionResult = Committed | Conflict


class Granted(msgspec.Struct, frozen=True):
    revision: int
    lease: int
    ttl: float


class Renewed(msgspec.Struct, frozen=True):
    revision: int
    ttl: float


class Remaining(msgspec.Struct, frozen=True):
    revision: int
    ttl: float


class LeaseGone(msgspec.Struct, frozen=True):
    """The lease has ended or never existed. A result and not an error, because callers ask in order to find out."""

    revision: int


KeepAliveResult = Renewed | LeaseGone
RemainingResult = Remaining | LeaseGone

# --- what a transaction compares and does ------------------------------------------------------------------------


class Exists(msgspec.Struct, frozen=True, gc=False):
    key: str


class Absent(msgspec.Struct, frozen=True, gc=False):
    key: str


class VersionIs(msgspec.Struct, frozen=True, gc=False):
    key: str
    version: int


class ModRevisionIs(msgspec.Struct, frozen=True, gc=False):
    key: str
    revision: int


class CreateRevisionIs(msgspec.Struct, frozen=True, gc=False):
    key: str
    revision: int


class ValueIs(msgspec.Struct, frozen=True, gc=False):
    key: str
    value: bytes


Compare = Exists | Absent | VersionIs | ModRevisionIs | CreateRevisionIs | ValueIs


class Put(msgspec.Struct, frozen=True, gc=False):
    key: str
    value: bytes
    lease: int = NO_LEASE


class Delete(msgspec.Struct, frozen=True, gc=False):
    key: str


Operation = Put | Delete

# --- watching ----------------------------------------------------------------------------------------------------


class PutEvent(msgspec.Struct, frozen=True, gc=False):
    entry: Entry


class DeleteEvent(msgspec.Struct, frozen=True, gc=False):
    key: str
    mod_revision: int


Event = PutEvent | DeleteEvent


class Batch(msgspec.Struct, frozen=True):
    """Every event under the prefix with a revision after the last batch's and up to `revision`."""

    revision: int
    events: tuple[Event, ...]


class Progress(msgspec.Struct, frozen=True):
    """There are no further events under the prefix up to `revision`: a watcher may resume after it."""

    revision: int


WatchItem = Batch | Progress


class Limits(msgspec.Struct, frozen=True):
    """The limits of one transaction. `operations` bounds the compares and the operations separately."""

    operations: int = 128
    value_bytes: int = 1_000_000


class Store(ABC):
    """The interface of a store. The module's docstring lists its guarantees."""

    limits: Limits = Limits()

    # Reads. ------------------------------------------------------------------------------------------------------
    @abstractmethod
    async def get(self, key: str) -> GetResult: ...

    @abstractmethod
    async def list(self, prefix: str, *, after: str = "", limit: int = 1000, revision: int = 0) -> Page:
        """Return up to `limit` entries under `prefix` in key order, those after the key `after`, as of `revision`
        (0: now). Raises `Compacted` for a revision whose history is gone."""

    # Writes. -----------------------------------------------------------------------------------------------------
    @abstractmethod
    async def put(self, key: str, value: bytes, *, lease: int = NO_LEASE) -> Written:
        """Write a value. Raises `LeaseNotFound` if the lease has ended."""

    @abstractmethod
    async def delete(self, key: str) -> Deleted: ...

    @abstractmethod
    async def transact(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        otherwise: Sequence[str] = (),
    ) -> TransactionResult:
        """Apply all `operations` if all `compares` hold; else read the keys `otherwise` in the same transaction, so
        that the caller learns what it lost to. A key may be written once per transaction (`InvalidInput` otherwise).
        Raises `TransactionTooLarge` past `limits`, `LeaseNotFound` for a put on an ended lease."""

    # Liveness. ---------------------------------------------------------------------------------------------------
    @abstractmethod
    async def grant(self, ttl: float) -> Granted:
        """Grant a lease of at least `ttl` seconds; the result has its actual TTL."""

    @abstractmethod
    async def keep_alive(self, lease: int) -> KeepAliveResult:
        """Renew the lease once. Returns only after the renewal took effect."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys now. Idempotent: it may have ended already."""

    @abstractmethod
    async def remaining(self, lease: int) -> RemainingResult: ...

    # Watches. ----------------------------------------------------------------------------------------------------
    @abstractmethod
    def watch(self, prefix: str, *, start_revision: int) -> AbstractAsyncContextManager[AsyncIterator[WatchItem]]:
        """Watch everything under `prefix` from `start_revision` on. Leaving the context ends the watch on the server
        too. Iterating raises `Compacted` or `WatchEnded`; it never ends by itself."""

    def restarts(self) -> Mapping[str, int]:
        """How often each loop of the store has failed and was restarted, by its name; for metrics."""
        return {}

    def problems(self) -> Sequence[str]:
        """The reasons why this store can never work again in this process, for `/livez`. A server that can't be reached
        is none."""
        return ()

    @abstractmethod
    async def close(self) -> None:
        """End all watches and connections. Leases are left to their TTL."""


def unchanged(key: str, revision: int) -> Compare:
    """The precondition that the key is still at this mod revision; 0: that it is absent."""
    return ModRevisionIs(key, revision) if revision else Absent(key)


def revision_of(found: GetResult) -> int:
    """The mod revision that a read found; 0 for an absent key."""
    return found.entry.mod_revision if isinstance(found, Found) else 0


async def read_all(store: Store, prefix: str, *, page_size: int = 1000) -> Page:
    """Read a whole prefix at one revision, page by page, so that no response exceeds the limit of a message."""
    page = await store.list(prefix, limit=page_size)
    entries = list(page.entries)
    while page.more:
        page = await store.list(prefix, after=entries[-1].key, limit=page_size, revision=page.revision)
        entries.extend(page.entries)
    return Page(page.revision, tuple(entries), False)
