"""Reads the fences and states of the query's fenced sink for the source.

The options `fence.*` name the sink. If it can't be read the query fails, because it could not write to it either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from assigner.errors import InvalidInput, SourceUnavailable
from assigner.model.keys import TopicPartition
from assigner.spark.options import SourceOptions
from assigner.spark.sinks.columns import StateRow
from assigner.spark.sinks.fence import Fence
from assigner.spark.sinks.ledger import Ledger, ledger_of


class SinkUnreadable(SourceUnavailable):
    """The sink's fences or states can't be read."""


class EpochsWentBack(InvalidInput):
    """The sink was written under epochs that the assigner has not reached."""

    def __init__(self, tp: TopicPartition, granted: int, fence: Fence) -> None:
        super().__init__(
            f"the sink of options fence.* was written to under epoch {fence.epoch} of {tp}, and the assigner now "
            f"grants epoch {granted}: its store was lost or restored, or the sink is another group's. Every row "
            f"would be refused: correct the options, or reset the sink's fences of the topic (ledger.reset)"
        )


class SinkRecord:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def fences(self) -> dict[TopicPartition, Fence]:
        with _explained():
            return self._ledger.fences()

    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, StateRow]:
        with _explained():
            return self._ledger.states(partitions) if partitions else {}


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise SinkUnreadable(
            f"the sink of options fence.* can't be read: {error}; check that the driver's machine reaches it"
        ) from error


def sink_record(options: SourceOptions) -> SinkRecord | None:
    """Open the sink's record; None if the options name no sink."""
    ledger = ledger_of(options.fence, options.group)
    return None if ledger is None else SinkRecord(ledger)
