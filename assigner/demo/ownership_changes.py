"""Finds the changes of owners, with their causes, between successive descriptions of a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from assigner.api import GroupDescription
from assigner.model.keys import TopicPartition

CAUSE_TIMEOUT = 1.5
"""Seconds to wait for the cause of a change: the history is written a little after the change."""


class DemoChange(msgspec.Struct, frozen=True):
    partitions: tuple[int, ...]
    old: str
    new: str
    cause: str


class _Unexplained(msgspec.Struct, frozen=True):
    old: str
    new: str
    since: float
    handoff_cause: str
    """Of the handoff that the change came from, as far as it was seen."""


class OwnershipChanges:
    def __init__(self) -> None:
        self.moves = 0
        """How many partitions moved from one owner to another."""
        self._owned: dict[TopicPartition, tuple[str, int]] = {}
        self._in_flight: dict[tuple[TopicPartition, str], str] = {}
        """Causes of the handoffs in flight, by partition and new owner."""
        self._waiting: dict[tuple[TopicPartition, int], _Unexplained] = {}

    def changes(self, found: GroupDescription, now: float) -> Iterator[DemoChange]:
        """The changes whose cause is known by now, or was waited for long enough, grouped by owners and cause."""
        handoffs = {
            (TopicPartition(one.topic, one.partition), one.new_owner): one.cause.value for one in found.handoffs
        }
        self._compare(found, self._in_flight | handoffs, now)
        self._in_flight = handoffs
        causes = {(TopicPartition(move.topic, move.partition), move.epoch): move.cause.value for move in found.history}
        grouped: dict[tuple[str, str, str], list[int]] = {}
        for key, change in list(self._waiting.items()):
            cause = causes.get(key) or change.handoff_cause
            if not cause and now - change.since < CAUSE_TIMEOUT:
                continue
            del self._waiting[key]
            grouped.setdefault((change.old, change.new, cause), []).append(key[0].partition)
        for (old, new, cause), partitions in grouped.items():
            yield DemoChange(tuple(partitions), old, new, cause)

    def _compare(self, found: GroupDescription, handoffs: Mapping[tuple[TopicPartition, str], str], now: float) -> None:
        for one in found.ownership:
            old, epoch = self._owned.get(one.tp, ("", -1))
            if (old, epoch) == (one.owner, one.epoch):
                continue
            self._owned[one.tp] = (one.owner, one.epoch)
            self._waiting[one.tp, one.epoch] = _Unexplained(old, one.owner, now, handoffs.get((one.tp, one.owner), ""))
            self.moves += bool(old) and old != one.owner
