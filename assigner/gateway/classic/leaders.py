"""Knows which instance leads a group, as the group's leader key says.

A key is read when its group is first asked for, and again when an instance said that it does not lead the group, or
can't be reached. So a group whose leader stays costs no read, and no watch either.
"""

from __future__ import annotations

from collections import OrderedDict

from assigner.errors import UnreadableRecord
from assigner.model.keys import Keys
from assigner.model.records import LeaderRecord, decode
from assigner.store import Found, Store

MOST = 20_000
"""Groups whose leaders are remembered."""


class Leaders:
    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._addresses: OrderedDict[str, str] = OrderedDict()

    async def address(self, group: str) -> str:
        """The address of the group's leader; empty: it has none now. Raises `StoreError`."""
        known = self._addresses.get(group)
        if known is None:
            known = await self._read(group)
            if known:
                self._addresses[group] = known
                if len(self._addresses) > MOST:
                    self._addresses.popitem(last=False)
        return known

    def forget(self, group: str, address: str) -> None:
        """Read the key again at the next call, unless it was read since: this address is not the leader's."""
        if self._addresses.get(group) == address:
            del self._addresses[group]

    async def _read(self, group: str) -> str:
        found = await self._store.get(self._keys.group(group).leader)
        try:
            return decode(LeaderRecord, found.entry.value)[0].address if isinstance(found, Found) else ""
        except UnreadableRecord:
            return ""
