"""Mirrors a prefix of records of one kind in memory: listed once, then kept current by one watch.

Unreadable records are logged and left out. A watch that can't continue (compaction, an unreachable store) costs another
listing, and no change is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NoReturn

import anyio

from assigner.errors import LimitReached, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.records import R, decode
from assigner.storage.watch_loop import WatchLoop
from assigner.store import Batch, DeleteEvent, Entry, Page, PutEvent, Store, WatchItem

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
        self._loop = WatchLoop(store, prefix, self._listed, self._watched)
        self._prefix = prefix
        self._kind = kind
        self._changed = changed
        self._limit = limit
        self._records: dict[str, R] = {}
        self._revisions: dict[str, int] = {}
        self.listed = anyio.Event()
        """Set once the first listing is applied."""

    @property
    def records(self) -> Mapping[str, R]:
        """The records by their keys without the prefix."""
        return self._records

    @property
    def revisions(self) -> Mapping[str, int]:
        """The mod revisions of these records, by the same keys."""
        return self._revisions

    async def run(self) -> NoReturn:
        await self._loop.run()

    async def _listed(self, page: Page) -> None:
        before, self._records, self._revisions = self._records, {}, {}
        for entry in page.entries:
            self._put(entry)
        if before != self._records or not self.listed.is_set():
            self._changed()
        self.listed.set()

    async def _watched(self, item: WatchItem) -> None:
        if isinstance(item, Batch):
            self._apply(item)

    def _apply(self, batch: Batch) -> None:
        for event in batch.events:
            match event:
                case PutEvent(entry=entry):
                    self._put(entry)
                case DeleteEvent(key=key):
                    self._forget(key[len(self._prefix) :])
        self._changed()

    def _put(self, entry: Entry) -> None:
        name = entry.key[len(self._prefix) :]
        try:
            if name not in self._records and len(self._records) >= self._limit:
                raise LimitReached(f"more than {self._limit} records under {self._prefix!r}; the rest is ignored")
            self._records[name], _ = decode(self._kind, entry.value)
            self._revisions[name] = entry.mod_revision
        except (UnreadableRecord, LimitReached) as error:
            self._forget(name)
            log.error("record_unreadable", key=entry.key, error=str(error))

    def _forget(self, name: str) -> None:
        self._records.pop(name, None)
        self._revisions.pop(name, None)
