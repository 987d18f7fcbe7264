"""Turns recorded loads into what strategies take: one weight per partition, or none, for an unweighted plan.

`RecordedLoads` is what the records say at a given time. `GroupLoads` is what a leader plans by: the weights in force
are replaced only when they have shifted enough, and not too often. So all plans in between, for any cause, use
the same weights and move nothing for load's sake.

Not promised: that a load is what it was a moment ago. Loads are advice; losing them costs balance and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from assigner.core.loads.records import BLOCK, Timed, read
from assigner.errors import UnreadableRecord
from assigner.model.keys import NODES, encode_segment
from assigner.model.records import Loads
from assigner.strategy import BoolArray, FloatArray

TopicSizes = Sequence[tuple[str, int]]
"""Topics with their partition counts, in the order of a problem's flat arrays."""

ENOUGH = 0.5
"""Share of partitions that must have a current load; with fewer, plans are unweighted."""
FLOOR = 0.01
"""Least weight, as a share of the mean: weights are positive, and an idle partition still costs something."""
SHIFT = 0.1
"""Weights count as changed when some member's load may have changed by more than this part of the mean member's."""


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How loads are smoothed, stored and used. Times in seconds."""

    interval: float = 60.0
    """Between two writes of one record by one instance, at least."""
    smoothing: float = 60.0
    """Time in which a new load makes up about two thirds of what is known of it."""
    threshold: float = 0.1
    """Relative change from which on a load is worth writing."""
    stale_after: float = 600.0
    """How long a reported load counts."""
    rebalance_interval: float = 300.0
    """Between two changes of the weights that plans are made by, at least."""


class RecordedLoads:
    """The records of one group, by the rest of their keys. Those that can't be read are left out."""

    def __init__(self, records: Mapping[str, Loads] | None = None, before: RecordedLoads | None = None) -> None:
        """`before`: what was known, so that only records that changed are read."""
        self.unreadable: dict[str, str] = {}
        self.at = 0
        """Wall time of the last write."""
        self._read: dict[str, tuple[Loads, Timed]] = {}
        self._blocks: dict[str, list[tuple[int, Timed]]] = {}
        self._nodes: dict[str, int] = {}
        self._node_loads = Timed(np.empty(0), np.empty(0))
        known = before._read if before else {}
        for name, record in (records or {}).items():
            try:
                self._add(name, record, known.get(name))
            except UnreadableRecord as error:
                self.unreadable[name] = str(error)

    def _add(self, name: str, record: Loads, known: tuple[Loads, Timed] | None) -> None:
        if known is None or known[0] is not record:
            _check_identity(name, record)
            known = record, read(record)
        self._read[name] = known
        if record.topic:
            self._blocks.setdefault(record.topic, []).append((record.first, known[1]))
        else:
            self._nodes = {node: number for number, node in enumerate(record.nodes)}
            self._node_loads = known[1]
        self.at = max(self.at, record.at)

    def loads(self, topics: TopicSizes, wall: float) -> FloatArray:
        """The reported load of every partition; NaN where none is current."""
        flat = np.full(sum(count for _, count in topics), np.nan)
        begin = 0
        for topic, count in topics:
            for first, timed in self._blocks.get(topic, ()):
                now = timed.at(wall)[: max(0, count - first)]
                flat[begin + first : begin + first + len(now)] = now
            begin += count
        return flat

    def weights(self, topics: TopicSizes, wall: float) -> FloatArray | None:
        """Weights of mean 1 for every partition. None: too little is known, or nothing has any load."""
        flat = self.loads(topics, wall)
        known = ~np.isnan(flat)
        total = float(flat[known].sum())
        if not total > 0 or known.sum() < ENOUGH * len(flat):
            return None
        filled = _filled(flat, known, [count for _, count in topics])
        return np.asarray(np.maximum(filled / filled.mean(), FLOOR))

    def busy(self, consumer: str, wall: float) -> float:
        """The load that the consumer's node reported; NaN if it reported none lately."""
        number = self._nodes.get(consumer)
        return float("nan") if number is None else self._node_loads.one(number, wall)

    def nodes(self, wall: float) -> dict[str, float]:
        now = self._node_loads.at(wall)
        return {name: load for name, number in self._nodes.items() if (load := float(now[number])) == load}


def _check_identity(name: str, record: Loads) -> None:
    block = f"/{record.first // BLOCK}" if record.first else ""
    if name != (encode_segment(record.topic) + block if record.topic else NODES):
        raise UnreadableRecord(f"the record is about {record.topic or 'nodes'} from {record.first}, its key is not")


def _filled(flat: FloatArray, known: BoolArray, counts: Iterable[int]) -> FloatArray:
    """Give partitions without a load the mean of their topic, or that of all topics."""
    filled = flat.copy()
    overall = float(flat[known].mean())
    begin = 0
    for count in counts:
        part, reported = filled[begin : begin + count], known[begin : begin + count]
        if not reported.all():
            part[~reported] = float(part[reported].mean()) if reported.any() else overall
        begin += count
    return filled


class GroupLoads:
    """The loads that a leader plans by. Call `update` with recorded loads, then `wanted_at`, and `take_up` when a plan
    begins."""

    def __init__(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._recorded = RecordedLoads()
        self._topics: tuple[tuple[str, int], ...] | None = None
        """The topics of the weights in force; None: before the first plan."""
        self._weights: FloatArray | None = None
        self._not_before = -np.inf
        self._looked = -np.inf

    def update(self, records: Mapping[str, Loads]) -> Mapping[str, str]:
        """Replace the recorded loads. Returns those that can't be read, and why."""
        self._recorded = RecordedLoads(records, self._recorded)
        return self._recorded.unreadable

    def weights(self, topics: TopicSizes, now_wall: float) -> FloatArray | None:
        """The weights in force, in the order of the topics; None: unweighted."""
        if tuple(topics) != self._topics:
            return self._recorded.weights(topics, now_wall)
        return self._weights

    def busy(self, consumer: str, now_wall: float) -> float:
        return self._recorded.busy(consumer, now_wall)

    def wanted_at(self, topics: TopicSizes, members: int, now: float, wall: float) -> float | None:
        """When to check again, or to plan for load's sake if that is now; None: the weights in force are good
        enough."""
        if tuple(topics) != self._topics:
            return None
        # Computing the weights of a large group takes a while, and loads are not written more often than that.
        again = -np.inf if self._weights is None else self._looked + self._settings.interval
        due = max(self._not_before, again)
        if now < due:
            return due
        self._looked = now
        return now if self._has_shifted(self._recorded.weights(topics, wall), members) else None

    def take_up(self, topics: TopicSizes, members: int, now: float, wall: float, *, at_once: bool = False) -> bool:
        """Put the recorded loads in force if it is time to, or `at_once`. Returns whether that may move partitions."""
        first, same = self._topics is None, tuple(topics) == self._topics
        if same and now < self._not_before and not at_once:
            return False
        weights = self._recorded.weights(topics, wall)
        if same and not self._has_shifted(weights, members):
            return False
        # Other topics need other weights at once, but they are why the plan is made.
        self._topics, self._weights = tuple(topics), weights
        matters = same or (first and weights is not None)
        if matters:
            self._not_before = now + self._settings.rebalance_interval
        return matters

    def _has_shifted(self, weights: FloatArray | None, members: int) -> bool:
        """Whether the loads changed enough to plan. The sum over partitions bounds any member's change."""
        before = self._weights
        if weights is None or before is None:
            return (weights is None) != (before is None)
        return float(np.abs(weights - before).sum()) > SHIFT * len(weights) / max(1, members)
