"""Racks as numbers: those of members and those of partitions' replicas share one numbering, in name order.

Partitions are taken in one by one, as a plan is built; few kinds of replica sets make many partitions, so each kind
is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from assigner.strategy import NONE, IntArray

Racks = tuple[str, ...]


class ReplicaRacks:
    def __init__(self, by_topic: Mapping[str, tuple[Racks, ...]]) -> None:
        """`by_topic`: the racks of each partition's replicas, as far as they are known."""
        self._by_topic = {topic: racks for topic, racks in by_topic.items() if any(map(any, racks))}
        self._kinds: dict[Racks, int] = {(): 0}
        self._partitions: list[int] = []

    @property
    def known(self) -> bool:
        """Some replica's rack is known; else there is nothing to take in."""
        return bool(self._by_topic)

    def add(self, topic: str, partition: int) -> None:
        """The next partition in the order of the flat arrays."""
        racks = self._by_topic.get(topic, ())
        kind = racks[partition] if partition < len(racks) else ()
        self._partitions.append(self._kinds.setdefault(kind, len(self._kinds)))

    def numbered(self, others: Iterable[str]) -> tuple[dict[str, int], tuple[IntArray, IntArray] | None]:
        """Numbers for these and the `others`' racks, and the replicas' as `Topics.replica_racks`."""
        names = sorted({rack for kind in (*self._kinds, tuple(others)) for rack in kind if rack})
        numbers = {rack: number for number, rack in enumerate(names)}
        return numbers, self._arrays(numbers) if self.known else None

    def _arrays(self, numbers: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        kinds = [sorted({numbers[rack] for rack in kind if rack}) for kind in self._kinds]
        width = max(map(len, kinds))
        table = np.asarray([kind + [NONE] * (width - len(kind)) for kind in kinds], np.int32).reshape(-1, width)
        rows = table[np.asarray(self._partitions, np.int32)]
        starts = np.concatenate((np.zeros(1, np.int32), np.cumsum((rows != NONE).sum(axis=1), dtype=np.int32)))
        return starts, rows[rows != NONE]
