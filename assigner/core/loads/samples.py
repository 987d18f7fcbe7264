"""Smooths the loads that consumers report to this instance, and decides which of them are worth writing.

Exponential smoothing over time: a sample's weight depends on the time since the one before, so a consumer that reports
twice as often counts no more. A record is worth a write when one of its loads changed enough, or would soon be stale;
then everything reported since goes with it. Memory is bounded: above a limit reports are refused, and loads that nobody
reports any more are dropped.

Not promised: that the present owner's report wins. Two instances may write the load of a partition that just moved, in
either order; the owner's next write corrects it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assigner.core.group import MAX_PARTITIONS
from assigner.core.loads.records import BLOCK, MAX_NODES, NodeChange, PartitionChange
from assigner.core.loads.weights import LoadSettings
from assigner.errors import LimitReached
from assigner.strategy import FloatArray, IntArray

_NEVER = -np.inf
_COLUMNS = {"load": np.nan, "seen": _NEVER, "written": np.nan, "written_at": _NEVER}


class _Samples:
    """Samples in arrays, with one row per partition or per node."""

    def __init__(self, size: int) -> None:
        self.load: FloatArray = np.full(size, np.nan)
        self.seen: FloatArray = np.full(size, _NEVER)
        self.written: FloatArray = np.full(size, np.nan)
        """The load as this instance last wrote it."""
        self.written_at: FloatArray = np.full(size, _NEVER)

    def __len__(self) -> int:
        return len(self.load)

    def resize(self, size: int) -> None:
        kept = min(size, len(self))
        for name, empty in _COLUMNS.items():
            column = np.full(size, empty)
            column[:kept] = getattr(self, name)[:kept]
            setattr(self, name, column)

    def only(self, rows: IntArray) -> _Samples:
        kept = _Samples(0)
        for name in _COLUMNS:
            setattr(kept, name, getattr(self, name)[rows])
        return kept

    def take(self, rows: IntArray, loads: FloatArray, now: float, settings: LoadSettings) -> None:
        age = now - self.seen[rows]
        share = np.where(age < settings.stale_after, -np.expm1(-age / settings.smoothing), 1.0)
        before = np.where(np.isnan(self.load[rows]), loads, self.load[rows])
        self.load[rows] = before + share * (loads - before)
        self.seen[rows] = now

    def mean(self) -> float:
        known = self.load[~np.isnan(self.load)]
        return float(known.mean()) if len(known) else 0.0

    def due(self, rows: slice, mean: float, now: float, settings: LoadSettings) -> IntArray:
        """Rows to be written, counted from the beginning of `rows`: none, or all that were reported since."""
        load, seen = self.load[rows], self.seen[rows]
        written, written_at = self.written[rows], self.written_at[rows]
        reported = (seen > written_at) & (now - seen < settings.stale_after)
        if not reported.any():
            return np.empty(0, np.int32)
        matters = settings.threshold * np.fmax(written, mean)
        urgent = np.isnan(written) | (np.abs(load - written) > matters) | (now - written_at >= settings.stale_after / 2)
        return np.flatnonzero(reported).astype(np.int32) if (reported & urgent).any() else np.empty(0, np.int32)

    def mark(self, rows: IntArray, loads: FloatArray, now: float) -> None:
        """Record that these loads were written, as of `now`."""
        self.written[rows], self.written_at[rows] = loads, now

    def is_silent(self, now: float, settings: LoadSettings) -> bool:
        return not (now - self.seen < settings.stale_after).any()


class _Group:
    def __init__(self) -> None:
        self.topics: dict[str, _Samples] = {}
        self.rows: dict[str, int] = {}
        """Node -> its row."""
        self.nodes = _Samples(0)

    @property
    def partitions(self) -> int:
        return sum(len(samples) for samples in self.topics.values())


class LoadSamples:
    """The samples reported to this instance, by group."""

    def __init__(self, settings: LoadSettings, *, most: int = MAX_PARTITIONS, most_nodes: int = MAX_NODES) -> None:
        """`most`: partitions of a group. Those of all groups together may be four times as many."""
        self._settings = settings
        self._most = most
        self._most_nodes = most_nodes
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return sum(group.partitions for group in self._groups.values())

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._groups)

    # --- reports -------------------------------------------------------------------------------------------------

    def take(self, group: str, topic: str, count: int, numbers: IntArray, loads: FloatArray, now: float) -> None:
        """Add loads of some of the topic's `count` partitions. Raises `LimitReached`."""
        known = self._groups.setdefault(group, _Group())
        samples = known.topics.get(topic)
        more = count - (len(samples) if samples else 0)
        if more > 0:
            self._check_room(group, known.partitions + more, len(self) + more)
        if samples is None:
            samples = known.topics[topic] = _Samples(count)
        elif more:
            samples.resize(count)
        samples.take(numbers, loads, now, self._settings)

    def _check_room(self, group: str, partitions: int, overall: int) -> None:
        if partitions > self._most or overall > 4 * self._most:
            raise LimitReached(
                f"loads of {self._most} partitions of a group are kept here, and of {4 * self._most} of all groups; "
                f"with those of {group!r} there would be {partitions} and {overall}: report to another instance"
            )

    def take_node(self, group: str, name: str, load: float, now: float) -> None:
        known = self._groups.setdefault(group, _Group())
        row = known.rows.get(name)
        if row is None:
            if len(known.rows) >= self._most_nodes:
                raise LimitReached(f"{self._most_nodes} nodes of group {group!r} report here; report elsewhere")
            row = known.rows[name] = len(known.rows)
            if row >= len(known.nodes):
                known.nodes.resize(max(8, 2 * row))
        known.nodes.take(np.asarray([row], np.int32), np.asarray([load]), now, self._settings)

    # --- writes --------------------------------------------------------------------------------------------------

    def partition_changes(self, group: str, now: float, wall: float) -> Iterator[PartitionChange]:
        """The changes that are worth writing now, a record at a time."""
        for topic, samples in list(self._groups[group].topics.items()):
            mean = samples.mean()
            for first in range(0, len(samples), BLOCK):
                rows = samples.due(slice(first, first + BLOCK), mean, now, self._settings)
                if len(rows):
                    until = self._until(samples.seen[first + rows], now, wall)
                    yield PartitionChange(topic, first // BLOCK, rows, samples.load[first + rows], until)

    def partitions_written(self, group: str, change: PartitionChange, now: float) -> None:
        """`now`: when the change was taken; what was reported since is still to be written."""
        samples = self._groups[group].topics.get(change.topic) if group in self._groups else None
        rows = change.block * BLOCK + change.numbers
        if samples is not None and int(rows[-1]) < len(samples):
            samples.mark(rows, change.loads, now)

    def node_change(self, group: str, now: float, wall: float) -> NodeChange | None:
        known = self._groups[group]
        rows = known.nodes.due(slice(None), known.nodes.mean(), now, self._settings).tolist()
        if not rows:
            return None
        until = self._until(known.nodes.seen, now, wall)
        names = {row: name for name, row in known.rows.items()}
        return NodeChange({names[row]: (float(known.nodes.load[row]), float(until[row])) for row in rows})

    def nodes_written(self, group: str, change: NodeChange, now: float) -> None:
        known = self._groups.get(group)
        for name, (load, _) in change.loads.items():
            if known is not None and name in known.rows:
                known.nodes.mark(np.asarray([known.rows[name]], np.int32), np.asarray([load]), now)

    def _until(self, seen: FloatArray, now: float, wall: float) -> FloatArray:
        return wall + self._settings.stale_after - (now - seen)

    # --- forgetting ----------------------------------------------------------------------------------------------

    def forget(self, now: float) -> None:
        """Drop topics and nodes whose last report is stale."""
        for group, known in list(self._groups.items()):
            for topic, samples in list(known.topics.items()):
                if samples.is_silent(now, self._settings):
                    del known.topics[topic]
            self._forget_nodes(known, now)
            if not known.topics and not known.rows:
                del self._groups[group]

    def _forget_nodes(self, known: _Group, now: float) -> None:
        since = now - self._settings.stale_after
        recent = {name: row for name, row in known.rows.items() if known.nodes.seen[row] > since}
        if len(recent) < len(known.rows):
            known.nodes = known.nodes.only(np.asarray(list(recent.values()), np.int32))
            known.rows = {name: row for row, name in enumerate(recent)}
