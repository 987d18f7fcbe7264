"""Registers sessions under leases: chooses the lease, writes the registration, and revokes a lease that is not needed.

A session that resumes keeps its lease while that is alive, so that nothing changes for those who watch its key.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from assigner.errors import StoreError
from assigner.logs import get_logger
from assigner.storage.update import Lost, Swapped, swap
from assigner.store import Compare, Found, Operation, Put, Renewed, Store

REVOKE_WITHIN = 2.0
"""Seconds; a lease that could not be revoked ends by itself."""

log = get_logger("assigner.streams.leases")


class SessionLeases:
    def __init__(self, store: Store, ttl: float) -> None:
        self._store = store
        self.ttl = ttl

    async def lease(self, own: int) -> tuple[int, float, bool]:
        """Choose the lease to register under: the session's `own` if it is alive. (lease, TTL, whether it is new.)"""
        if own:
            renewed = await self._store.keep_alive(own)
            if isinstance(renewed, Renewed):
                return own, renewed.ttl, False
        granted = await self._store.grant(self.ttl)
        return granted.lease, granted.ttl, True

    async def put(
        self,
        put: Put,
        revision: int,
        fences: Sequence[Compare],
        operations: Sequence[Operation] = (),
        *,
        granted: bool,
    ) -> int:
        """Write the registration in place of the one at `revision`. Returns the revision of the write, 0 if it lost.

        `granted`: the lease was granted for this registration. A record with that lease is then this registration, even
        if another writer, such as an operator who drains it, changed it before our write's outcome was known."""
        result = await swap(self._store, put, revision, fences=fences, operations=operations)
        match result:
            case Swapped():
                return result.revision
            case Lost(found=Found(entry=entry), doubtful=True) if granted and entry.lease == put.lease:
                return entry.mod_revision
            case _:
                return 0

    async def revoke(self, lease: int) -> None:
        """Revoke a lease that is no longer needed; otherwise an orphaned registration would live until its TTL."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(REVOKE_WITHIN):
            try:
                await self._store.revoke(lease)
            except StoreError as error:
                log.info("lease_revocation_failed", lease=lease, error=str(error))
