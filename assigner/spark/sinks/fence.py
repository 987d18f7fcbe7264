"""Decides which rows of a batch are written, by the fencing rule of every sink, independent of any database or file.

A fence keeps, for one partition in one sink, the highest epoch that wrote and the offset after the last row written.
Rows of a lower epoch are refused; rows before that offset were written already and are skipped. A sink must change
its fences and its rows in one atomic step, or the rule protects nothing.

Not promised: that another member writes a refused row. That holds as long as offsets are committed under the same
epochs, since then the progress of a refused owner is fenced too, and its successor starts before those rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from assigner.core.client.gate import StaleEpoch
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition

# A handoff leaves one or two late batches. More of them mean that this owner never learned of the handoff.
MAX_STALE_BATCHES = 10


class OnStale(str, Enum):
    """What a sink does with rows whose epoch is fenced off."""

    DROP = "drop"
    """The rows are left out and counted; after `MAX_STALE_BATCHES` such batches under one epoch the query fails."""
    FAIL = "fail"
    """The query fails at the first such row, and nothing of the batch is written."""


def stale_policy(name: str) -> OnStale:
    try:
        return OnStale(name.lower())
    except ValueError:
        known = " or ".join(each.value for each in OnStale)
        raise InvalidInput(f"option onStale is {name!r}; it may be {known}") from None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one partition in one batch: offsets from `first` to before `next_offset`, maybe with gaps.

    Without rows it only tells how far the batch had read.
    """

    topic: str
    partition: int
    epoch: int
    first: int
    next_offset: int
    rows: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """A sink's record of one partition."""

    epoch: int = 0
    next_offset: int = 0
    refused_epoch: int = 0
    """The epoch of the last refused batch."""
    refused_until: int = 0
    """How far that epoch's refused rows reached."""
    refused_batches: int = 0
    """How many of that epoch's batches were refused. A replay of one counts once."""
    refused_rows: int = 0
    """All rows ever refused."""


UNWRITTEN = Fence()


class StaleRows(StaleEpoch):
    """Rows with a fenced epoch, in a sink whose policy is `fail`, or that dropped too many batches of them."""

    def __init__(self, part: Slice, fence: Fence) -> None:
        super().__init__(part.tp, part.epoch, fence.epoch)
        message = (
            f"rows of {part.tp} carry epoch {part.epoch}, but epoch {fence.epoch} has written already; a newer owner "
            f"has the partition: restart this query, it will go on with what it owns. If there is no newer owner, the "
            f"assigner's epochs went back (its store was lost or restored): reset the sink's fence of the topic"
        )
        self.args = (message,)


class FenceDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a batch to write, and the fences after it."""

    fences: dict[TopicPartition, Fence]
    """The fences of the batch's partitions after it."""
    floors: dict[TopicPartition, int]
    """Partitions whose rows are written, and the first offset to write."""
    stale: tuple[Slice, ...]


def merged(slices: Iterable[Slice]) -> list[Slice]:
    """Merge slices to one per partition, in the order in which fences are locked. Two epochs of a partition are an
    error."""
    whole: dict[TopicPartition, Slice] = {}
    for part in slices:
        known = whole.get(part.tp)
        whole[part.tp] = part if known is None else _joined(known, part)
    return [whole[tp] for tp in sorted(whole)]


def decide(fences: Mapping[TopicPartition, Fence], slices: Iterable[Slice], on_stale: OnStale) -> FenceDecision:
    """Decide which rows of a batch to write. `slices` are merged; a partition without a fence was never written."""
    raised: dict[TopicPartition, Fence] = {}
    floors: dict[TopicPartition, int] = {}
    stale: list[Slice] = []
    for part in slices:
        fence = fences.get(part.tp, UNWRITTEN)
        if part.epoch < fence.epoch:
            raised[part.tp] = _refused(fence, part, on_stale)
            stale.append(part)
        else:
            floors[part.tp] = fence.next_offset
            raised[part.tp] = _raised(fence, part)
    return FenceDecision(fences=raised, floors=floors, stale=tuple(stale))


def _joined(one: Slice, other: Slice) -> Slice:
    if one.epoch != other.epoch:
        raise InvalidInput(
            f"a batch holds rows of {one.tp} under epochs {one.epoch} and {other.epoch}; a partition has one owner per "
            f"batch: give each query of the group its own sink call, and do not union their rows"
        )
    return Slice(
        topic=one.topic,
        partition=one.partition,
        epoch=one.epoch,
        first=min(one.first, other.first),
        next_offset=max(one.next_offset, other.next_offset),
        rows=one.rows + other.rows,
    )


def _raised(fence: Fence, part: Slice) -> Fence:
    next_offset = max(fence.next_offset, part.next_offset)
    return msgspec.structs.replace(fence, epoch=part.epoch, next_offset=next_offset)


def _refused(fence: Fence, part: Slice, on_stale: OnStale) -> Fence:
    first_time = fence.refused_epoch != part.epoch
    until = 0 if first_time else fence.refused_until
    batches = (0 if first_time else fence.refused_batches) + (part.next_offset > until)
    if on_stale is OnStale.FAIL or batches > MAX_STALE_BATCHES:
        raise StaleRows(part, fence)
    return msgspec.structs.replace(
        fence,
        refused_epoch=part.epoch,
        refused_until=max(until, part.next_offset),
        refused_batches=batches,
        refused_rows=fence.refused_rows + part.rows,
    )
