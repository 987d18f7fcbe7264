"""Loads and writes what a classic group consists of, under the fence of one term.

Every write has the term's leader key as a precondition, and what it replaces: a leader that was deposed, and a request
that the store gets to late, change nothing. A write of the group's record either took effect or did not when `write`
returns or raises; while that is not known, the same transaction is sent again.

Blocks of members are written before the record that names them. None is ever replaced under a number that is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import anyio.lowlevel

from assigner.aio.backoff import Backoff
from assigner.clock import Clock
from assigner.core.kafka_groups.classic.records import Layout, Packed, pack, unnamed, unpack
from assigner.errors import AssignerError, OutcomeUnknown, StoreError
from assigner.logs import get_logger
from assigner.model.kafka_groups import ClassicGroupRecord, ClassicMembersRecord
from assigner.model.keys import Keys
from assigner.model.records import decode, encode
from assigner.storage.update import FenceFailed, Lost, Swapped, swap
from assigner.store import Committed, Compare, CreateRevisionIs, Delete, Found, Put, Store, read_all, unchanged

_BLOCKS_AT_ONCE = 8
"""Blocks read in one answer of the store."""

log = get_logger("assigner.kafka_groups.records")


class Deposed(AssignerError):
    """The term is over: another instance leads the group, or it was deleted."""


class Overwritten(AssignerError):
    """Somebody has changed the group's record within the term, by hand for example: it has to be loaded again."""


class GroupRecords:
    def __init__(self, store: Store, keys: Keys, group: str, fence: CreateRevisionIs, clock: Clock) -> None:
        self.group = group
        self.revision = 0
        """Of the group's record; 0: there is none."""
        self._store = store
        self._keys = keys
        self._key = keys.kafka_state(group)
        self._fence = fence
        self._clock = clock
        self._layout = Layout()

    @property
    def fences(self) -> tuple[Compare, ...]:
        """The preconditions of whatever is decided by the record as it is now."""
        return (self._fence, unchanged(self._key, self.revision))

    @property
    def since(self) -> int:
        """Wall time in milliseconds when the group got into its state."""
        return self._layout.state.since if self._layout.state else 0

    @property
    def is_empty(self) -> bool:
        """Whether there are no members on record."""
        return self._layout.state is None or self._layout.state.is_empty

    # --- loading ---------------------------------------------------------------------------------------------------

    async def load(self) -> ClassicGroupRecord | None:
        """Read the group. Raises `UnreadableRecord` for one that can't be put together."""
        found = await self._store.get(self._key)
        state = decode(ClassicGroupRecord, found.entry.value)[0] if isinstance(found, Found) else None
        # Nobody else writes in this term, so the blocks are still those that the record names.
        values = await self._read_blocks()
        record = None
        if isinstance(found, Found) and state is not None:
            named = {number: values[number] for number in state.blocks if number in values}
            blocks = {number: decode(ClassicMembersRecord, value)[0] for number, value in named.items()}
            record, self._layout = unpack(state, blocks)
            self.revision = found.entry.mod_revision
        await self._delete_blocks(unnamed(state, values))
        return record

    async def _read_blocks(self) -> dict[int, bytes]:
        prefix = self._keys.kafka_members(self.group)
        entries = (await read_all(self._store, prefix, page_size=_BLOCKS_AT_ONCE)).entries
        numbered = ((entry.key[len(prefix) :], entry.value) for entry in entries)
        return {int(name): value for name, value in numbered if name.isdecimal()}

    # --- writing ---------------------------------------------------------------------------------------------------

    async def write(self, record: ClassicGroupRecord) -> None:
        """Write the group in place of what was written or loaded last. Raises `Deposed`, `Overwritten`, or a
        `StoreError` if nothing was written for certain."""
        packed = pack(record, self._layout, int(self._clock.wall() * 1000))
        for number, block in packed.blocks:
            await self._write_block(number, block)
        self.revision = await self._swapped(Put(self._key, encode(packed.state)), self.revision)
        self._layout = packed.layout
        await self._tidy_up(packed)

    async def _write_block(self, number: int, block: ClassicMembersRecord) -> None:
        """Write a block under a number that is not named; an interrupted write may have left another one there."""
        put = Put(self._keys.kafka_members(self.group, number), encode(block))
        found = await self._store.get(put.key)
        await self._swapped(put, found.entry.mod_revision if isinstance(found, Found) else 0)

    async def _swapped(self, put: Put, revision: int) -> int:
        doubtful, backoff = False, Backoff(put.key)
        while True:
            try:
                result = await swap(self._store, put, revision, fences=[self._fence])
            except StoreError as error:
                doubtful = doubtful or isinstance(error, OutcomeUnknown)
                if not doubtful:
                    raise
                log.warning("classic_group_unresolved", group=self.group, error=str(error), tries=backoff.tries + 1)
                await backoff.pause()
                continue
            match result:
                case Swapped(written):
                    return written
                case Lost(found=Found(entry=entry)) if doubtful and entry.value == put.value:
                    return entry.mod_revision
                case Lost():
                    raise Overwritten(f"{put.key} is not what was written last")
                case FenceFailed():
                    raise Deposed(f"group {self.group!r} is led by another instance, or was deleted")

    async def _tidy_up(self, packed: Packed) -> None:
        try:
            await self._delete_blocks(packed.obsolete)
        except StoreError as error:
            # The next load finds what nobody names.
            log.info("classic_blocks_left", group=self.group, error=str(error))

    async def _delete_blocks(self, numbers: Sequence[int]) -> None:
        rest = iter(numbers)
        while part := list(islice(rest, self._store.limits.operations)):
            deletes = [Delete(self._keys.kafka_members(self.group, number)) for number in part]
            if not isinstance(await self._store.transact([self._fence], deletes), Committed):
                raise Deposed(f"group {self.group!r} is led by another instance, or was deleted")
            await anyio.lowlevel.checkpoint()
