"""Generates sample data for the pipelines: loads with hot partitions and a daily cycle, lag with a slow consumer.

The same seed gives the same data. `sample_ownership` generates ownership logs, `traces` membership traces.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa

from assigner.spark.jobs.sample_ownership import BEGIN_US, SECOND, SampleLog

SLOW = "worker-3"
"""The member of this name is slow, so its lag grows."""


def load_samples(*, seed: int = 1, groups: int = 2, partitions: int = 192, hours: int = 24) -> pa.Table:
    """Generate the traffic of each partition every five minutes. One partition in fifty is hot; all follow a daily
    cycle."""
    rng = np.random.default_rng(seed)
    steps = hours * 12
    base = rng.lognormal(0.0, 0.6, (groups, partitions)) * 1e6
    base[:, ::50] *= 20
    hour = np.arange(steps) / 12
    daily_cycle = 1.0 + 0.8 * np.sin((hour - 9) / 24 * 2 * np.pi)
    amounts = base[:, :, None] * daily_cycle * rng.uniform(0.7, 1.3, (groups, partitions, steps)) * 300
    group, partition, step = (axis.ravel() for axis in np.indices(amounts.shape))
    return pa.table(
        {
            "ts_us": BEGIN_US + step.astype(np.int64) * 300 * SECOND,
            "group": pa.array([f"group-{number}" for number in group]),
            "topic": pa.array([f"topic-{number // 64}" for number in partition]),
            "partition": (partition % 64).astype(np.int32),
            "bytes": amounts.ravel().astype(np.int64),
            "records": (amounts.ravel() / 500).astype(np.int64),
            "lag": rng.integers(0, 1_000, len(step)),
        }
    )


def lag_samples(log: SampleLog, *, seed: int = 1, every: float = 15.0) -> pa.Table:
    """Generate the lag of each partition of an ownership log: it grows while the partition has no owner, and slowly
    under `SLOW`."""
    rng = np.random.default_rng(seed)
    histories: defaultdict[tuple[str, str, int], list[tuple[int, int, str, str]]] = defaultdict(list)
    for ts_us, group, topic, partition, member, _, epoch, event, *_ in log.rows:
        histories[group, topic, partition].append((ts_us, epoch, event, member))
    rows: list[tuple[int, str, str, int, int]] = []
    for partition_key, history in sorted(histories.items()):
        rows += _lag_of(partition_key, sorted(history), int(every * SECOND), rng)
    names = ("ts_us", "group", "topic", "partition", "lag")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return pa.table({name: list(column) for name, column in columns.items()})


def _lag_of(
    partition_key: tuple[str, str, int], history: list[tuple[int, int, str, str]], every: int, rng: np.random.Generator
) -> list[tuple[int, str, str, int, int]]:
    rows: list[tuple[int, str, str, int, int]] = []
    owner, highest, lag, next_event = "", 0, 0.0, 0
    for now in range(history[0][0], history[-1][0], every):
        while next_event < len(history) and history[next_event][0] <= now:
            _, epoch, event, member = history[next_event]
            if event in ("assigned", "held", "back") and epoch >= highest:
                owner, highest = member, epoch
            elif epoch >= highest or event == "unowned":
                owner = ""
            next_event += 1
        change = 15_000 if not owner else 400 if owner == SLOW else -10_000
        lag = max(0.0, lag + change * rng.uniform(0.8, 1.2))
        rows.append((now, *partition_key, int(lag)))
    return rows
