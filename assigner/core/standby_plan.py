"""From a solution to the records of standbys that have to change.

Holders are compared as sets of names: only records that say something else are touched, whatever order a strategy
lists them in. May run beside the event loop: it looks records up and never walks over them, and what it finds is looked
at again before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from assigner.core.copies import is_of_topic
from assigner.core.group import GroupState
from assigner.core.planning import Request
from assigner.keys import TopicPartition
from assigner.records import Standbys
from assigner.strategy import NONE, Solution

_AT_ONCE = 10_000
"""Rows turned into Python numbers in one go; bounds the memory."""


class StandbyTarget(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    owner: str
    """Whom the plan wants as the owner these holders stand by for; empty: nobody."""
    holders: tuple[str, ...]
    """In name order."""


def targets(request: Request, solution: Solution, state: GroupState) -> list[StandbyTarget]:
    """What the solution changes about standbys."""
    if not state.standbys and not (solution.standbys.size and (solution.standbys != NONE).any()):
        return []
    names = _Names(request)
    return [
        StandbyTarget(tp, names.of(owner), holders)
        for tp, owner, row in _rows(request, solution)
        if differs(state, tp, holders := names.holders(owner, row))
    ]


def differs(state: GroupState, tp: TopicPartition, holders: tuple[str, ...]) -> bool:
    """Whether the record says something else than these holders, in name order."""
    stored = state.standbys.get(tp)
    return bool(holders) if stored is None else not _says(state, stored.record, holders)


def _says(state: GroupState, record: Standbys, holders: tuple[str, ...]) -> bool:
    topic = state.topics.get(record.topic)
    named = record.holders == holders or tuple(sorted(record.holders)) == holders
    return bool(holders) and named and (topic is None or is_of_topic(record, topic.record))


def _rows(request: Request, solution: Solution) -> Iterator[tuple[TopicPartition, int, list[int]]]:
    count = len(request.partitions)
    copies = solution.standbys if solution.standbys.size else np.empty((count, 0), np.int32)
    for first in range(0, count, _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        yield from zip(request.partitions[part], solution.owner[part].tolist(), copies[part].tolist(), strict=True)


class _Names:
    """Names behind the numbers. The same few combinations come again and again: each is spelled once."""

    def __init__(self, request: Request) -> None:
        self._members = request.members
        self._known: dict[tuple[int, ...], tuple[str, ...]] = {}

    def of(self, owner: int) -> str:
        return self._members[owner] if owner != NONE else ""

    def holders(self, owner: int, row: list[int]) -> tuple[str, ...]:
        key = (owner, *row)
        found = self._known.get(key)
        if found is None:
            names = {self._members[member] for member in row if member not in (NONE, owner)}
            found = self._known[key] = tuple(sorted(names))
        return found
