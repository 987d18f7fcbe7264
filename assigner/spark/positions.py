"""`Positions`: a query's progress as Spark's checkpoint keeps it, per partition the epoch, the beginning and the end.

`{"orders-3": {"e": 7, "b": 100, "o": 250}, "~": {"group": "billing", "member": "etl-1"}}`: under epoch 7 the query
began at 100, and its last batch ends before 250. What a batch reads follows from its two ends alone, so a batch that
is planned again after a crash needs no memory. `~` can't begin a topic's name; its value is the checkpoint's owner.
`"k": 1`: the query's state of the partition survived a change of epochs. `"r": 1`: the batch hands the state over.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec

from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition

OWNER_KEY = "~"


class Position(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    base: int
    """Where this query began under the epoch."""
    end: int
    """The offset after the last one of the batch."""
    kept: bool = False
    """When the epoch began, what the query had read under earlier epochs still counted."""
    released: bool = False
    """The batch hands the partition's state over; a later batch starts without it."""

    def to_json(self) -> dict[str, int | str]:
        numbers: dict[str, int | str] = {"e": self.epoch, "b": self.base, "o": self.end}
        if self.kept:
            numbers["k"] = 1
        if self.released:
            numbers["r"] = 1
        return numbers


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The group member that positions belong to."""

    group: str
    member: str


class Positions(msgspec.Struct, frozen=True):
    owner: Owner
    of: dict[TopicPartition, Position] = {}

    def to_json(self) -> dict[str, dict[str, int | str]]:
        """Encode as JSON, always in the same order, because Spark compares the ends of batches as text."""
        listed: dict[str, dict[str, int | str]] = {
            f"{tp.topic}-{tp.partition}": at.to_json() for tp, at in sorted(self.of.items())
        }
        listed[OWNER_KEY] = {"group": self.owner.group, "member": self.owner.member}
        return listed


def read_positions(stored: Mapping[str, Any], expected: Owner) -> Positions:
    """Read positions from a checkpoint; refuses those of another group or member."""
    owner = stored.get(OWNER_KEY)
    if not isinstance(owner, Mapping) or not {"group", "member"} <= set(owner):
        raise InvalidInput(
            "the checkpoint was not written by assigned_kafka, or by a version that is too different; "
            "use another checkpointLocation: the group's committed offsets are where a new one begins"
        )
    _check_owner(Owner(str(owner["group"]), str(owner["member"])), expected)
    return Positions(expected, {_partition(key): _position(key, at) for key, at in stored.items() if key != OWNER_KEY})


def _check_owner(found: Owner, expected: Owner) -> None:
    for option in ("group", "member"):
        theirs, ours = getattr(found, option), getattr(expected, option)
        if theirs != ours:
            raise InvalidInput(
                f"the checkpoint belongs to {option} {theirs!r}, but option {option} is {ours!r}; set the option back, "
                f"or use another checkpointLocation: the query begins there at the group's committed offsets"
            )


def _partition(key: str) -> TopicPartition:
    topic, dash, partition = key.rpartition("-")
    if not dash or not topic or not (partition.isascii() and partition.isdecimal()):
        raise InvalidInput(f"{key!r} in the checkpoint names no partition; use another checkpointLocation")
    return TopicPartition(topic, int(partition))


def _position(key: str, at: Any) -> Position:
    try:
        return Position(int(at["e"]), int(at["b"]), int(at["o"]), bool(at.get("k")), bool(at.get("r")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{key} in the checkpoint is {at!r}, which is no position; use another one") from error


# --- what a batch reads ------------------------------------------------------------------------------------------


class OffsetRange(msgspec.Struct, frozen=True, gc=False):
    """Offsets of one partition, from `first` to before `end`, read under `epoch`."""

    tp: TopicPartition
    epoch: int
    first: int
    end: int

    @property
    def rows(self) -> int:
        """The most rows that the range can have: offsets may have gaps."""
        return self.end - self.first

    def __str__(self) -> str:
        return f"{self.tp}@{self.epoch} [{self.first}, {self.end})"


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """The ranges that the batch from `start` to `end` reads."""
    found = []
    for tp, at in sorted(end.of.items()):
        before = start.of.get(tp)
        first = before.end if before is not None and before.epoch == at.epoch else at.base
        if first < at.end:
            found.append(OffsetRange(tp, at.epoch, first, at.end))
    return found


def split(ranges: list[OffsetRange], *, at_least: int, at_most_rows: int | None) -> list[OffsetRange]:
    """Cut long ranges so that about `at_least` tasks have work, none with more rows than `at_most_rows`."""
    total = sum(one.rows for one in ranges)
    pieces: list[OffsetRange] = []
    for one in ranges:
        parts = round(at_least * one.rows / total) if len(ranges) < at_least else 1
        if at_most_rows is not None:
            parts = max(parts, -(-one.rows // at_most_rows))
        pieces += _cut(one, max(1, min(parts, one.rows)))
    return pieces


def _cut(one: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [one.first + one.rows * part // parts for part in range(parts + 1)]
    return [OffsetRange(one.tp, one.epoch, first, end) for first, end in pairwise(edges)]


def packed(ranges: list[OffsetRange], rows: int) -> list[tuple[OffsetRange, ...]]:
    """Group ranges into tasks: short ones share one, up to about `rows`, because a task costs more than they do."""
    tasks: list[tuple[OffsetRange, ...]] = []
    room = 0
    for one in ranges:
        if room < one.rows:
            tasks.append(())
            room = rows
        tasks[-1] += (one,)
        room -= one.rows
    return tasks


# --- how far the next batch goes ---------------------------------------------------------------------------------


class HeldPartition(msgspec.Struct, frozen=True, gc=False):
    """A partition that the member owns."""

    epoch: int
    since: int
    """The epoch since which this member was the only owner: what it read under these epochs still counts."""
    base: int
    """The committed offset when it was taken."""


class Holdings(msgspec.Struct, frozen=True):
    """The member's partitions at one moment."""

    held: dict[TopicPartition, HeldPartition]
    """Owned: to be read further."""
    gone: frozenset[TopicPartition] = frozenset()
    """Released, or known to be owned by another member. A partition that is neither here nor held has an unknown owner:
    its position stays."""
    leaving: frozenset[TopicPartition] = frozenset()
    """Held, but not read further: the next batch hands their states over."""


def with_holdings(start: Positions, holdings: Holdings) -> Positions:
    """Remove released partitions from `start` and add newly assigned ones, of which nothing is read yet."""
    now: dict[TopicPartition, Position] = {}
    for tp, at in start.of.items():
        held = holdings.held.get(tp)
        if held is not None:
            at = _continued(at, held)
            now[tp] = msgspec.structs.replace(at, released=True) if tp in holdings.leaving else at
        elif tp not in holdings.gone:
            now[tp] = at
    for tp, held in holdings.held.items():
        if tp not in now:
            now[tp] = Position(held.epoch, held.base, held.base)
    return Positions(start.owner, now)


def _continued(at: Position, held: HeldPartition) -> Position:
    if is_unchanged(at, held):
        return at
    # After a restart the epoch is higher. Without another owner in between, what the last process finished counts.
    kept = can_continue(at, held)
    base = max(at.end, held.base) if kept else held.base
    return Position(held.epoch, base, base, kept)


def is_unchanged(at: Position, held: HeldPartition) -> bool:
    """Whether the member has owned the partition without a break since the last batch."""
    return at.epoch == held.epoch and not at.released


def can_continue(at: Position, held: HeldPartition) -> bool:
    """Whether the query can continue from its position, with its own state."""
    return still_counts(at, held) and not at.released


def still_counts(at: Position, held: HeldPartition) -> bool:
    """Whether what was read under an earlier epoch counts: this member was the only owner since."""
    return held.since <= at.epoch <= held.epoch


def replayed(start: Positions, end: Positions, holdings: Holdings) -> list[OffsetRange]:
    """Find what is left of a batch that an earlier process planned: the ranges that no other member has taken over.

    Leaving the others out loses nothing: the batch was never reported, so their new owners begin before it.
    """
    kept = []
    for one in ranges_between(start, end):
        held = holdings.held.get(one.tp)
        if held is None or not still_counts(end.of[one.tp], held):
            continue
        first = max(one.first, held.base)
        if first < one.end:
            kept.append(OffsetRange(one.tp, held.epoch, first, one.end))
    return kept


def advanced(
    positions: Positions,
    held: Mapping[TopicPartition, HeldPartition],
    ends: Mapping[TopicPartition, int],
    max_rows: int | None,
) -> Positions:
    """Compute the end of the next batch: at most `max_rows` in all, shared in proportion to each partition's
    backlog."""
    backlog = {
        tp: ends[tp] - at.end
        for tp, at in positions.of.items()
        if tp in held and not at.released and ends.get(tp, at.end) > at.end
    }
    total = sum(backlog.values())
    moved = dict(positions.of)
    for tp, rows in backlog.items():
        taken = rows if max_rows is None or total <= max_rows else _share(rows, total, max_rows)
        at = moved[tp]
        moved[tp] = msgspec.structs.replace(at, end=at.end + taken)
    return Positions(positions.owner, moved)


def _share(rows: int, total: int, max_rows: int) -> int:
    # At least one row each, so that a quiet partition beside a huge backlog is not starved.
    return min(rows, max(1, max_rows * rows // total))
