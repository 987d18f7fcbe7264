"""Lists the partitions that have an owner, in an order in which a table is short: by topic and number.

Sorting a hundred thousand partitions takes memory and time, and a thousand routers may come at once, as when an
instance was restarted. So they share a listing that began after each of them had asked; it is kept as runs of numbers,
of which a table usually has as many as topics.

Not promised: that a listed partition still has an owner, or that no other has one by now. Who asks notes what changes
from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import anyio
import anyio.lowlevel

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition

Run = tuple[str, range]
"""Partitions of a topic that follow each other."""
_AT_ONCE = 1_000
"""Partitions that are looked at before other tasks get a turn."""


class TableListing:
    """The listings of one group."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._turn = anyio.Lock()
        self._begun = 0
        self._latest: Sequence[Run] = ()
        self._number = 0
        """Which of the listings that have begun it is."""

    async def runs(self) -> Sequence[Run]:
        """List what has an owner, in order; no partition is left out that has had one from this call on."""
        asked = self._begun
        async with self._turn:
            if self._number > asked:
                return self._latest
            self._begun += 1
            self._latest, self._number = await _listed(self._state), self._begun
            return self._latest


async def _listed(state: GroupState) -> Sequence[Run]:
    by_topic: dict[str, list[int]] = {}
    owned = iter(list(state.assignments))
    while some := list(islice(owned, _AT_ONCE)):
        for tp in some:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        await anyio.lowlevel.checkpoint()
    runs: list[Run] = []
    for topic in sorted(by_topic):
        runs += [(topic, run) for run in _runs(sorted(by_topic.pop(topic)))]
        await anyio.lowlevel.checkpoint()
    return runs


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    first = 0
    for at, number in enumerate(numbers):
        if at + 1 == len(numbers) or numbers[at + 1] != number + 1:
            yield range(numbers[first], number + 1)
            first = at + 1


def parts(runs: Sequence[Run], most: int) -> Iterator[list[TopicPartition]]:
    """The partitions of these runs, at most so many at a time."""
    partitions = (TopicPartition(topic, number) for topic, numbers in runs for number in numbers)
    while part := list(islice(partitions, most)):
        yield part
