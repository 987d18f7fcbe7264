"""Wraps the store under test, with helpers for its tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import SkipTest

import anyio

from assigner.store import Batch, DeleteEvent, Entry, Event, Found, Progress, PutEvent, Store, WatchItem, read_all


@dataclass(frozen=True)
class Subject:
    store: Store
    another: Store
    """A second client of the same store. The test that closes a store closes this one."""
    compact: Callable[[int], Awaitable[None]]
    """Compacts the store's history up to a revision."""
    prefix: str
    """Prefix of the test's keys. Nothing else is written there."""
    ttl: float = 1.0
    """The shortest lease that the store grants as asked."""
    timeout: float = 10.0
    """Timeout of every wait in seconds, apart from the TTLs of leases."""

    reports_progress: bool = True
    """Whether a quiet watch reports progress within `timeout`. A server may be configured to do so rarely."""

    def needs_progress(self) -> None:
        if not self.reports_progress:
            raise SkipTest("this store is set to tell quiet watches of its progress only rarely")

    def key(self, name: str) -> str:
        return self.prefix + name

    async def entry(self, name: str) -> Entry:
        found = await self.store.get(self.key(name))
        assert isinstance(found, Found), f"{name} is missing"
        return found.entry

    async def exists(self, name: str) -> bool:
        return isinstance(await self.store.get(self.key(name)), Found)

    async def revision(self) -> int:
        """The store's present revision."""
        return (await self.store.get(self.prefix)).revision

    async def names(self, under: str = "") -> list[str]:
        page = await read_all(self.store, self.key(under))
        return [entry.key.removeprefix(self.prefix) for entry in page.entries]

    async def next_item(self, items: AsyncIterator[WatchItem]) -> WatchItem:
        with anyio.fail_after(self.timeout):
            return await anext(items)

    async def next_events(self, items: AsyncIterator[WatchItem], count: int, *, extra: float = 0) -> list[Event]:
        """Wait for the next `count` events, for `timeout` plus `extra` seconds."""
        batches = await self.next_batches(items, count, extra=extra)
        return [event for batch in batches for event in batch.events]

    async def next_batches(self, items: AsyncIterator[WatchItem], count: int, *, extra: float = 0) -> list[Batch]:
        """Wait for the batches with the next `count` events."""
        batches: list[Batch] = []
        missing = count
        with anyio.fail_after(self.timeout + extra):
            while missing > 0:
                item = await anext(items)
                if isinstance(item, Batch):
                    batches.append(item)
                    missing -= len(item.events)
        assert missing == 0, f"{-missing} events more than the {count} expected: {batches[-1]}"
        return batches

    async def progress(self, items: AsyncIterator[WatchItem], revision: int) -> None:
        """Wait until the watch reports progress up to a revision."""
        with anyio.fail_after(self.timeout):
            while True:
                item = await anext(items)
                if isinstance(item, Progress) and item.revision >= revision:
                    return
                assert isinstance(item, Progress), f"an event where none was expected: {item}"


def as_pair(subject: Subject, event: Event) -> tuple[str, bytes | None]:
    """An event as (name, value), None for a deletion."""
    match event:
        case PutEvent(entry=entry):
            return entry.key.removeprefix(subject.prefix), entry.value
        case DeleteEvent(key=key):
            return key.removeprefix(subject.prefix), None


def revision_of(event: Event) -> int:
    return event.entry.mod_revision if isinstance(event, PutEvent) else event.mod_revision


@contextmanager
def raising(kind: type[Exception]) -> Iterator[list[Exception]]:
    """Check that the block raises this error, and append it to the yielded list."""
    caught: list[Exception] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
