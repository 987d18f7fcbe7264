"""A prefix of records of one kind, kept up to date in memory: listed once, then followed by one watch.

What can't be read is reported and left out. A watch that can't go on (compaction, a store that was away) costs
another listing, never a missed change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NoReturn

import anyio

from assigner.aio.backoff import Backoff
from assigner.errors import LimitReached, StoreError, UnreadableRecord, WatchEnded
from assigner.logs import get_logger
from assigner.model.records import R, decode
from assigner.store import Batch, DeleteEvent, Entry, PutEvent, Store, read_all

MAX_RECORDS = 100_000

log = get_logger("assigner.storage.prefix_mirror")


class PrefixMirror(Generic[R]):
    def __init__(
        self,
        store: Store,
        prefix: str,
        kind: type[R],
        changed: Callable[[], None],
        *,
        limit: int = MAX_RECORDS,
    ) -> None:
        """`changed` is called after each change, a whole batch at a time."""
        self._store = store
        self._prefix = prefix
        self._kind = kind
        self._changed = changed
        self._limit = limit
        self._records: dict[str, R] = {}
        self.listed = anyio.Event()
        """Set once the prefix was read for the first time."""
        self.listings = 0

    @property
    def records(self) -> Mapping[str, R]:
        """By the rest of the key after the prefix."""
        return self._records

    async def run(self) -> NoReturn:
        backoff = Backoff(self._prefix)
        while True:
            try:
                revision = await self._list()
                backoff.reset()
                await self._watch(revision + 1)
            except StoreError as error:
                log.info("prefix_mirror_restarted", prefix=self._prefix, error=str(error), tries=backoff.tries + 1)
                await backoff.pause()

    async def _list(self) -> int:
        page = await read_all(self._store, self._prefix)
        before, self._records = self._records, {}
        for entry in page.entries:
            self._put(entry)
        self.listings += 1
        if before != self._records or not self.listed.is_set():
            self._changed()
        self.listed.set()
        return page.revision

    async def _watch(self, start_revision: int) -> NoReturn:
        async with self._store.watch(self._prefix, start_revision=start_revision) as items:
            async for item in items:
                if isinstance(item, Batch):
                    self._apply(item)
        raise WatchEnded(f"the watch on {self._prefix!r} ended by itself; listing again")

    def _apply(self, batch: Batch) -> None:
        for event in batch.events:
            match event:
                case PutEvent(entry=entry):
                    self._put(entry)
                case DeleteEvent(key=key):
                    self._records.pop(key[len(self._prefix) :], None)
        self._changed()

    def _put(self, entry: Entry) -> None:
        name = entry.key[len(self._prefix) :]
        try:
            if name not in self._records and len(self._records) >= self._limit:
                raise LimitReached(f"more than {self._limit} records under {self._prefix!r}; the rest is ignored")
            self._records[name], _ = decode(self._kind, entry.value)
        except (UnreadableRecord, LimitReached) as error:
            self._records.pop(name, None)
            log.error("record_unreadable", key=entry.key, error=str(error))
