"""Implements the backend `etcd`: a store on an etcd cluster, by aetcd's generated stubs over a gRPC channel of our own.

- `store` is the `Store`, and its docstring says how the modules work together.
- Requests: `calls` gives each a deadline and retries those that had no effect; `convert` and `errors` translate between
  etcd's messages and ours; `rpc` is the only module that imports aetcd and grpc.
- Connections: `member` keeps one connection to a healthy member; `connection` and `channel` are that connection; `auth`
  logs in.
- Streams: `streams` runs one stream; `watches` multiplexes all watches over one stream, and `watch` is one of them;
  `leases` sends all renewals over another.

May import `aio`, `logs`, the interfaces and no driver. Not promised: that a request which timed out had no effect. Its
caller gets `OutcomeUnknown` then.
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
