"""Implements the Store in memory, with the whole contract, for embedding, tests and small setups.

Nothing survives the process, and the state belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel

from assigner.backends.memory.state import MemoryState
from assigner.backends.memory.watches import MemoryWatch
from assigner.errors import InvalidInput, StoreUnavailable
from assigner.store import (
    NO_LEASE,
    Committed,
    Compare,
    Conflict,
    Delete,
    Deleted,
    GetResult,
    Granted,
    KeepAliveResult,
    LeaseGone,
    Operation,
    Page,
    Put,
    Remaining,
    RemainingResult,
    Renewed,
    Store,
    TransactionResult,
    Written,
)


class MemoryStore(Store):
    """A handle on a `MemoryState`. Several handles on one state act like several clients of one server."""

    def __init__(self, state: MemoryState | None = None) -> None:
        self.state = MemoryState() if state is None else state
        self.state.handles += 1
        self.limits = self.state.limits
        self._watches: dict[MemoryWatch, None] = {}
        self._closed = False

    async def get(self, key: str) -> GetResult:
        return (await self._enter()).read(key)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000, revision: int = 0) -> Page:
        return (await self._enter()).list(prefix, after, limit, revision)

    async def put(self, key: str, value: bytes, *, lease: int = NO_LEASE) -> Written:
        state = await self._enter()
        operations = (Put(key, value, lease),)
        state.check(operations)
        state.apply(operations)
        return Written(state.revision)

    async def delete(self, key: str) -> Deleted:
        state = await self._enter()
        operations = (Delete(key),)
        state.check(operations)
        count = state.apply(operations)
        return Deleted(state.revision, count)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        state = await self._enter()
        state.check(operations, compares, otherwise)
        if not all(map(state.holds, compares)):
            return Conflict(state.revision, tuple(map(state.read, otherwise)))
        state.apply(operations)
        return Committed(state.revision)

    async def grant(self, ttl: float) -> Granted:
        if not 0 < ttl < float("inf"):
            raise InvalidInput(f"a lease of {ttl} s; ask for a positive number of seconds")
        state = await self._enter()
        return Granted(state.revision, state.leases.grant(ttl).id, ttl)

    async def keep_alive(self, lease: int) -> KeepAliveResult:
        state = await self._enter()
        found = state.leases.get(lease)
        if found is None:
            return LeaseGone(state.revision)
        state.leases.renew(found)
        return Renewed(state.revision, found.ttl)

    async def revoke(self, lease: int) -> None:
        state = await self._enter()
        found = state.leases.get(lease)
        if found is not None:
            state.leases.revoke(found)

    async def remaining(self, lease: int) -> RemainingResult:
        state = await self._enter()
        found = state.leases.get(lease)
        if found is None:
            return LeaseGone(state.revision)
        return Remaining(state.revision, state.leases.remaining(found))

    def watch(self, prefix: str, *, start_revision: int) -> MemoryWatch:
        if start_revision < 1:
            raise InvalidInput(f"watch of {prefix!r} from revision {start_revision}; the first one is 1")
        self._check_open()
        return MemoryWatch(self.state.channels, self._watches, prefix, start_revision)

    async def compact(self, revision: int) -> None:
        """Compact the history up to a revision, as an operator of etcd would. Not part of the contract."""
        (await self._enter()).compact(revision)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for watch in tuple(self._watches):
            watch.end("the store was closed")
        self.state.handles -= 1
        if self.state.handles == 0:
            self.state.leases.stop()

    async def _enter(self) -> MemoryState:
        # Every call yields to other tasks first, as a call over a network would: a writer in a loop starves no other
        # task, and a cancelled call has no effect. After that it is not interrupted.
        await anyio.lowlevel.checkpoint()
        self._check_open()
        self.state.leases.expire()
        return self.state

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store was closed; open another one")
