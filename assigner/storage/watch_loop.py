"""Lists a prefix, watches it from that revision on, and lists it again when the watch can't continue.

Every mirror runs this loop: a watch that ends (compaction, an unreachable store) costs a listing, and no change is
missed, because the next watch begins at the revision after that listing.

The elector does not use it: it waits for one leader key to change and then reads that key, so it has no listing to
compare. Backends may not import this package either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import anyio

from assigner.aio.backoff import Backoff
from assigner.aio.waiters import Waiters
from assigner.aio.wakeup import Wakeup
from assigner.errors import StoreError, WatchEnded
from assigner.logs import get_logger
from assigner.store import Page, Store, WatchItem, read_all

log = get_logger("assigner.storage.watch_loop")


class WatchLoop:
    def __init__(
        self,
        store: Store,
        prefix: str,
        listed: Callable[[Page], Awaitable[None]],
        watched: Callable[[WatchItem], Awaitable[None]],
    ) -> None:
        """`listed` is called with the whole prefix, in the order of keys; `watched` with later events, in the order of
        revisions. One call ends before the next begins."""
        self._store = store
        self._prefix = prefix
        self._listed = listed
        self._watched = watched
        self._stale = Wakeup()
        self._begun = 0
        """Listings begun, whether or not they succeeded."""
        self._awaited = Waiters()
        """Wakes those that wait for a listing."""

    @property
    def waiting(self) -> int:
        """How many callers wait for a listing."""
        return len(self._awaited)

    async def relist(self) -> None:
        """List the prefix again, and return when the listing is applied.

        A listing in progress may have been read before this call, so the next one counts.
        """
        wanted = self._begun + 1
        self._stale.notify()
        await self._awaited.wait(wanted)

    async def run(self) -> NoReturn:
        backoff = Backoff(self._prefix)
        while True:
            try:
                before_listing = self._stale.mark()
                revision = await self._list()
                backoff.reset()
                await self._watch_until_stale(revision + 1, before_listing)
            except StoreError as error:
                log.info("mirror_restarted", prefix=self._prefix, error=str(error), tries=backoff.tries + 1)
                await backoff.pause()

    async def _list(self) -> int:
        self._begun += 1
        number = self._begun
        page = await read_all(self._store, self._prefix)
        await self._listed(page)
        self._awaited.reached(number)
        return page.revision

    async def _watch_until_stale(self, start_revision: int, before_listing: int) -> None:
        ended: StoreError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_stale, before_listing, tasks.cancel_scope)
            try:
                await self._watch(start_revision)
            except StoreError as error:
                # Raised inside the task group, it would come out wrapped in an exception group.
                ended = error
                tasks.cancel_scope.cancel()
        if ended:
            raise ended

    async def _cancel_when_stale(self, before_listing: int, scope: anyio.CancelScope) -> None:
        await self._stale.since(before_listing)
        scope.cancel()

    async def _watch(self, start_revision: int) -> NoReturn:
        async with self._store.watch(self._prefix, start_revision=start_revision) as items:
            async for item in items:
                await self._watched(item)
        raise WatchEnded(f"the watch on {self._prefix!r} ended by itself; listing again")
