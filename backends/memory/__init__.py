"""Implements the backend `memory`: a store within the process, and an elector on top of it.

`state` is the data, a map with revisions, which several stores may share as clients share a server. It uses `index`
(keys in order), `history` (the revisions that a watch may still begin at, bounded) and `leases` (which expire by an
injected clock, so that tests run in virtual time). `watches` delivers events, and `store` is one client's handle.

It keeps every promise of `assigner.store`. Not promised: that anything survives the process.
"""

from __future__ import annotations

from assigner.backend import Presence, StoreSettings
from assigner.backends.memory.state import Bounds, MemoryState
from assigner.backends.memory.store import MemoryStore
from assigner.clock import Clock
from assigner.election import LeaderElector
from assigner.model.keys import Keys
from assigner.store import Limits, Store

__all__ = ["Bounds", "Limits", "MemoryBackend", "MemoryState", "MemoryStore", "backend"]


class MemoryBackend:
    """Opens memory stores, each with a state of its own; a `shared` backend opens handles on one state."""

    def __init__(self, state: MemoryState | None = None) -> None:
        self._state = state

    @classmethod
    def shared(cls, state: MemoryState) -> MemoryBackend:
        """Return a backend for several instances in one process."""
        return cls(state)

    async def open(self, settings: StoreSettings, clock: Clock) -> Store:
        return MemoryStore(MemoryState(clock) if self._state is None else self._state)

    async def elector(self, store: Store, keys: Keys, presence: Presence, clock: Clock) -> LeaderElector:
        from assigner.backends.election.elector import open_elector

        return await open_elector(store, keys, presence, clock)


backend = MemoryBackend()
