"""Where a new owner begins to read, given what the assigner and the sink know.

Without state: at the later of the two offsets. With state: where the stored state ends, wherever the committed offset
is, since the records in between are in nobody's state; the sink skips the rows they led to before.
"""

from __future__ import annotations

import msgspec

from assigner.keys import TopicPartition
from assigner.spark.control_rows import ControlKind, control_row
from assigner.spark.sinks.columns import StateRow
from assigner.spark.sinks.fence import Fence


class Beginning(msgspec.Struct, frozen=True):
    offset: int
    """Of the first record to read."""
    row: dict[str, object]
    """The control row that goes before it."""


def beginning_without_state(committed: int, fence: Fence | None) -> int:
    return committed if fence is None else max(committed, fence.next_offset)


def beginning_with_state(
    tp: TopicPartition, epoch: int, *, granted: int, checkpointed: int | None, stored: StateRow | None, origin: int
) -> Beginning:
    """`granted`: the committed offset; `checkpointed`: up to where this query's own checkpoint had read the partition,
    if it had; `stored`: the sink's state; `origin`: where the group began to read the topic."""
    if checkpointed == granted:
        return Beginning(granted, control_row(ControlKind.RESUME, tp, epoch=epoch, offset=granted))
    at, state = (origin, None) if stored is None else (stored.next_offset, stored.state)
    return Beginning(at, control_row(ControlKind.RESTORE, tp, epoch=epoch, offset=at, state=state))
