"""Membership traces: what happens to a group over time, one row per topic, join, leave or crash; and invented days.

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
    """A day of each of so many groups, small ones and large ones."""
    rows = [row for number in range(groups) for row in a_day(f"group-{number:05}", random.Random(f"{seed}/{number}"))]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def a_day(group: str, chance: random.Random) -> Iterator[Row]:
    """It grows in the morning and shrinks in the evening, is deployed once or twice, and members crash. A member that
    comes has a name nobody had before, as pods do."""
    quiet = chance.randint(2, 12)
    for number, partitions in enumerate(_sizes(chance)):
        yield 0, group, TOPIC, f"topic-{number:02}", float(partitions)
    for at, what, name in _Fleet(chance, quiet).day():
        yield at, group, what, name, 1.0


def _sizes(chance: random.Random) -> list[int]:
    """One large topic or a few, and small ones beside."""
    large = [chance.choice((12, 24, 48, 64)) for _ in range(chance.randint(1, 3))]
    return large + [chance.choice((1, 2, 3, 6)) for _ in range(chance.randint(0, 8))]


class _Fleet:
    def __init__(self, chance: random.Random, quiet: int) -> None:
        self._chance = chance
        self._queue: list[tuple[int, int, str, str]] = []
        self._order = count()
        self._members: list[str] = []
        self._quiet = quiet

    def day(self) -> Iterator[tuple[int, str, str]]:
        for _ in range(self._quiet):
            self._plan(0, JOIN)
        extra = self._chance.randint(0, self._quiet)
        for step in range(extra):
            self._plan(7 * HOUR + 3 * HOUR * step // extra, JOIN)
            self._plan(19 * HOUR + 3 * HOUR * step // extra, LEAVE)
        for _ in range(self._chance.randint(0, 4)):
            self._plan(int(self._chance.uniform(0.5, 23) * HOUR), CRASH)
        for hour in self._chance.sample((10, 13, 16), self._chance.randint(1, 2)):
            self._plan(hour * HOUR, "deploy")
        while self._queue:
            at, _, what, name = heapq.heappop(self._queue)
            yield from self._happen(at, what, name)

    def _plan(self, at: int, what: str, name: str = "") -> None:
        heapq.heappush(self._queue, (at, next(self._order), what, name))

    def _happen(self, at: int, what: str, name: str) -> Iterator[tuple[int, str, str]]:
        if what == "deploy":
            for number, old in enumerate(self._members):
                self._plan(at + number * HOUR // 30, JOIN)
                self._plan(at + number * HOUR // 30 + HOUR // 60, LEAVE, old)
        elif what == JOIN:
            self._members.append("pod-" + "".join(self._chance.choices("bcdfghjklmnpqrstvwxz2456789", k=8)))
            yield at, JOIN, self._members[-1]
        elif len(self._members) > 1 and (not name or name in self._members):
            gone = name or self._chance.choice(self._members)
            self._members.remove(gone)
            yield at, what, gone
            if what == CRASH:
                self._plan(at + HOUR // 10, JOIN)
