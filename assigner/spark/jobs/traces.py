"""Defines and generates membership traces: a group's events over time, one row per topic, join, leave or crash.

| column | meaning |
|---|---|
| `ts_us` | when |
| `group` | |
| `what` | `topic`: it has `value` partitions from now on; `join`, with `value` as capacity; `leave` in order; `crash` |
| `name` | of the topic or member |
| `value` | |
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from itertools import count

import pyarrow as pa

HOUR = 3_600 * 1_000_000
SCHEMA = pa.schema(
    [
        ("ts_us", pa.int64()),
        ("group", pa.string()),
        ("what", pa.string()),
        ("name", pa.string()),
        ("value", pa.float64()),
    ]
)
TOPIC, JOIN, LEAVE, CRASH = "topic", "join", "leave", "crash"
Row = tuple[int, str, str, str, float]


def days(groups: int, *, seed: int = 1) -> pa.Table:
    """Generate a day's trace for each of so many groups, small and large ones."""
    rows = [
        row for number in range(groups) for row in day_trace(f"group-{number:05}", random.Random(f"{seed}/{number}"))
    ]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def day_trace(group: str, rng: random.Random) -> Iterator[Row]:
    """Generate a group's trace of one day: it scales up in the morning and down in the evening, is deployed once or
    twice, and members crash. A new member has a new name, as pods do."""
    at_night = rng.randint(2, 12)
    for number, partitions in enumerate(_sizes(rng)):
        yield 0, group, TOPIC, f"topic-{number:02}", float(partitions)
    for at, what, name in _Fleet(rng, at_night).day():
        yield at, group, what, name, 1.0


def _sizes(rng: random.Random) -> list[int]:
    """Partition counts of one or a few large topics and some small ones."""
    large = [rng.choice((12, 24, 48, 64)) for _ in range(rng.randint(1, 3))]
    return large + [rng.choice((1, 2, 3, 6)) for _ in range(rng.randint(0, 8))]


class _Fleet:
    def __init__(self, rng: random.Random, at_night: int) -> None:
        self._rng = rng
        self._queue: list[tuple[int, int, str, str]] = []
        self._order = count()
        self._members: list[str] = []
        self._at_night = at_night

    def day(self) -> Iterator[tuple[int, str, str]]:
        for _ in range(self._at_night):
            self._schedule(0, JOIN)
        extra = self._rng.randint(0, self._at_night)
        for step in range(extra):
            self._schedule(7 * HOUR + 3 * HOUR * step // extra, JOIN)
            self._schedule(19 * HOUR + 3 * HOUR * step // extra, LEAVE)
        for _ in range(self._rng.randint(0, 4)):
            self._schedule(int(self._rng.uniform(0.5, 23) * HOUR), CRASH)
        for hour in self._rng.sample((10, 13, 16), self._rng.randint(1, 2)):
            self._schedule(hour * HOUR, "deploy")
        while self._queue:
            at, _, what, name = heapq.heappop(self._queue)
            yield from self._apply(at, what, name)

    def _schedule(self, at: int, what: str, name: str = "") -> None:
        heapq.heappush(self._queue, (at, next(self._order), what, name))

    def _apply(self, at: int, what: str, name: str) -> Iterator[tuple[int, str, str]]:
        if what == "deploy":
            for number, old in enumerate(self._members):
                self._schedule(at + number * HOUR // 30, JOIN)
                self._schedule(at + number * HOUR // 30 + HOUR // 60, LEAVE, old)
        elif what == JOIN:
            self._members.append("pod-" + "".join(self._rng.choices("bcdfghjklmnpqrstvwxz2456789", k=8)))
            yield at, JOIN, self._members[-1]
        elif len(self._members) > 1 and (not name or name in self._members):
            gone = name or self._rng.choice(self._members)
            self._members.remove(gone)
            yield at, what, gone
            if what == CRASH:
                self._schedule(at + HOUR // 10, JOIN)
