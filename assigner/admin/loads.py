"""Publishes weights for operators and batch jobs, and describes the recorded loads of a group.

Published weights go into the same records as consumers' reports, and the newer one counts. Any instance serves the
calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import anyio.lowlevel
import numpy as np

from assigner.api import LoadDescription, NodeLoad, PartitionLoad, Weights
from assigner.clock import Clock
from assigner.core.group import GroupState
from assigner.core.loads.records import BLOCK, PartitionChange
from assigner.core.loads.weights import RecordedLoads, TopicSizes
from assigner.errors import InvalidInput, UnreadableRecord
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Loads, decode
from assigner.storage.load_records import write
from assigner.storage.mirror import Mirrors
from assigner.storage.multi_get import read_topics
from assigner.store import Store, read_all
from assigner.strategy import FloatArray

_PAGE = 20
"""Records of loads per page: each may have some hundred kilobytes."""


class LoadOperations:
    def __init__(self, store: Store, keys: Keys, mirrors: Mirrors, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._mirrors = mirrors
        self._clock = clock

    # --- publishing ----------------------------------------------------------------------------------------------

    async def publish(self, group: str, weights: Sequence[Weights], valid_for: float, *, keep_others: bool) -> int:
        """Write weights, a topic's blocks one after the other. Returns how many partitions got a weight."""
        topics = await read_topics(self._store, self._keys.group(group), (run.topic for run in weights))
        counts = {name: topic.partition_count for name, topic in topics.items()}
        loads = _by_topic(counts, weights)
        until = self._clock.wall() + valid_for
        for topic, of_topic in loads.items():
            for change in _changes(topic, of_topic, until, counts[topic], replaces=not keep_others):
                key = self._keys.topic_loads(group, topic, change.block)
                await write(self._store, key, change, self._clock.wall())
        return sum(len(of_topic) for of_topic in loads.values())

    # --- looking -------------------------------------------------------------------------------------------------

    async def recorded(self, group: str) -> RecordedLoads:
        """Read the recorded loads from the store."""
        prefix = self._keys.loads(group)
        page = await read_all(self._store, prefix, page_size=_PAGE)
        records: dict[str, Loads] = {}
        unreadable: dict[str, str] = {}
        for entry in page.entries:
            name = entry.key[len(prefix) :]
            try:
                records[name] = decode(Loads, entry.value)[0]
            except UnreadableRecord as error:
                unreadable[name] = str(error)
        recorded = RecordedLoads(records)
        recorded.unreadable.update(unreadable)
        return recorded

    async def describe(self, group: str, limit: int) -> LoadDescription:
        recorded = await self.recorded(group)
        async with self._mirrors.of(group) as mirror:
            state, wall = mirror.state, self._clock.wall()
            sizes = [(topic, state.topics[topic].record.partition_count) for topic in sorted(state.topics)]
            loads = recorded.loads(sizes, wall)
            total = float(np.nansum(loads))
            heaviest = tuple(_heaviest(state, sizes, loads, total, limit))
            busiest = await _busiest(state, sizes, loads, recorded.nodes(wall), total)
            return LoadDescription(
                used=state.options.use_loads,
                fallback=_fallback(state, recorded.weights(sizes, wall) is not None),
                partitions=len(loads),
                known=int((~np.isnan(loads)).sum()),
                total=total,
                at=recorded.at,
                heaviest=heaviest,
                busiest=tuple(busiest[:limit]),
                unreadable=tuple(f"{name}: {why}" for name, why in sorted(recorded.unreadable.items())),
            )


def _by_topic(counts: Mapping[str, int], weights: Iterable[Weights]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for run in weights:
        count = counts[run.topic]
        if run.first + len(run.weights) > count:
            raise InvalidInput(
                f"weights of {run.topic!r} run up to partition {run.first + len(run.weights) - 1}, "
                f"but it has {count}; leave out the rest"
            )
        found.setdefault(run.topic, {}).update(enumerate(run.weights, run.first))
    return found


def _changes(
    topic: str, loads: dict[int, float], until: float, count: int, *, replaces: bool
) -> Iterator[PartitionChange]:
    """Convert weights to changes of blocks; without `keep_others` also of blocks for which no weight is given."""
    numbers = np.asarray(sorted(loads), np.int32)
    values = np.asarray([loads[number] for number in numbers.tolist()], np.float64)
    for block in range(-(-count // BLOCK)):
        mine = numbers // BLOCK == block
        if mine.any() or replaces:
            rows = numbers[mine] - block * BLOCK
            yield PartitionChange(topic, block, rows, values[mine], np.full(len(rows), until), replaces)


def _fallback(state: GroupState, weighed: bool) -> str:
    if not state.options.use_loads:
        return "the group's option use_loads is off"
    return "" if weighed else "less than half of the partitions have a load that counts, or all loads are zero"


def _heaviest(
    state: GroupState, sizes: TopicSizes, loads: FloatArray, total: float, limit: int
) -> Iterator[PartitionLoad]:
    known = np.flatnonzero(~np.isnan(loads))
    order = known[np.argsort(-loads[known], kind="stable")][:limit]
    starts = np.cumsum([0, *(count for _, count in sizes)])
    for flat in order.tolist():
        row = int(np.searchsorted(starts, flat, "right")) - 1
        tp = TopicPartition(sizes[row][0], flat - int(starts[row]))
        held = state.assignments.get(tp)
        share = float(loads[flat]) / total if total else 0.0
        yield PartitionLoad(tp, float(loads[flat]), share, held.record.owner if held else "")


async def _busiest(
    state: GroupState, sizes: TopicSizes, loads: FloatArray, busy: dict[str, float], total: float
) -> list[NodeLoad]:
    """List every consumer with the load of its partitions, the heaviest first."""
    starts: dict[str, int] = {}
    begin = 0
    for topic, count in sizes:
        starts[topic] = begin
        begin += count
    found = []
    for name in sorted(state.consumers):
        owned = state.owned.get(name, ())
        flat = [starts[tp.topic] + tp.partition for tp in owned if tp.topic in starts]
        carried = float(np.nansum(loads[[number for number in flat if number < len(loads)]])) if flat else 0.0
        found.append(NodeLoad(name, busy.get(name, float("nan")), len(owned), carried / total if total else 0.0))
        # A consumer may own many thousand partitions.
        await anyio.lowlevel.checkpoint()
    return sorted(found, key=lambda node: (-node.share, node.consumer))
