"""Invented data to try the pipelines with: loads with hot partitions and a day's tide, lag with a slow consumer.

The same seed gives the same data. Ownership logs are in `ownership_sample`, membership traces in `traces`.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa

from assigner.spark.jobs.sample_ownership import BEGIN_US, SECOND, SampleLog

SLOW = "worker-3"
"""Whoever runs under this name falls behind."""


def load_samples(*, seed: int = 1, groups: int = 2, partitions: int = 192, hours: int = 24) -> pa.Table:
    """Every five minutes what each partition handled. One in fifty is hot; all follow the hour of the day."""
    chance = np.random.default_rng(seed)
    steps = hours * 12
    base = chance.lognormal(0.0, 0.6, (groups, partitions)) * 1e6
    base[:, ::50] *= 20
    hour = np.arange(steps) / 12
    tide = 1.0 + 0.8 * np.sin((hour - 9) / 24 * 2 * np.pi)
    amounts = base[:, :, None] * tide * chance.uniform(0.7, 1.3, (groups, partitions, steps)) * 300
    group, partition, step = (axis.ravel() for axis in np.indices(amounts.shape))
    return pa.table(
        {
            "ts_us": BEGIN_US + step.astype(np.int64) * 300 * SECOND,
            "group": pa.array([f"group-{number}" for number in group]),
            "topic": pa.array([f"topic-{number // 64}" for number in partition]),
            "partition": (partition % 64).astype(np.int32),
            "bytes": amounts.ravel().astype(np.int64),
            "records": (amounts.ravel() / 500).astype(np.int64),
            "lag": chance.integers(0, 1_000, len(step)),
        }
    )


def lag_samples(log: SampleLog, *, seed: int = 1, every: float = 15.0) -> pa.Table:
    """How far behind each partition of an ownership log is: it grows while nobody owns it, and slowly with `SLOW`."""
    chance = np.random.default_rng(seed)
    lives: defaultdict[tuple[str, str, int], list[tuple[int, int, str, str]]] = defaultdict(list)
    for ts_us, group, topic, partition, member, _, epoch, event, *_ in log.rows:
        lives[group, topic, partition].append((ts_us, epoch, event, member))
    rows: list[tuple[int, str, str, int, int]] = []
    for place, life in sorted(lives.items()):
        rows += _lag_of(place, sorted(life), int(every * SECOND), chance)
    names = ("ts_us", "group", "topic", "partition", "lag")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return pa.table({name: list(column) for name, column in columns.items()})


def _lag_of(
    place: tuple[str, str, int], life: list[tuple[int, int, str, str]], every: int, chance: np.random.Generator
) -> list[tuple[int, str, str, int, int]]:
    rows: list[tuple[int, str, str, int, int]] = []
    owner, highest, lag, next_event = "", 0, 0.0, 0
    for now in range(life[0][0], life[-1][0], every):
        while next_event < len(life) and life[next_event][0] <= now:
            _, epoch, event, member = life[next_event]
            if event in ("assigned", "held", "back") and epoch >= highest:
                owner, highest = member, epoch
            elif epoch >= highest or event == "unowned":
                owner = ""
            next_event += 1
        change = 15_000 if not owner else 400 if owner == SLOW else -10_000
        lag = max(0.0, lag + change * chance.uniform(0.8, 1.2))
        rows.append((now, *place, int(lag)))
    return rows
