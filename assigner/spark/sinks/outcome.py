"""`Outcome` counts what a sink did with a batch: rows written, skipped because they were there already, and refused."""

from __future__ import annotations

import msgspec

from assigner.errors import AssignerError
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.spark.sinks.fence import FenceDecision, Slice

_log = get_logger(__name__)


class StagedRowsLost(AssignerError):
    """Staged rows have disappeared. Nothing was written; the batch can be repeated."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was committed. `written + skipped + refused` are its rows."""

    batch_id: int
    written: int = 0
    skipped: int = 0
    """Rows that the sink had already: a replay, or rows that a previous owner wrote and did not report."""
    refused: int = 0
    """Rows with a fenced epoch."""
    stale: tuple[Slice, ...] = ()
    """The slices that were refused."""
    states: int = 0
    """States of partitions that were stored."""


class Totals(msgspec.Struct, kw_only=True):
    """Sums over all batches of one sink object."""

    batches: int = 0
    written: int = 0
    skipped: int = 0
    refused: int = 0

    def add(self, outcome: Outcome) -> None:
        self.batches += 1
        self.written += outcome.written
        self.skipped += outcome.skipped
        self.refused += outcome.refused


def outcome_of(batch_id: int, slices: list[Slice], decision: FenceDecision, *, written: int, states: int) -> Outcome:
    refused = sum(part.rows for part in decision.stale)
    skipped = sum(part.rows for part in slices) - refused - written
    return Outcome(
        batch_id=batch_id, written=written, skipped=skipped, refused=refused, stale=decision.stale, states=states
    )


def log_outcome(sink: str, outcome: Outcome, fences: FenceDecision) -> None:
    """Log refused rows as a warning, skipped ones as information."""
    for part in outcome.stale:
        in_force = fences.fences[TopicPartition(part.topic, part.partition)].epoch
        _log.warning(
            "stale_rows_rejected",
            sink=sink,
            partition=str(part.tp),
            epoch=part.epoch,
            current_epoch=in_force,
            rows=part.rows,
        )
    if outcome.skipped:
        _log.info("duplicate_rows_skipped", sink=sink, batch=outcome.batch_id, rows=outcome.skipped)
