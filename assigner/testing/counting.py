"""Provides a Store that counts its requests and operations, for tests of cost and for benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from assigner.store import (
    NO_LEASE,
    Batch,
    Compare,
    Deleted,
    GetResult,
    Granted,
    KeepAliveResult,
    Operation,
    Page,
    Put,
    RemainingResult,
    Store,
    TransactionResult,
    WatchItem,
    Written,
)


class CountingStore(Store):
    """`requests` counts calls by method; `operations` what they hold: `put`, `delete`, `compare`, `read`, `lease`.

    A transaction is one request of as many operations as it has compares, puts, deletes and keys read otherwise, even
    when it does not commit. `events` counts the events that watches delivered.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.limits = inner.limits
        self.requests: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.events = 0

    def reset(self) -> None:
        self.requests.clear()
        self.operations.clear()
        self.events = 0

    @property
    def writes(self) -> int:
        """Puts and deletes, whether alone or in a transaction."""
        return self.operations["put"] + self.operations["delete"]

    async def get(self, key: str) -> GetResult:
        self._count("get", read=1)
        return await self.inner.get(key)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000, revision: int = 0) -> Page:
        self._count("list", read=1)
        return await self.inner.list(prefix, after=after, limit=limit, revision=revision)

    async def put(self, key: str, value: bytes, *, lease: int = NO_LEASE) -> Written:
        self._count("put", put=1)
        return await self.inner.put(key, value, lease=lease)

    async def delete(self, key: str) -> Deleted:
        self._count("delete", delete=1)
        return await self.inner.delete(key)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        puts = sum(isinstance(operation, Put) for operation in operations)
        self._count(
            "transact",
            compare=len(compares),
            put=puts,
            delete=len(operations) - puts,
            read=len(otherwise),
        )
        return await self.inner.transact(compares, operations, otherwise=otherwise)

    async def grant(self, ttl: float) -> Granted:
        self._count("grant", lease=1)
        return await self.inner.grant(ttl)

    async def keep_alive(self, lease: int) -> KeepAliveResult:
        self._count("keep_alive", lease=1)
        return await self.inner.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        self._count("revoke", lease=1)
        await self.inner.revoke(lease)

    async def remaining(self, lease: int) -> RemainingResult:
        self._count("remaining", lease=1)
        return await self.inner.remaining(lease)

    def watch(self, prefix: str, *, start_revision: int) -> AbstractAsyncContextManager[AsyncIterator[WatchItem]]:
        self._count("watch")
        return self._watch(prefix, start_revision)

    @asynccontextmanager
    async def _watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchItem]]:
        async with self.inner.watch(prefix, start_revision=start_revision) as items:
            yield _Counted(items, self)

    def restarts(self) -> Mapping[str, int]:
        return self.inner.restarts()

    def problems(self) -> Sequence[str]:
        return self.inner.problems()

    async def close(self) -> None:
        await self.inner.close()

    def _count(self, request: str, **operations: int) -> None:
        self.requests[request] += 1
        for kind, number in operations.items():
            self.operations[kind] += number


class _Counted(AsyncIterator[WatchItem]):
    def __init__(self, items: AsyncIterator[WatchItem], counts: CountingStore) -> None:
        self._items = items
        self._counts = counts

    async def __anext__(self) -> WatchItem:
        item = await anext(self._items)
        if isinstance(item, Batch):
            self._counts.events += len(item.events)
        return item
