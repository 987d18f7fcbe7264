"""The compare-and-swap loop: `update` reads a record, lets a pure function change it, and writes it back.

Code that changes a record which others change too calls `update` instead of writing the loop again. `swap` is its
single write, for callers that read by other means or have to wait between reading and writing.

- **Nothing is overwritten unseen.** The transaction's precondition is that the record is still at the revision that
  was read, or still absent. A lease or a lock would not do: their holder may be frozen and write late.
- **The change is decided anew on every conflict.** `change` is called with what the conflict found, read in the same
  transaction, so a retry costs no extra read. It has to be pure: it may be called several times, and the last call
  counts. What it raises ends the update with nothing written.
- **Fields that this release does not know survive**, as does the record's lease, because a newer release or an
  upstream deployment may have written them.
- **An unreadable record is left alone** (`UnreadableRecord`), unless the caller says that it may be replaced: its
  author may be able to read it.
- **Fences hold or nothing is written.** Further preconditions and further operations are part of the same
  transaction. Which fence failed is for the caller to judge: `FenceFailed` carries what was read in its place.
- **An unknown outcome is resolved, not passed on.** After `OutcomeUnknown` the same transaction is sent again. Its
  precondition admits one of the two: if the first took effect, the second is refused, and the record that is found is
  ours by its bytes and its lease; if the second takes effect, the first can't any more, however late it arrives.
- **The tries are bounded** by `TRIES` and `UNKNOWN_TRIES`, because a caller is better served by an error than by a
  request that never ends. The error is `StoreUnavailable` only if nothing was written for certain, otherwise
  `OutcomeUnknown`.

Not promised:

- That a write which was overwritten before its outcome was known is recognised. `change` is then applied to what
  overwrote it: an idempotent change finds itself done, and a counter may count twice.
- That an equal record of another writer is distinguished from ours. So further operations must follow from the record.
- That a record which is deleted meanwhile stays deleted: absence has no revision, and a late request may create the
  record again. Where that matters, a fence names a key that the deletion takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

import msgspec

from assigner.errors import OutcomeUnknown, StoreError, StoreUnavailable, UnreadableRecord
from assigner.model.records import R, Stored, encode, stored
from assigner.store import (
    NO_LEASE,
    Committed,
    Compare,
    Found,
    GetResult,
    Operation,
    Put,
    Store,
    revision_of,
    unchanged,
)

TRIES = 8
"""Conflicts after which an update fails."""
UNKNOWN_TRIES = 3
"""Unknown outcomes after which a write fails. Each takes as long as a request may, and meanwhile others may already see
the write."""


class Updated(msgspec.Struct, Generic[R], frozen=True):
    """The record was written."""

    record: R
    revision: int
    """The store's revision of that write: wait for it at a mirror to see it there."""


class Unchanged(msgspec.Struct, Generic[R], frozen=True):
    """Nothing was written. `record` is the present record; None: there is none."""

    record: R | None


class Swapped(msgspec.Struct, frozen=True):
    revision: int


class Lost(msgspec.Struct, frozen=True):
    """Another write came first."""

    found: GetResult
    doubtful: bool
    """Our write may have been applied before that one, and was overwritten by it."""


class FenceFailed(msgspec.Struct, frozen=True):
    """The record is as it was read, and a fence did not hold."""

    reads: tuple[GetResult, ...]
    """What is at the fences' keys, in their order."""
    doubtful: bool = False
    """An earlier write of the same update may have been applied, and was overwritten."""


async def update(
    store: Store,
    key: str,
    kind: type[R],
    change: Callable[[Stored[R] | None], R | None],
    *,
    what: str = "",
    known: Stored[R] | None = None,
    fences: Sequence[Compare] = (),
    operations: Sequence[Operation] = (),
    replace_unreadable: bool = False,
) -> Updated[R] | Unchanged[R] | FenceFailed:
    """Write the record that `change` returns for the present record at `key`, or for None if there is none.

    If it returns None, or the record it was given, nothing is written. `known` is a copy that the caller has already,
    from a mirror for example: it saves the read, and a stale one costs a conflict. `what` names the record in errors.

    Raises `UnreadableRecord`, `StoreError`, and what `change` raises.
    """
    current, revision = known, known.mod_revision if known else 0
    if known is None:
        current, revision = _readable(await store.get(key), kind, replace_unreadable)
    doubtful = False
    for _ in range(TRIES):
        wanted = change(current)
        if wanted is None or (current is not None and wanted == current.record):
            return Unchanged(current.record if current else None)
        put = Put(key, *((current.encode(wanted), current.lease) if current else (encode(wanted), NO_LEASE)))
        result = await swap(store, put, revision, fences=fences, operations=operations)
        match result:
            case Swapped():
                return Updated(wanted, result.revision)
            case FenceFailed():
                return FenceFailed(result.reads, doubtful or result.doubtful)
            case Lost():
                doubtful = doubtful or result.doubtful
                current, revision = _readable(result.found, kind, replace_unreadable)
    if doubtful:
        raise OutcomeUnknown(f"{what or key} is being written by others too, and may have been written; look at it")
    raise StoreUnavailable(f"{what or key} is being written by others too; try again")


async def swap(
    store: Store, put: Put, revision: int, *, fences: Sequence[Compare] = (), operations: Sequence[Operation] = ()
) -> Swapped | Lost | FenceFailed:
    """Write `put` if its key is still at that mod revision (0: absent) and the fences hold. Raises `StoreError`."""
    compares = [unchanged(put.key, revision), *fences]
    otherwise = [put.key, *(fence.key for fence in fences)]
    doubtful = False
    for _ in range(UNKNOWN_TRIES):
        try:
            result = await store.transact(compares, [put, *operations], otherwise=otherwise)
        except OutcomeUnknown:
            doubtful = True
            continue
        except StoreError as error:
            if doubtful:
                raise _outcome_unknown(put.key) from error
            raise
        if isinstance(result, Committed):
            return Swapped(result.revision)
        found, *fenced = result.reads
        if revision_of(found) == revision:
            return FenceFailed(tuple(fenced))
        if doubtful and isinstance(found, Found) and (found.entry.value, found.entry.lease) == (put.value, put.lease):
            return Swapped(found.entry.mod_revision)
        return Lost(found, doubtful)
    raise _outcome_unknown(put.key)


def _readable(found: GetResult, kind: type[R], replace_unreadable: bool) -> tuple[Stored[R] | None, int]:
    """The record, or None if it is absent or to be replaced, and the mod revision of its key."""
    if not isinstance(found, Found):
        return None, 0
    try:
        return stored(kind, found.entry), found.entry.mod_revision
    except UnreadableRecord:
        if not replace_unreadable:
            raise
        return None, found.entry.mod_revision


def _outcome_unknown(key: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the store did not say whether {key} was written; look at it, and try again")
