"""Takes what consumers report of their load, keeps it in memory, and writes it down now and then.

Consumers report to the instance they are at, as often as they like; what the group's leader, maybe on another instance,
gets to see is a compact record per topic, which each instance rewrites at most once per interval, and only if there is
something new in it. Reports count only for partitions that the caller's own session owns.

Not promised: that a report is ever written. A crash loses an interval of them, and nothing but balance depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.lowlevel
import numpy as np

from assigner.api import LoadReceipt, LoadReport, TopicLoads
from assigner.clock import Clock
from assigner.core.group import GroupState
from assigner.core.loads.records import NodeChange, PartitionChange
from assigner.core.loads.samples import LoadSamples
from assigner.core.loads.weights import LoadSettings
from assigner.errors import StoreError, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Consumer
from assigner.observability.metrics import Metrics
from assigner.storage.load_records import write
from assigner.store import Store

REPORTS_PER_INTERVAL = 4
"""Wanted of each consumer, so that a single odd one does not count for much."""
MOST_REPORTS = 500.0
"""A second, wanted by one instance of all its consumers together."""

log = get_logger("assigner.members.load_reports")


class LoadReports:
    def __init__(self, store: Store, keys: Keys, clock: Clock, metrics: Metrics, settings: LoadSettings) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._samples = LoadSamples(settings)

    def __len__(self) -> int:
        """Partitions there is room for now."""
        return len(self._samples)

    # --- being told ----------------------------------------------------------------------------------------------

    def take(self, state: GroupState, consumer: Consumer, report: LoadReport, streams: int) -> LoadReceipt:
        """`streams`: consumers at this instance. Raises `LimitReached`."""
        group, now = state.keys.group, self._clock.now()
        taken = 0
        for topic, numbers, loads in _owned(state, consumer, report.topics):
            count = state.topics[topic].record.partition_count
            self._samples.take(group, topic, count, np.asarray(numbers, np.int32), np.asarray(loads), now)
            taken += len(numbers)
        if report.node is not None:
            self._samples.take_node(group, consumer.consumer_name, report.node, now)
        self._metrics.load_reported(group)
        return LoadReceipt(taken, max(self._settings.interval / REPORTS_PER_INTERVAL, streams / MOST_REPORTS))

    # --- writing it down -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._settings.interval)
            for group in self._samples.groups:
                await self._write_group(group)
            self._samples.forget(self._clock.now())

    async def _write_group(self, group: str) -> None:
        try:
            now, wall = self._clock.now(), self._clock.wall()
            for change in self._samples.partition_news(group, now, wall):
                if await self._write(self._keys.topic_loads(group, change.topic, change.block), change):
                    self._samples.partitions_written(group, change, now)
            nodes = self._samples.node_news(group, now, wall)
            if nodes and await self._write(self._keys.node_loads(group), nodes):
                self._samples.nodes_written(group, nodes, now)
        except StoreError as error:
            # Everything is still there to be written the next time.
            log.info("load_write_failed", group=group, error=str(error))
            self._metrics.loads_written("failed")
        except Exception:
            # Advice must not take anything else down with it.
            log.exception("load_write_failed", group=group)
            self._metrics.loads_written("failed")

    async def _write(self, key: str, change: PartitionChange | NodeChange) -> bool:
        try:
            await write(self._store, key, change, self._clock.wall())
        except UnreadableRecord as error:
            log.error("record_unreadable", key=key, error=str(error))
            self._metrics.loads_written("unreadable")
            return False
        self._metrics.loads_written("ok")
        return True


def _owned(
    state: GroupState, consumer: Consumer, topics: tuple[TopicLoads, ...]
) -> Iterator[tuple[str, list[int], list[float]]]:
    """What the report says of partitions that its sender owns."""
    for told in topics:
        if told.topic not in state.topics:
            continue
        count = state.topics[told.topic].record.partition_count
        numbers, loads = [], []
        for number, load in zip(told.partitions, told.loads, strict=True):
            held = state.assignments.get(TopicPartition(told.topic, number)) if number < count else None
            if held and (held.record.owner, held.record.session) == (consumer.consumer_name, consumer.session):
                numbers.append(number)
                loads.append(load)
        if numbers:
            yield told.topic, numbers, loads
