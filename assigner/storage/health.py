"""Tells whether the store accepts writes: a rejected write shows that it does not, a probe shows that it does again.
And, for an instance that has no lease of its own to tell by, whether the store answers at all.

A read-only store (an etcd out of space) still renews leases, so owners keep working. An instance therefore stays ready
while it reports this: out of service, it could no longer renew its consumers' leases.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from assigner.aio.wakeup import Wakeup
from assigner.errors import StoreError, StoreReadOnly
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.store import Store

PROBE_SECONDS = 5.0
"""Seconds between two probes of a store that rejects writes."""

log = get_logger("assigner.storage.health")


class StoreHealth:
    def __init__(self, store: Store, keys: Keys, instance: str) -> None:
        self._store = store
        self._key = keys.probe(instance)
        self._suspected = Wakeup()
        self.trouble = ""
        """Why the store rejects writes, and the remedy; empty: it accepts them, as far as is known."""

    def observing(self, observe: Callable[[str, float, str], None]) -> Callable[[str, float, str], None]:
        """Wrap an observer of the store's requests so that rejected writes are noticed."""

        def observed(kind: str, seconds: float, outcome: str) -> None:
            observe(kind, seconds, outcome)
            if outcome == StoreReadOnly.__name__:
                self._suspected.notify()

        return observed

    async def run(self) -> None:
        cleared = 0
        while True:
            await self._suspected.since(cleared)
            mark = self._suspected.mark()
            if await self._takes_writes():
                cleared = mark
            else:
                await anyio.sleep(PROBE_SECONDS)

    async def _takes_writes(self) -> bool:
        try:
            await self._store.put(self._key, b"{}")
            await self._store.delete(self._key)
        except StoreReadOnly as error:
            if not self.trouble:
                log.error("store_read_only", error=str(error))
            self.trouble = str(error)
            return False
        except StoreError as error:
            log.info("store_probe_failed", error=str(error))
            return False
        if self.trouble:
            log.info("store_writable")
        self.trouble = ""
        return True


class StoreContact:
    """Asks the store for a key from time to time."""

    def __init__(self, store: Store, keys: Keys, interval: float) -> None:
        self._store = store
        self._key = keys.incarnation
        self._interval = interval
        self.answers = True
        """Whether the store answered when it was last asked."""

    async def run(self) -> None:
        while True:
            try:
                await self._store.get(self._key)
            except StoreError as error:
                if self.answers:
                    log.warning("store_contact_lost", error=str(error))
                self.answers = False
            else:
                if not self.answers:
                    log.info("store_contact_back")
                self.answers = True
            await anyio.sleep(self._interval)
