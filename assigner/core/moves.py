"""Moves that a plan wants and that have not begun, let through no faster than the group allows.

A queue per target, because the limit that usually binds is how much one consumer warms at a time. Asking for the next
moves costs as much as there are targets with something waiting, not as there are moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from assigner.keys import TopicPartition
from assigner.records import Cause


class Move(msgspec.Struct, frozen=True, gc=False):
    tps: tuple[TopicPartition, ...]
    """More than one where a co-partition set moves as one."""
    target: str
    cause: Cause


class MoveQueue:
    def __init__(self) -> None:
        self._by_target: dict[str, deque[Move]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def clear(self) -> None:
        self._by_target.clear()
        self._waiting = 0

    def add(self, move: Move) -> None:
        self._by_target.setdefault(move.target, deque()).append(move)
        self._waiting += 1

    def take(self, warming: Callable[[str], int], most: int, total: int) -> Iterator[Move]:
        """Moves to begin now, turn by turn over the targets: until `total` partitions are on their way, and as long as
        none of the targets warms more than `most`. What moves as one begins whatever its size where nothing else is
        warmed, because it never gets smaller."""
        busy = {target: warming(target) for target in self._by_target}
        while total > 0 and busy:
            for target in list(busy):
                queue = self._by_target.get(target)
                if not queue or total <= 0 or 0 < busy[target] > most - len(queue[0].tps):
                    del busy[target]
                    continue
                move = queue.popleft()
                if not queue:
                    del self._by_target[target]
                self._waiting -= 1
                busy[target] += len(move.tps)
                total -= len(move.tps)
                yield move
