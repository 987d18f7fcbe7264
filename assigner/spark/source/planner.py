"""`Planner` decides where each batch of a query ends, and which ranges of offsets it reads.

`latest` is the one moment at which everything before `start` is known to be in Spark's commit log; so that is when
progress is reported and partitions are released. Spark's `commit` comes a batch late, and for the last batch never.
The first call in a new process may be `batch`, for a batch that the previous process left unfinished: of it, only the
partitions that no other member has taken over are read again.
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
from assigner.spark.member.member import MemberStatistics
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
    with_holdings,
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

_FIRST_SHARE_SECONDS = 10.0
"""How long a new member waits for its first partitions."""

_log = get_logger(__name__)


class Planner:
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._owner = Owner(options.group, options.member)
        self._log = KafkaLog(options)
        self._log.partitions(options.topics)
        self._sink = sink_record(options)
        self.member_thread = MemberThread(options, self._log, self._sink)
        self._states: dict[TopicPartition, StateRow] | None = None
        """The states to restore, read when the end of a batch was decided, until its rows are planned."""
        self._target: dict[TopicPartition, int] | None = None
        self._unknown_since: dict[TopicPartition, float] = {}
        self._has_begun = False
        self._planned = False
        self._committed: Mapping[str, Any] | None = None
        self.ends: dict[TopicPartition, int] = {}
        """Where the logs of the held partitions ended when Kafka was last asked."""

    def statistics(self) -> MemberStatistics:
        return self.member_thread.statistics()

    # --- where a batch ends ------------------------------------------------------------------------------------------

    def latest(self, start: Mapping[str, Any], max_rows: int | None) -> Json:
        finished = read_positions(start, self._owner)
        self.member_thread.end_batch()
        if not self._has_begun:
            self._begin(max_rows)
        holdings = self.member_thread.call(lambda member: member.begin_batch(finished))
        if self._options.control_rows:
            holdings = self._beginning_at_states(finished, holdings)
        now = with_holdings(finished, holdings)
        self._limit_unknown_owners(now.of.keys() - holdings.held.keys())
        self.ends = self._log.ends(holdings.held)
        now = self._without_loss(now)
        ends = self.ends if self._target is None else _limited(self.ends, self._target)
        end = advanced(now, holdings.held, ends, max_rows).to_json()
        if end == start:
            self.member_thread.end_batch()
        return end

    def _beginning_at_states(self, finished: Positions, holdings: Holdings) -> Holdings:
        missing = to_restore(finished, holdings)
        self._states = self._stored(missing)
        return beginning_at_states(holdings, missing, self._states)

    def _stored(self, partitions: list[TopicPartition]) -> dict[TopicPartition, StateRow]:
        return self._sink.states(partitions) if self._sink is not None else {}

    def read_to_here(self) -> None:
        """Set the present end of the topics as the end of all batches: later records are not read."""
        self._wait_for_share(self._options.assigner_timeout, whole=True)
        self._target = self._log.ends(self._log.partitions(self._options.topics))

    def _begin(self, max_rows: int | None) -> None:
        """Wait for the first partitions: a query that reads everything in one batch gets no others."""
        timeout = self._options.assigner_timeout
        if max_rows is None and self._target is None:
            self._wait_for_share(timeout, whole=True)
        else:
            self._wait_for_share(min(_FIRST_SHARE_SECONDS, timeout), whole=False)
        self._has_begun = True

    def _wait_for_share(self, timeout: float, *, whole: bool) -> None:
        try:
            self.member_thread.call(lambda member: member.wait_for_share(whole=whole), timeout)
        except Unavailable as error:
            _log.warning("assignment_incomplete", error=str(error))

    def _limit_unknown_owners(self, unknown: Iterable[TopicPartition]) -> None:
        now = time.monotonic()
        self._unknown_since = {tp: self._unknown_since.get(tp, now) for tp in unknown}
        for tp, since in self._unknown_since.items():
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
        self._refuse_async_progress(start)
        ranges, controls = self._planned_now(first, last) if self._has_begun else self._replanned(first, last)
        states = self._stored(restored_by(controls)) if self._states is None else self._states
        self._states = None
        self._planned = True
        return ranges, with_states(controls, states)

    def _planned_now(self, start: Positions, end: Positions) -> tuple[list[OffsetRange], list[Control]]:
        return ranges_between(start, end), self._controls(start, end)

    def _controls(self, start: Positions, end: Positions) -> list[Control]:
        return controls_between(start, end, self._options.snapshot_every) if self._options.control_rows else []

    def _replanned(self, start: Positions, end: Positions) -> tuple[list[OffsetRange], list[Control]]:
        wanted = ranges_between(start, end)
        finished = {one.tp: Position(one.epoch, one.first, one.first) for one in wanted}
        for one in self._controls(start, end):
            finished.setdefault(one.tp, Position(one.epoch, one.offset, one.offset))
        holdings = self.member_thread.call(lambda member: member.wait_until_owned(finished))
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

    def _refuse_async_progress(self, start: Mapping[str, Any]) -> None:
        """Raise for asynchronous progress tracking: then Spark does not call `commit` between two batches."""
        if self._planned and self._committed != start:
            raise InvalidInput(
                "the query writes its progress asynchronously, so nobody can tell what it has finished; "
                "leave out option asyncProgressTrackingEnabled of writeStream"
            )


def _limited(ends: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: min(end, target.get(tp, 0)) for tp, end in ends.items()}
