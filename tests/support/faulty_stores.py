"""Stores that keep their contract in a peculiar way, or break it in one, to show what a rule is good for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from assigner.errors import TransactionTooLarge
from assigner.store import (
    Batch,
    Compare,
    DeleteEvent,
    Event,
    Operation,
    PutEvent,
    Store,
    TransactionResult,
    WatchItem,
)
from assigner.testing.counting import CountingStore


def key_of(event: Event) -> str:
    match event:
        case PutEvent(entry):
            return entry.key
        case DeleteEvent(key):
            return key


class LaggingStore(CountingStore):
    """While `lag()` is on, watches of `prefix` (all, if there is none) deliver nothing; everything else is as quick
    as ever."""

    def __init__(self, inner: Store, prefix: str = "") -> None:
        super().__init__(inner)
        self._prefix = prefix
        self._current = anyio.Event()
        self._current.set()

    def lag(self) -> None:
        self._current = anyio.Event()

    def catch_up(self) -> None:
        self._current.set()

    @asynccontextmanager
    async def _watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchItem]]:
        async with self.inner.watch(prefix, start_revision=start_revision) as items:
            yield self._late(items) if self._prefix in ("", prefix) else items

    async def _late(self, items: AsyncIterator[WatchItem]) -> AsyncIterator[WatchItem]:
        async for item in items:
            await self._current.wait()
            yield item


class ForgetfulStore(CountingStore):
    """Watches of `prefix` leave out events of keys for which `forget` says so: a store that breaks its promise."""

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix
        self.forget: Callable[[str], bool] = lambda _: False
        self.forgotten = 0

    @asynccontextmanager
    async def _watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchItem]]:
        async with self.inner.watch(prefix, start_revision=start_revision) as items:
            yield self._some(items) if prefix == self._prefix else items

    async def _some(self, items: AsyncIterator[WatchItem]) -> AsyncIterator[WatchItem]:
        async for item in items:
            if isinstance(item, Batch):
                kept = tuple(event for event in item.events if not self.forget(key_of(event)))
                self.forgotten += len(item.events) - len(kept)
                item = Batch(item.revision, kept)
            yield item


class BusyStore(CountingStore):
    """Right before each watch of `prefix` begins, `meanwhile` is awaited: others are at work between a listing and
    the watch that follows it."""

    def __init__(self, inner: Store, prefix: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._prefix = prefix
        self._meanwhile = meanwhile

    def watch(self, prefix: str, *, start_revision: int) -> AbstractAsyncContextManager[AsyncIterator[WatchItem]]:
        return self._late_watch(prefix, start_revision)

    @asynccontextmanager
    async def _late_watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchItem]]:
        if prefix == self._prefix:
            await self._meanwhile()
        async with super().watch(prefix, start_revision=start_revision) as items:
            yield items


class NotingStore(CountingStore):
    """Notes every transaction that is asked of it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.transactions: list[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = []

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        self.transactions.append((tuple(compares), tuple(operations)))
        return await super().transact(compares, operations, otherwise=otherwise)


class LateStore(CountingStore):
    """Transactions that write one of `late_keys` reach the store only after `delay`, and they do so whatever has
    become of who sent them: a request that is on the wire can't be called back."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.late_keys: frozenset[str] = frozenset()
        self.delay = 0.0
        self.sent = 0
        self.outcomes: list[TransactionResult] = []
        self._in_flight: set[asyncio.Task[TransactionResult]] = set()

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        if not any(operation.key in self.late_keys for operation in operations):
            return await super().transact(compares, operations, otherwise=otherwise)
        self.sent += 1
        task = asyncio.create_task(self._arrive_late(compares, operations, otherwise))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return await asyncio.shield(task)

    async def _arrive_late(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[str]
    ) -> TransactionResult:
        await anyio.sleep(self.delay)
        outcome = await super().transact(compares, operations, otherwise=otherwise)
        self.outcomes.append(outcome)
        return outcome


class HoldingStore(CountingStore):
    """Holds the first transaction with an operation that `holds` selects back until `let_go()`."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.holds: Callable[[Operation], bool] = lambda _: False
        self.held: tuple[Operation, ...] = ()
        self.outcome: TransactionResult | None = None
        self._may_go = anyio.Event()

    def let_go(self) -> None:
        self._may_go.set()

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        if self.held or not any(self.holds(operation) for operation in operations):
            return await super().transact(compares, operations, otherwise=otherwise)
        self.held = tuple(operations)
        await self._may_go.wait()
        self.outcome = await super().transact(compares, operations, otherwise=otherwise)
        return self.outcome


class TakesLess(CountingStore):
    """A store whose server is set to smaller transactions than it says: no more than 20 compares or operations."""

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        if max(len(compares), len(operations), len(otherwise)) > 20:
            raise TransactionTooLarge("too many operations")
        return await super().transact(compares, operations, otherwise=otherwise)
