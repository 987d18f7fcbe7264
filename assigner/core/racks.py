"""Racks as numbers: those of members and those of partitions' replicas share one numbering, in name order.

Partitions are taken in some at a time, as a plan is built; few kinds of replica sets make many partitions, so each kind
is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from assigner.keys import TopicPartition
from assigner.strategy import NONE, IntArray

Racks = tuple[str, ...]


class ReplicaRacks:
    def __init__(self, by_topic: Mapping[str, tuple[Racks, ...]], partitions: int) -> None:
        """`by_topic`: the racks of each partition's replicas, as far as they are known. `partitions`: of all topics."""
        self._by_topic = {topic: racks for topic, racks in by_topic.items() if any(map(any, racks))}
        self._kinds: dict[Racks, int] = {(): 0}
        self._kind = np.zeros(partitions if self._by_topic else 0, np.int32)
        """Per flat partition."""
        self._done = 0

    @property
    def known(self) -> bool:
        """Some replica's rack is known; else there is nothing to take in."""
        return bool(self._by_topic)

    def add(self, tps: Sequence[TopicPartition]) -> None:
        """The next partitions in the order of the flat arrays."""
        kinds, number = [self._of(tp) for tp in tps], self._kinds
        self._kind[self._done : self._done + len(tps)] = [number.setdefault(kind, len(number)) for kind in kinds]
        self._done += len(tps)

    def _of(self, tp: TopicPartition) -> Racks:
        racks = self._by_topic.get(tp.topic, ())
        return racks[tp.partition] if tp.partition < len(racks) else ()

    def numbered(self, others: Iterable[str]) -> tuple[dict[str, int], tuple[IntArray, IntArray] | None]:
        """Numbers for these and the `others`' racks, and the replicas' as `Topics.replica_racks`."""
        names = sorted({rack for kind in (*self._kinds, tuple(others)) for rack in kind if rack})
        numbers = {rack: number for number, rack in enumerate(names)}
        return numbers, self._arrays(numbers) if self.known else None

    def _arrays(self, numbers: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        kinds = [sorted({numbers[rack] for rack in kind if rack}) for kind in self._kinds]
        width = max(map(len, kinds))
        table = np.asarray([kind + [NONE] * (width - len(kind)) for kind in kinds], np.int32).reshape(-1, width)
        rows = table[self._kind]
        starts = np.concatenate((np.zeros(1, np.int32), np.cumsum((rows != NONE).sum(axis=1), dtype=np.int32)))
        return starts, rows[rows != NONE]
