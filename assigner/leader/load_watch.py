"""Keeps a leader informed of its group's loads, for as long as the group's options ask for plans by load.

Not promised: that the loads are there when the first plan is made. The leader waits a little for them, not for ever.
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
"""Seconds a new leader waits for what is known of loads, because planning without it could move a lot."""
SETTLE = 1.0
"""Seconds in which changes are gathered: the records of many topics are written one after the other."""
MAX_RECORDS = 100_000

log = get_logger("assigner.leader.load_watch")


class LoadFollowing:
    def __init__(
        self,
        store: Store,
        prefix: str,
        mirror: GroupMirror,
        settings: LoadSettings,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when `loads` is another or says something else."""
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
        """None: the group does not ask for plans by load."""

    async def run(self) -> None:
        self._mirror.listen(self)
        try:
            while True:
                await self._options_changed.until(lambda: self._mirror.state.options.use_loads)
                await self._follow()
        finally:
            self._mirror.unlisten(self)

    async def wait_listed(self) -> None:
        """Return once what is recorded is known, if it is wanted; at the latest after a while."""
        if self._mirror.state.options.use_loads:
            with anyio.move_on_after(FIRST_LISTING):
                await self._listed.wait()

    def changed(self, changes: Sequence[Change]) -> None:
        """Called by the mirror."""
        if any(isinstance(change.key, OptionsKey) for change in changes):
            self._options_changed.notify()

    async def _follow(self) -> None:
        following = PrefixMirror(self._store, self._prefix, Loads, self._records_changed.notify, limit=MAX_RECORDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(unending, "following of loads", following.run, name=f"loads under {self._prefix}")
            tasks.start_soon(self._take_in, following, name=f"loads taken in from {self._prefix}")
            await self._options_changed.until(lambda: not self._mirror.state.options.use_loads)
            tasks.cancel_scope.cancel()
        self.loads = None
        self._changed()

    async def _take_in(self, following: PrefixMirror[Loads]) -> None:
        loads = GroupLoads(self._settings)
        await following.listed.wait()
        while True:
            mark = self._records_changed.mark()
            self._report(loads.update(following.records))
            self.loads = loads
            self._listed.set()
            self._changed()
            await self._records_changed.since(mark)
            await anyio.sleep(SETTLE)

    def _report(self, unreadable: Mapping[str, str]) -> None:
        for name in unreadable.keys() - self._unreadable:
            log.error("record_unreadable", key=self._prefix + name, error=unreadable[name])
        self._unreadable = set(unreadable)
