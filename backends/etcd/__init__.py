"""etcd as the store: entry point `etcd` of `assigner.backends`.

The package stands on aetcd's generated stubs over a channel of its own; see `store` for how the parts fit.
"""

from __future__ import annotations

from assigner.backend import Presence, StoreSettings
from assigner.backends.etcd.store import EtcdStatistics, EtcdStore
from assigner.clock import Clock
from assigner.election import LeaderElector
from assigner.model.keys import Keys
from assigner.store import Store

__all__ = ["EtcdBackend", "EtcdStatistics", "EtcdStore", "backend"]


class EtcdBackend:
    async def open(self, settings: StoreSettings, clock: Clock) -> EtcdStore:
        store = EtcdStore(settings, clock)
        await store.open()
        return store

    async def elector(self, store: Store, keys: Keys, presence: Presence, clock: Clock) -> LeaderElector:
        from assigner.backends.election.elector import open_elector

        return await open_elector(store, keys, presence, clock)


backend = EtcdBackend()
