"""Keeps the store's incarnation: an id that is written once into an empty store and lasts as long as its data.

Epochs rise only as long as the store keeps them. When its data is lost, restored from a backup or in memory only, they
start over, and a consumer must not take the new grants for stale ones: the first message of its stream has the id. An
instance whose store was replaced has stale memory, so it logs an error and stops.

Not promised: that a restored backup is noticed if no instance ran during the restore, because the backup has the same
id.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

import anyio

from assigner.clock import Clock
from assigner.errors import OutcomeUnknown, StoreError, StoreReplaced, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.records import StoreLife, decode, encode
from assigner.storage.update import Lost, swap
from assigner.store import Entry, Found, GetResult, Put, Store

CHECK_SECONDS = 10.0
"""Seconds between two checks of the id."""

log = get_logger("assigner.storage.incarnation")


class Incarnation:
    def __init__(self, store: Store, keys: Keys, clock: Clock) -> None:
        self._store = store
        self._key = keys.incarnation
        self._clock = clock
        self._id = ""
        self._revision = 0
        """The highest revision of the store that this instance has seen."""

    async def id(self) -> str:
        """Read the store's id, and write a new one if there is none."""
        if not self._id:
            self._id = await self._replace_id(0)
        return self._id

    async def _replace_id(self, revision: int) -> str:
        """Replace the id at that revision (0: none) by a new one, and return the stored id: another instance may have
        been first."""
        life = StoreLife(incarnation=secrets.token_hex(8), began_at=round(self._clock.wall() * 1000))
        result = await swap(self._store, Put(self._key, encode(life)), revision)
        if isinstance(result, Lost):
            if not isinstance(result.found, Found):
                raise OutcomeUnknown("the id of the store's life was taken away while it was read; try again")
            return _id_of(result.found.entry)
        log.info("incarnation_created", incarnation=life.incarnation)
        return life.incarnation

    async def replaced(self) -> StoreReplaced:
        """Wait until the store's data was replaced, and return how that was noticed."""
        while True:
            try:
                known = await self.id()
                found = await self._store.get(self._key)
                why = _difference(known, found, self._revision)
                self._revision = max(self._revision, found.revision)
                if why and isinstance(found, Found) and _id_of(found.entry) == known:
                    # A restored backup has the old id. A new one lets the others notice the restore.
                    await self._replace_id(found.entry.mod_revision)
                if why:
                    return StoreReplaced(
                        f"the store is not the one it was: {why}; "
                        "what this instance knows of it never was, so it has to be started anew"
                    )
            except StoreError as error:
                log.debug("incarnation_check_failed", error=str(error))
            await anyio.sleep(CHECK_SECONDS)


def _difference(known: str, found: GetResult, revision: int) -> str:
    if not isinstance(found, Found):
        return f"its id {known} is gone"
    if (now := _id_of(found.entry)) != known:
        return f"its id is {now} and was {known}"
    if found.revision < revision:
        return f"its revision went back from {revision} to {found.revision}"
    return ""


def _id_of(entry: Entry) -> str:
    try:
        return decode(StoreLife, entry.value)[0].incarnation
    except UnreadableRecord:
        # An unreadable id still serves: only its changes matter.
        return blake2b(entry.value, digest_size=8).hexdigest()
