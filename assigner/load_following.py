"""Keeps a leader informed of its group's loads, for as long as the group's options ask for plans by load.

Not promised: that the loads are there when the first plan is made. The leader waits a little for them, not for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from assigner.core.group import Change
from assigner.core.loads import GroupLoads, LoadSettings, RecordedLoads
from assigner.following import Following
from assigner.keys import OptionsKey
from assigner.logs import get_logger
from assigner.mirror import GroupMirror
from assigner.records import Loads
from assigner.store import Store

FIRST_LISTING = 5.0
"""Seconds a new leader waits for what is known of loads, because planning without it could move a lot."""
MAX_RECORDS = 100_000

log = get_logger("assigner.load_following")


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
        self._switched = anyio.Event()
        self._listed = anyio.Event()
        self._unreadable: set[str] = set()
        self.loads: GroupLoads | None = None
        """None: the group does not ask for plans by load."""

    async def run(self) -> None:
        self._mirror.listen(self)
        try:
            while True:
                self._switched = anyio.Event()
                if self._mirror.state.options.use_loads:
                    await self._follow()
                else:
                    await self._switched.wait()
        finally:
            self._mirror.unlisten(self)

    async def wait_listed(self) -> None:
        """Return once what is recorded is known, if it is wanted; at the latest after a while."""
        if self._mirror.state.options.use_loads:
            with anyio.move_on_after(FIRST_LISTING):
                await self._listed.wait()

    def changed(self, changes: Sequence[Change]) -> None:
        """The mirror's word."""
        if any(isinstance(change.key, OptionsKey) for change in changes):
            self._switched.set()

    async def _follow(self) -> None:
        loads = GroupLoads(self._settings)

        def take_in() -> None:
            recorded = RecordedLoads(following.records)
            self._report(recorded)
            loads.update(recorded)
            self.loads = loads
            self._listed.set()
            self._changed()

        following = Following(self._store, self._prefix, Loads, take_in, limit=MAX_RECORDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(following.run)
            while self._mirror.state.options.use_loads:
                await self._switched.wait()
                self._switched = anyio.Event()
            tasks.cancel_scope.cancel()
        self.loads = None
        self._changed()

    def _report(self, recorded: RecordedLoads) -> None:
        for name in recorded.unreadable.keys() - self._unreadable:
            log.error("unreadable loads left out", key=self._prefix + name, reason=recorded.unreadable[name])
        self._unreadable = set(recorded.unreadable)
