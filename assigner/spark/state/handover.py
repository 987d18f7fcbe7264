"""Computes the control rows of a batch, and where a new owner begins to read after another query stored the state.

Like the records of a batch, its control rows follow from its two ends alone. The sink's states are read when a batch is
planned: the stored state of a partition only ever advances, so the end of an older batch still fits.

With states a new owner begins where the stored state ends, not at the committed offset: the records in between are in
no state. The sink skips their rows, which were written before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from assigner.model.keys import TopicPartition
from assigner.spark.positions import (
    HeldPartition,
    Holdings,
    Position,
    Positions,
    can_continue,
    is_unchanged,
    still_counts,
)
from assigner.spark.schema import ControlKind
from assigner.spark.sinks.columns import StateRow


class Control(msgspec.Struct, frozen=True, gc=False):
    """A control row. `offset`: of the next record to be read."""

    kind: ControlKind
    tp: TopicPartition
    epoch: int
    offset: int
    state: bytes | None = None


# --- where to begin --------------------------------------------------------------------------------------------------


def to_restore(start: Positions, holdings: Holdings) -> list[TopicPartition]:
    """Find the held partitions whose state is not in the query's own checkpoint."""
    return [tp for tp, held in holdings.held.items() if not has_state(start.of.get(tp), held)]


def has_state(at: Position | None, held: HeldPartition) -> bool:
    return at is not None and (is_unchanged(at, held) or can_continue(at, held))


def beginning_at_states(
    holdings: Holdings, restored: Collection[TopicPartition], stored: Mapping[TopicPartition, StateRow]
) -> Holdings:
    """Set the base of each holding: for `restored` partitions, whose state the query does not have, the offset at which
    the state `stored` in the sink ends; else 0. A partition without a stored state was never read with states, and
    begins at the committed offset."""
    held = {
        # The query's own state ends where its last batch ends.
        tp: msgspec.structs.replace(one, base=_beginning(one, stored.get(tp)) if tp in restored else 0)
        for tp, one in holdings.held.items()
    }
    return msgspec.structs.replace(holdings, held=held)


def _beginning(held: HeldPartition, stored: StateRow | None) -> int:
    return held.base if stored is None else stored.next_offset


# --- the rows of a batch ---------------------------------------------------------------------------------------------


def controls_between(start: Positions, end: Positions, every: int) -> list[Control]:
    """Build the control rows of the batch from `start` to `end`, with a snapshot after `every` so many records of a
    partition."""
    return [one for tp, at in sorted(end.of.items()) for one in _controls(tp, start.of.get(tp), at, every)]


def controls_again(start: Positions, end: Positions, holdings: Holdings, every: int) -> list[Control]:
    """Build the control rows of a batch that an earlier process planned, for the partitions that are still held, under
    their present epochs."""
    found: list[Control] = []
    for tp, at in sorted(end.of.items()):
        held, before = holdings.held.get(tp), start.of.get(tp)
        if held is None or not still_counts(at, held):
            continue
        if before is not None and not _begins(before, at):
            found.append(Control(ControlKind.RESUME, tp, held.epoch, before.end))
        found += [msgspec.structs.replace(one, epoch=held.epoch) for one in _controls(tp, before, at, every)]
    return found


def _controls(tp: TopicPartition, before: Position | None, at: Position, every: int) -> Iterator[Control]:
    begins = _begins(before, at)
    if begins:
        yield Control(ControlKind.RESUME if at.kept else ControlKind.RESTORE, tp, at.epoch, at.base)
    if at.released:
        yield Control(ControlKind.RELEASE, tp, at.epoch, at.end)
    elif begins and not at.kept:
        # So that the sink has the new epoch, and the first owner's beginning, from the first batch on.
        yield Control(ControlKind.SNAPSHOT, tp, at.epoch, at.end)
    elif (at.base if begins or before is None else before.end) // every < at.end // every:
        yield Control(ControlKind.SNAPSHOT, tp, at.epoch, at.end)


def _begins(before: Position | None, at: Position) -> bool:
    return before is None or before.epoch != at.epoch or before.released


def restored_by(controls: Iterable[Control]) -> list[TopicPartition]:
    return [one.tp for one in controls if one.kind is ControlKind.RESTORE]


def with_states(controls: Iterable[Control], stored: Mapping[TopicPartition, StateRow]) -> list[Control]:
    """Add the states to restore to the control rows."""
    return [_restoring(one, stored.get(one.tp)) if one.kind is ControlKind.RESTORE else one for one in controls]


def _restoring(one: Control, stored: StateRow | None) -> Control:
    if stored is None:
        return one
    return msgspec.structs.replace(one, offset=stored.next_offset, state=stored.state)
