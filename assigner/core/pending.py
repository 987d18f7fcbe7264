"""Writes under way: what they touch is left alone until the mirror shows how they ended."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from assigner.core.writes import Purpose, Subject, Write
from assigner.keys import TopicPartition


class Pending:
    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Write] = {}
        self._subjects: dict[Subject, Write] = {}
        self._starting: dict[TopicPartition, str] = {}
        """Partitions whose handoff is being created -> its target; they count against the limits already."""
        self._committed: list[tuple[int, int, Write]] = []
        self._count = 0
        self._plan_writes = 0

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._partitions

    def __len__(self) -> int:
        return len(self._partitions) + len(self._subjects)

    @property
    def publishing(self) -> bool:
        """Part of a plan is still on its way."""
        return self._plan_writes > 0

    def about(self, subject: Subject) -> bool:
        return subject in self._subjects

    def purpose(self, subject: Subject) -> Purpose | None:
        """What the write about it that is under way is for, if there is one."""
        write = self._subjects.get(subject)
        return write.purpose if write else None

    @property
    def starting(self) -> dict[TopicPartition, str]:
        return self._starting

    def starting_by_target(self) -> Counter[str]:
        return Counter(self._starting.values())

    def add(self, write: Write, starting: str = "") -> None:
        self._plan_writes += _is_plan(write)
        for tp in write.touches:
            self._partitions[tp] = write
            if starting:
                self._starting[tp] = starting
        if write.subject:
            self._subjects[write.subject] = write

    def committed(self, write: Write, revision: int) -> None:
        self._count += 1
        heapq.heappush(self._committed, (revision, self._count, write))

    def arrived(self, revision: int) -> Iterable[Write]:
        """Committed writes that a mirror at `revision` shows, each once."""
        while self._committed and self._committed[0][0] <= revision:
            yield heapq.heappop(self._committed)[2]

    def settle(self, write: Write) -> None:
        self._plan_writes -= _is_plan(write)
        for tp in write.touches:
            if self._partitions.get(tp) is write:
                del self._partitions[tp]
                self._starting.pop(tp, None)
        if write.subject and self._subjects.get(write.subject) is write:
            del self._subjects[write.subject]


def _is_plan(write: Write) -> bool:
    return write.purpose in (Purpose.ASSIGN, Purpose.HANDOFF)
