"""Picks partitions for requests without a key: the lighter one more often, by the loads that the service publishes.

Each partition of a topic gets its turn at a distance that grows with its load: at twice the average load it is picked
a quarter as often as at none, and never less than that. Without loads, or when they are too old, all distances are
equal: plain round robin. Loads are advice; nothing depends on them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable

from assigner.model.routes import PublishedLoads

TRIES = 256
"""Partitions that are looked at for one that suits, before the one whose turn it is gets the request anyway."""
_LIGHTEST, _HEAVIEST = 0.5, 2.0
"""Distances between the turns of partitions without load, and with twice the average or more; the average has 1."""


class _Turns:
    """The turns of one topic's partitions."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.loads: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = [(0.0, partition) for partition in range(partitions)]
        self._average = 0.0

    def reweigh(self, loads: dict[int, float]) -> None:
        self.loads = loads
        # Divided first: the sum may be more than the largest number.
        self._average = math.fsum(load / len(loads) for load in loads.values()) if loads else 0.0

    def next(self, suits: Callable[[int], bool]) -> int:
        passed: list[tuple[float, int]] = []
        served = heapq.heappop(self._heap)
        while not suits(served[1]):
            passed.append(served)
            if not self._heap or len(passed) >= TRIES:
                served, passed = passed[0], passed[1:]
                break
            served = heapq.heappop(self._heap)
        turn, partition = served
        for missed, other in passed:
            # One that did not suit for long must not make up for it.
            heapq.heappush(self._heap, (max(missed, turn), other))
        heapq.heappush(self._heap, (turn + self._distance(partition), partition))
        return partition

    def _distance(self, partition: int) -> float:
        load = self.loads.get(partition)
        if load is None or self._average <= 0:
            return 1.0
        share = min(load / self._average, 2.0)
        return _LIGHTEST * math.pow(_HEAVIEST / _LIGHTEST, share / 2.0)


class KeylessBalance:
    """The turns of each topic's partitions, and the loads that they go by."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turns] = {}
        self._loads: dict[str, dict[int, tuple[float, float]]] = {}
        """Of each partition: its load, and until when it counts."""
        self._valid_until = -math.inf
        """Of all loads."""

    def published(self, loads: Iterable[PublishedLoads], valid_for: float, now: float) -> None:
        """Loads were published; they count for that many seconds. Those that are no numbers from 0 up do not."""
        until = now + valid_for
        for told in loads:
            found = {
                partition: (load, until)
                for partition, load in zip(told.partitions, told.loads, strict=False)
                if 0 <= load < math.inf
            }
            kept = self._loads.get(told.topic, {})
            self._loads[told.topic] = {one: known for one, known in kept.items() if known[1] > now} | found
            self._apply(told.topic)
        self._valid_until = max(self._valid_until, until)

    def pick(self, topic: str, partitions: int, now: float, suits: Callable[[int], bool]) -> int:
        """The partition whose turn it is, of those that suit; if none of them does, the one whose turn it is."""
        if now >= self._valid_until and self._loads:
            self._loads.clear()
            for one in self._turns.values():
                one.reweigh({})
        turns = self._turns.get(topic)
        if turns is None or turns.partitions != partitions:
            turns = self._turns[topic] = _Turns(partitions)
            self._apply(topic)
        return turns.next(suits)

    def forget(self, topics: Iterable[str]) -> None:
        """Topics are gone."""
        for topic in topics:
            self._turns.pop(topic, None)
            self._loads.pop(topic, None)

    def _apply(self, topic: str) -> None:
        turns = self._turns.get(topic)
        if turns is not None:
            turns.reweigh({partition: load for partition, (load, _) in self._loads.get(topic, {}).items()})
