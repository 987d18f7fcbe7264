"""Collects the loads that consumers report, and writes them to the store once per interval.

A consumer reports to the instance that serves its stream, as often as it likes. The group's leader may be at another
instance and reads a compact record per topic, which each instance rewrites at most once per interval and only if a load
changed. A reported load counts only for a partition that the caller's own session owns.

Not promised: that a report is ever written. A crash loses the reports of an interval, and only balance depends on them.
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
"""Asked of each consumer, so that a single outlier does not weigh much."""
MOST_REPORTS = 500.0
"""Reports a second that one instance asks of all its consumers together."""

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
        """How many partitions samples are kept for."""
        return len(self._samples)

    # --- reports in ----------------------------------------------------------------------------------------------

    def take(self, state: GroupState, consumer: Consumer, report: LoadReport, streams: int) -> LoadReceipt:
        """Take a consumer's report. `streams`: how many consumers this instance serves. Raises `LimitReached`."""
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

    # --- records out ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._settings.interval)
            for group in self._samples.groups:
                await self._write_group(group)
            self._samples.forget(self._clock.now())

    async def _write_group(self, group: str) -> None:
        try:
            now, wall = self._clock.now(), self._clock.wall()
            for change in self._samples.partition_changes(group, now, wall):
                if await self._write(self._keys.topic_loads(group, change.topic, change.block), change):
                    self._samples.partitions_written(group, change, now)
            nodes = self._samples.node_change(group, now, wall)
            if nodes and await self._write(self._keys.node_loads(group), nodes):
                self._samples.nodes_written(group, nodes, now)
        except StoreError as error:
            # The samples stay in memory and are written at the next interval.
            log.info("load_write_failed", group=group, error=str(error))
            self._metrics.loads_written("failed")
        except Exception:
            # Loads are advice: a failure here must not end anything else.
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
    """Select the reported loads of partitions that the consumer owns: (topic, partitions, loads)."""
    for reported in topics:
        if reported.topic not in state.topics:
            continue
        count = state.topics[reported.topic].record.partition_count
        numbers, loads = [], []
        for number, load in zip(reported.partitions, reported.loads, strict=True):
            held = state.assignments.get(TopicPartition(reported.topic, number)) if number < count else None
            if held and (held.record.owner, held.record.session) == (consumer.consumer_name, consumer.session):
                numbers.append(number)
                loads.append(load)
        if numbers:
            yield reported.topic, numbers, loads
