"""What the reader decides about batches: where each ends, and which ranges it reads.

`latest` is the one moment at which everything before `start` is known to be in Spark's commit log; so that is when
progress is reported and partitions are let go. `commit` would come a batch late, and for the last batch never.
The first call in a new process may be `ranges`, for a batch that the process before left unfinished: of that only what
nobody else has taken over is read again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from assigner.client import Unavailable
from assigner.errors import InvalidInput
from assigner.logs import get_logger
from assigner.model.keys import TopicPartition
from assigner.spark.kafka_offsets import DataLost, KafkaLog, report_loss
from assigner.spark.member.thread import MemberThread
from assigner.spark.options import SourceOptions
from assigner.spark.positions import (
    Holdings,
    OffsetRange,
    Owner,
    Position,
    Positions,
    advanced,
    ranges_between,
    read_positions,
    replayed,
    taken_up,
)
from assigner.spark.sinks.columns import StateRow
from assigner.spark.state.handover import (
    Control,
    beginning_at_states,
    controls_again,
    controls_between,
    restored_by,
    to_restore,
    with_states,
)
from assigner.spark.state.sink_record import sink_record

Json = dict[str, dict[str, int | str]]

_FIRST_SHARE = 10.0
"""Seconds a new member waits for its first partitions."""

_log = get_logger(__name__)


class Planner:
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._owner = Owner(options.group, options.member)
        self._log = KafkaLog(options)
        self._log.partitions(options.topics)
        self._sink = sink_record(options)
        self.link = MemberThread(options, self._log, self._sink)
        self._states: dict[TopicPartition, StateRow] | None = None
        """What was found when a batch's end was decided, until its rows are planned."""
        self._target: dict[TopicPartition, int] | None = None
        self._doubted: dict[TopicPartition, float] = {}
        self._turned = False
        self._planned = False
        self._committed: Mapping[str, Any] | None = None
        self.ends: dict[TopicPartition, int] = {}
        """Of the partitions that are held, when it was last asked."""

    # --- where a batch ends ------------------------------------------------------------------------------------------

    def latest(self, start: Mapping[str, Any], max_rows: int | None) -> Json:
        finished = read_positions(start, self._owner)
        self.link.finish()
        if not self._turned:
            self._begin(max_rows)
        holdings = self.link.call(lambda member: member.turn(finished))
        if self._options.control_rows:
            holdings = self._beginning_at_states(finished, holdings)
        now = taken_up(finished, holdings)
        self._limit_doubt(now.of.keys() - holdings.held.keys())
        self.ends = self._log.ends(holdings.held)
        now = self._without_loss(now)
        ends = self.ends if self._target is None else _no_further(self.ends, self._target)
        end = advanced(now, holdings.held, ends, max_rows).to_json()
        if end == start:
            self.link.finish()
        return end

    def _beginning_at_states(self, finished: Positions, holdings: Holdings) -> Holdings:
        missing = to_restore(finished, holdings)
        self._states = self._stored(missing)
        return beginning_at_states(holdings, missing, self._states)

    def _stored(self, partitions: list[TopicPartition]) -> dict[TopicPartition, StateRow]:
        return self._sink.states(partitions) if self._sink is not None else {}

    def read_to_here(self) -> None:
        """From now on nothing is new: batches end where the topics end now."""
        self._await_share(self._options.assigner_timeout, whole=True)
        self._target = self._log.ends(self._log.partitions(self._options.topics))

    def _begin(self, max_rows: int | None) -> None:
        """A query that reads everything at once has this one chance; others are only spared an empty batch."""
        patience = self._options.assigner_timeout
        if max_rows is None and self._target is None:
            self._await_share(patience, whole=True)
        else:
            self._await_share(min(_FIRST_SHARE, patience), whole=False)
        self._turned = True

    def _await_share(self, patience: float, *, whole: bool) -> None:
        try:
            self.link.call(lambda member: member.has_share(whole=whole), patience)
        except Unavailable as error:
            _log.warning("assignment_incomplete", error=str(error))

    def _limit_doubt(self, doubtful: Iterable[TopicPartition]) -> None:
        now = time.monotonic()
        self._doubted = {tp: self._doubted.get(tp, now) for tp in doubtful}
        for tp, since in self._doubted.items():
            if now - since > self._options.assigner_timeout:
                raise Unavailable(
                    f"the assigner at {','.join(self._options.assigner)} has not confirmed for "
                    f"{self._options.assigner_timeout:g} s who owns {tp}; check that it runs and that its consumer_ttl "
                    f"is shorter, or raise option assignerTimeout"
                )

    def _without_loss(self, now: Positions) -> Positions:
        behind = [tp for tp, end in self.ends.items() if end < now.of[tp].end]
        if not behind:
            return now
        # Readers that stop at open transactions may be behind one that does not.
        ends = self._log.ends(behind, uncommitted=True)
        kept, starts = dict(now.of), self._log.starts(behind)
        for tp in behind:
            at = now.of[tp]
            if ends[tp] < at.end:
                why = f"the log ends at {ends[tp]}: the topic was made anew or truncated"
                if self._options.control_rows:
                    raise DataLost(
                        f"the state of {tp} reaches to offset {at.end}, but {why}; reset the sink's record of the "
                        f"topic (ledger.reset) and start with another checkpointLocation"
                    )
                report_loss(tp, ends[tp], at.end, why, fail=self._options.fail_on_data_loss)
                kept[tp] = Position(at.epoch, starts[tp], starts[tp])
        return Positions(now.owner, kept)

    # --- what it reads -----------------------------------------------------------------------------------------------

    def batch(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[list[OffsetRange], list[Control]]:
        first, last = read_positions(start, self._owner), read_positions(end, self._owner)
        self._refuse_to_be_outrun(start)
        ranges, controls = self._planned_now(first, last) if self._turned else self._left_of(first, last)
        states = self._stored(restored_by(controls)) if self._states is None else self._states
        self._states = None
        self._planned = True
        return ranges, with_states(controls, states)

    def _planned_now(self, start: Positions, end: Positions) -> tuple[list[OffsetRange], list[Control]]:
        return ranges_between(start, end), self._controls(start, end)

    def _controls(self, start: Positions, end: Positions) -> list[Control]:
        return controls_between(start, end, self._options.snapshot_every) if self._options.control_rows else []

    def _left_of(self, start: Positions, end: Positions) -> tuple[list[OffsetRange], list[Control]]:
        wanted = ranges_between(start, end)
        keys = {one.tp: Position(one.epoch, one.first, one.first) for one in wanted}
        for one in self._controls(start, end):
            keys.setdefault(one.tp, Position(one.epoch, one.offset, one.offset))
        holdings = self.link.call(lambda member: member.settled(keys))
        controls: list[Control] = []
        if self._options.control_rows:
            holdings = beginning_at_states(holdings, (), {})
            controls = controls_again(start, end, holdings, self._options.snapshot_every)
        left = replayed(start, end, holdings)
        if len(left) < len(wanted):
            _log.info("batch_replayed_in_part", ranges=len(left), planned_ranges=len(wanted))
        return left, controls

    def committed(self, end: Mapping[str, Any]) -> None:
        self._committed = end

    def _refuse_to_be_outrun(self, start: Mapping[str, Any]) -> None:
        """Spark says `commit` between two batches, except when it writes its logs behind its own back."""
        if self._planned and self._committed != start:
            raise InvalidInput(
                "the query writes its progress asynchronously, so nobody can tell what it has finished; "
                "leave out option asyncProgressTrackingEnabled of writeStream"
            )


def _no_further(ends: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: min(end, target.get(tp, 0)) for tp, end in ends.items()}
