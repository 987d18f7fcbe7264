"""Mirrors a group's records in memory: listed once, then kept current by one watch, in the order of revisions.

The group's leader, the streams of its consumers and administrative calls read the same mirror on the same event loop:
between two awaits it does not change. A watch that can't continue costs a listing and a diff, and no change is missed.
Large batches are applied in slices that end with a revision, so that other tasks get their turn.

Not promised: that the mirror is up to date at a given moment. A caller that needs a certain write waits for its
revision.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NoReturn, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from assigner.aio.supervision import Supervisor
from assigner.aio.waiters import Waiters
from assigner.aio.wakeup import Wakeup
from assigner.core.group import Change, GroupState
from assigner.errors import LimitReached, StoreUnavailable
from assigner.model.keys import GroupKeys, Keys
from assigner.model.records import GroupOptions
from assigner.storage.watch_loop import WatchLoop
from assigner.store import Batch, DeleteEvent, Event, Page, PutEvent, Store, WatchItem

SLICE = 128
"""Events applied before other tasks get a turn."""
LINGER = 30.0
"""Seconds a mirror stays after its last user left, so that single calls do not load the group each time."""
MAX_GROUPS = 10_000
RESERVED = 2_000
"""How many of them are reserved for groups that this instance leads."""
MAX_IDLE = 500
"""Unused mirrors that are kept; beyond that the least recently used one is closed."""

Check = Callable[[str], Awaitable[None]]
"""Raises `UnknownGroup`."""


class MirrorListener(Protocol):
    def changed(self, changes: Sequence[Change]) -> None:
        """Take changes that the mirror has applied, in order; must not block."""
        ...


class GroupMirror:
    def __init__(self, store: Store, keys: GroupKeys, defaults: GroupOptions) -> None:
        self.group = keys.group
        self.state = GroupState(keys, defaults, store.limits)
        self._listeners: list[MirrorListener] = []
        self._awaited = Waiters()
        """Wakes those that wait for a revision."""
        self._loop = WatchLoop(store, keys.prefix, self._listed, self._watched)
        self.listings = 0

    def listen(self, listener: MirrorListener) -> None:
        self._listeners.append(listener)

    def unlisten(self, listener: MirrorListener) -> None:
        self._listeners.remove(listener)

    async def wait_for(self, revision: int, *, within: float = 10.0) -> None:
        """Return once everything up to `revision` is mirrored. The revision must be of a write to this group."""
        with anyio.move_on_after(within):
            if self.state.revision < revision:
                await self._awaited.wait(revision)
            return
        raise StoreUnavailable(
            f"group {self.group!r} is mirrored up to revision {self.state.revision}, not yet {revision}, "
            f"after {within:g} s; the store's watch is slow or broken"
        )

    async def resync(self) -> None:
        """List the group again, and return when the listing is applied."""
        await self._loop.relist()

    @property
    def waiting(self) -> int:
        """How many callers wait for a revision or a listing."""
        return len(self._awaited) + self._loop.waiting

    async def run(self) -> NoReturn:
        await self._loop.run()

    async def _listed(self, page: Page) -> None:
        # A listing is in the order of keys, not of revisions: the mirror's revision rises only when all of it is
        # applied.
        for part in _slices(self.state.replace(page.entries)):
            await self._take(part)
        self.state.revision = max(self.state.revision, page.revision)
        self.listings += 1
        self._notify_listeners([])

    async def _watched(self, item: WatchItem) -> None:
        if isinstance(item, Batch):
            await self._apply(item.events)
        self.state.revision = max(self.state.revision, item.revision)
        self._notify_listeners([])

    async def _apply(self, events: Sequence[Event]) -> None:
        for part in _slices(events):
            await self._take(part, _revision(part[-1]))

    async def _take(self, events: Sequence[Event], revision: int = 0) -> None:
        """Apply events and notify the listeners; `revision`: the revision that the mirror is then current at."""
        changes = [change for event in events if (change := self.state.apply(event))]
        self.state.revision = max(self.state.revision, revision)
        self._notify_listeners(changes)
        if len(events) >= SLICE:
            await anyio.lowlevel.checkpoint()

    def _notify_listeners(self, changes: Sequence[Change]) -> None:
        for listener in list(self._listeners):
            listener.changed(changes)
        self._awaited.reached(self.state.revision)


def _revision(event: Event) -> int:
    match event:
        case PutEvent(entry):
            return entry.mod_revision
        case DeleteEvent(_, revision):
            return revision


def _slices(events: Sequence[Event]) -> Iterable[Sequence[Event]]:
    """Cut events into parts of at least SLICE that do not split a revision."""
    start = 0
    while start < len(events):
        end = min(start + SLICE, len(events))
        while end < len(events) and _revision(events[end]) == _revision(events[end - 1]):
            end += 1
        yield events[start:end]
        start = end


class Mirrors:
    """The mirrors of the groups that this instance uses, each loaded once and shared."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        defaults: GroupOptions,
        *,
        check: Check | None = None,
        linger: float = LINGER,
        most: int | None = None,
        reserved: int | None = None,
        max_idle: int = MAX_IDLE,
        refused: Callable[[str], None] = lambda _: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`check` raises before a mirror of an unknown group is opened. Of the `most` mirrors, `reserved` are kept for
        groups led here. `refused` is called with the reason of each refusal."""
        self._store = store
        self._keys = keys
        self._defaults = defaults
        self._check = check
        self._linger = linger
        self._most = MAX_GROUPS if most is None else most
        self._reserved = min(RESERVED, self._most // 5) if reserved is None else reserved
        self._led = 0
        self._max_idle = max_idle
        self._refused = refused
        self._supervisor = supervisor or Supervisor()
        self._open: dict[str, _Shared] = {}
        self._idle: dict[str, _Shared] = {}
        """Unused mirrors, the least recently used first."""
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Mirrors]:
        async with anyio.create_task_group() as self._tasks:
            yield self
            self._tasks.cancel_scope.cancel()

    @property
    def open(self) -> int:
        return len(self._open)

    def groups(self) -> Iterable[GroupMirror]:
        return [shared.mirror for shared in self._open.values() if shared.mirror.listings]

    def get(self, group: str) -> GroupMirror | None:
        """The mirror, if there is one and it is loaded."""
        shared = self._open.get(group)
        return shared.mirror if shared and shared.mirror.listings else None

    def users(self, group: str) -> int:
        """How many contexts of `of` are open for the group."""
        shared = self._open.get(group)
        return shared.users if shared else 0

    @asynccontextmanager
    async def of(self, group: str, *, within: float = 10.0, leads: bool = False) -> AsyncIterator[GroupMirror]:
        """Load the group's mirror and keep it while the context is open. Raises `UnknownGroup` if there is no such
        group, unless this instance `leads` it."""
        if self._check is not None and not leads and group not in self._open:
            await self._check(group)
        shared = self._shared(group, leads=leads)
        shared.users += 1
        self._led += leads
        self._idle.pop(group, None)
        try:
            await shared.mirror.wait_for(1, within=within)
            yield shared.mirror
        finally:
            shared.users -= 1
            self._led -= leads
            if not shared.users:
                shared.released.notify()
                self._idle[group] = shared
                if len(self._idle) > self._max_idle:
                    self._close_idle()

    def _shared(self, group: str, *, leads: bool = False) -> _Shared:
        shared = self._open.get(group)
        if shared is None:
            if self._tasks is None:
                raise RuntimeError("Mirrors is used outside of `running()`")
            self._make_room(leads=leads)
            mirror = GroupMirror(self._store, self._keys.group(group), self._defaults)
            shared = self._open[group] = _Shared(mirror)
            self._tasks.start_soon(self._run, shared, name=f"life of mirror {group}")
        return shared

    def _make_room(self, *, leads: bool) -> None:
        if self._is_full(leads=leads) and self._idle:
            self._close_idle()
        if self._is_full(leads=leads):
            self._refused("groups")
            most = self._most if leads else self._most - self._reserved
            raise LimitReached(f"this instance already works on {most} groups; add instances")

    def _is_full(self, *, leads: bool) -> bool:
        others = len(self._open) - self._led
        return len(self._open) >= self._most or (not leads and others >= self._most - self._reserved)

    def _close_idle(self) -> None:
        """Close the least recently used of the unused mirrors."""
        group = next(iter(self._idle))
        del self._open[group]
        self._idle.pop(group).scope.cancel()

    async def _run(self, shared: _Shared) -> None:
        group = shared.mirror.group
        with shared.scope:
            async with anyio.create_task_group() as tasks:
                # A failure of one group must not affect the others; a new listing repairs its mirror.
                tasks.start_soon(
                    partial(self._supervisor.keep, "mirror", shared.mirror.run, group=group), name=f"mirror {group}"
                )
                while shared.users or not await self._stays_idle(shared):
                    await shared.released.until(lambda: not shared.users)
                if self._open.get(group) is shared:
                    # Otherwise it was closed to make room, and the group may have another mirror by now.
                    del self._open[group]
                    self._idle.pop(group, None)
                tasks.cancel_scope.cancel()

    async def _stays_idle(self, shared: _Shared) -> bool:
        await anyio.sleep(self._linger)
        return not shared.users


class _Shared:
    def __init__(self, mirror: GroupMirror) -> None:
        self.mirror = mirror
        self.users = 0
        self.released = Wakeup()
        """Set when the last user has left."""
        self.scope = anyio.CancelScope()
