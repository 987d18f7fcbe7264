"""What a sink knows of partitions: how far each is written, under which epoch, and the state left for its next owner.

A source that asks it before reading starts at the later of the offset committed with the assigner and the sink's next
offset: rows written by a predecessor that died before it could report them are then not even read again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from assigner.model.keys import TopicPartition
from assigner.spark.sinks.columns import StateRow
from assigner.spark.sinks.fence import Fence


class Ledger(Protocol):
    def fences(self) -> dict[TopicPartition, Fence]:
        """Every partition that was written, or tried to be."""
        ...

    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StateRow]:
        """What their last owners left, of those partitions that have a state."""
        ...

    def reset(self, topic: str) -> None:
        """Forget a topic that was made anew, whose offsets began again, or whose epochs went back. Rows stay."""
        ...


def next_offsets(ledger: Ledger) -> dict[TopicPartition, int]:
    """The offset after the last row taken, for each partition with any."""
    return {tp: fence.next_offset for tp, fence in ledger.fences().items() if fence.next_offset}
