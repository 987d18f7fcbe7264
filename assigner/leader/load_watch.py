"""Follows the loads of a led group, for as long as the group's options ask for weighted plans.

Not promised: that the loads are known when the first plan is made. The leader waits for them for `FIRST_LISTING` at
most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio

from assigner.aio.supervision import unending
from assigner.aio.wakeup import Wakeup
from assigner.core.group import Change
from assigner.core.loads.weights import GroupLoads, LoadSettings
from assigner.logs import get_logger
from assigner.model.keys import OptionsKey
from assigner.model.records import Loads
from assigner.storage.mirror import GroupMirror
from assigner.storage.prefix_mirror import PrefixMirror
from assigner.store import Store

FIRST_LISTING = 5.0
"""Seconds that a new leader waits for the recorded loads, because an unweighted plan could move many partitions."""
SETTLE = 1.0
"""Seconds in which changes are coalesced: the records of many topics are written one after the other."""
MAX_RECORDS = 100_000

log = get_logger("assigner.leader.load_watch")


class LoadWatch:
    def __init__(
        self,
        store: Store,
        prefix: str,
        mirror: GroupMirror,
        settings: LoadSettings,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when `loads` was replaced or updated."""
        self._store = store
        self._prefix = prefix
        self._mirror = mirror
        self._settings = settings
        self._changed = changed
        self._options_changed = Wakeup()
        self._records_changed = Wakeup()
        self._listed = anyio.Event()
        self._unreadable: set[str] = set()
        self.loads: GroupLoads | None = None
        """None: the group's plans are unweighted."""

    async def run(self) -> None:
        self._mirror.listen(self)
        try:
            while True:
                await self._options_changed.until(lambda: self._mirror.state.options.use_loads)
                await self._watch_records()
        finally:
            self._mirror.unlisten(self)

    async def wait_listed(self) -> None:
        """Wait until the recorded loads are listed, if the group uses loads; for `FIRST_LISTING` at most."""
        if self._mirror.state.options.use_loads:
            with anyio.move_on_after(FIRST_LISTING):
                await self._listed.wait()

    def changed(self, changes: Sequence[Change]) -> None:
        """Apply a change of the group's options, as a listener of the mirror."""
        if any(isinstance(change.key, OptionsKey) for change in changes):
            self._options_changed.notify()

    async def _watch_records(self) -> None:
        records = PrefixMirror(self._store, self._prefix, Loads, self._records_changed.notify, limit=MAX_RECORDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(unending, "watch of load records", records.run, name=f"loads under {self._prefix}")
            tasks.start_soon(self._update_loads, records, name=f"loads updated from {self._prefix}")
            await self._options_changed.until(lambda: not self._mirror.state.options.use_loads)
            tasks.cancel_scope.cancel()
        self.loads = None
        self._changed()

    async def _update_loads(self, records: PrefixMirror[Loads]) -> None:
        loads = GroupLoads(self._settings)
        await records.listed.wait()
        while True:
            mark = self._records_changed.mark()
            self._report(loads.update(records.records))
            self.loads = loads
            self._listed.set()
            self._changed()
            await self._records_changed.since(mark)
            await anyio.sleep(SETTLE)

    def _report(self, unreadable: Mapping[str, str]) -> None:
        for name in unreadable.keys() - self._unreadable:
            log.error("record_unreadable", key=self._prefix + name, error=unreadable[name])
        self._unreadable = set(unreadable)
