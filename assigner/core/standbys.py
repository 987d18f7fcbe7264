"""Reconciles the records of standbys with a plan, without ever taking a copy away that is still needed.

`targets` turns a solution into the records that have to change. Holders are compared as sets of names, so the order in
which a strategy lists them changes nothing. It may run on a worker thread beside the event loop: it looks records up
and never iterates over them, and what it finds is checked again before anything is written.

`StandbyReconciler` writes them. While a partition is in flight, holders are only added: the new owner keeps the copy it
starts from, and the old owner is on record in time to keep its own. Once the partition is where the plan wanted it, the
record says what the plan said. A partition that ends up elsewhere waits for the next plan.

What a plan wants is dropped with the next plan and with the leader; everything that counts is in the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec
import numpy as np

from assigner.core.group import GroupState
from assigner.core.leader_context import LeaderContext
from assigner.core.planning.in_flight import HandoffsInFlight
from assigner.core.planning.request import Request
from assigner.core.standby_copies import holders, is_of_topic
from assigner.core.work_queue import Timer
from assigner.core.writes import Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Standbys
from assigner.strategy import NONE, Problem, Solution

_AT_ONCE = 10_000
"""Rows turned into Python numbers in one go; bounds the memory."""


class StandbyTarget(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    owner: str
    """The owner that the plan wants for the partition; empty: none."""
    holders: tuple[str, ...]
    """In name order."""


def targets(request: Request, solution: Solution, state: GroupState) -> list[StandbyTarget]:
    """The records of standbys that the solution changes."""
    if not state.standbys and not (solution.standbys.size and (solution.standbys != NONE).any()):
        return []
    names = _Names(request)
    return [
        StandbyTarget(tp, names.of(owner), holders)
        for tp, owner, row in _rows(request, solution)
        if differs(state, tp, holders := names.holders(owner, row))
    ]


def placement_problem(request: Request) -> Problem:
    """The problem for a strategy that places standbys in a second step. Members that hold no copies take no part in it:
    a hold would let them keep what they owned until now."""
    problem = request.problem
    if not request.cold:
        return problem
    subscription = problem.members.subscription.copy()
    subscription[list(request.cold)] = False
    return replace(problem, members=replace(problem.members, subscription=subscription))


def differs(state: GroupState, tp: TopicPartition, holders: tuple[str, ...]) -> bool:
    """Whether the record names others than these holders, which are in name order."""
    stored = state.standbys.get(tp)
    return bool(holders) if stored is None else not _names_holders(state, stored.record, holders)


def _names_holders(state: GroupState, record: Standbys, holders: tuple[str, ...]) -> bool:
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
    """Translates a solution's numbers to names. The same few combinations recur, so each is made once."""

    def __init__(self, request: Request) -> None:
        self._members = request.members
        self._cold = frozenset(request.cold)
        self._known: dict[tuple[int, ...], tuple[str, ...]] = {}

    def of(self, owner: int) -> str:
        return self._members[owner] if owner != NONE else ""

    def holders(self, owner: int, row: list[int]) -> tuple[str, ...]:
        key = (owner, *row)
        found = self._known.get(key)
        if found is None:
            names = {
                self._members[member] for member in row if member not in (NONE, owner) and member not in self._cold
            }
            found = self._known[key] = tuple(sorted(names))
        return found


class StandbyReconciler:
    def __init__(self, context: LeaderContext, in_flight: HandoffsInFlight) -> None:
        self._state = context.state
        self._work = context.work
        self._liveness = context.liveness
        self._transitions = context.transitions
        self._pending = context.pending
        self._in_flight = in_flight
        self._wanted: dict[TopicPartition, StandbyTarget] = {}
        """What the plan wants and the records do not say yet."""
        self._queue: dict[TopicPartition, None] = {}
        """Which of these to examine, in order."""
        self._writing: dict[str, TopicPartition] = {}
        """Keys with a write in flight."""

    def begin(self, targets: Iterable[StandbyTarget]) -> None:
        """Begin a new plan, in place of what is left of the old one."""
        self._wanted = {target.tp: target for target in targets}
        self._queue = dict.fromkeys(self._wanted)

    def abandon(self) -> None:
        self.begin(())

    @property
    def urgent(self) -> bool:
        return bool(self._queue)

    @property
    def writing(self) -> int:
        return len(self._writing)

    @property
    def waiting(self) -> int:
        """How many records wait for their partition to arrive."""
        return len(self._wanted)

    def enqueue(self, tps: Iterable[TopicPartition]) -> None:
        """Enqueue these partitions, if the plan wants something of them."""
        if self._wanted:
            self._queue.update((tp, None) for tp in tps if tp in self._wanted)

    def settled(self, write: Write, *, refused: bool = False) -> None:
        """Take the outcome of a write, which is mirrored if it went in. One that was `refused` waits for the next plan:
        until the mirror shows what overtook it, it would be refused again."""
        tp = self._writing.pop(write.operations[0].key, None)
        if tp and not refused:
            self.enqueue((tp,))

    def drop(self, tp: TopicPartition) -> Write | None:
        """Delete the record of a topic that is gone. A topic whose config can't be read is not gone."""
        key = self._state.keys.standby(tp)
        if self._state.keys.topic(tp.topic) in self._state.unreadable or tp not in self._state.standbys:
            return None
        if key in self._writing:
            return None
        self._writing[key] = tp
        return self._transitions.standbys(tp, ())

    def writes(self, now: float, budget: int) -> Iterator[Write]:
        """Decide at most `budget` writes, by examining at most five times as many partitions, to bound the time."""
        if self._queue and self._liveness.after_an_outage(now):
            # A plan without the absent consumers spreads their copies over the others; another plan will follow.
            self._work.timers.sooner(Timer.GRACE_PERIOD, self._liveness.grace_period_ends)
            self.abandon()
        given = 0
        for _ in range(min(5 * budget, len(self._queue))):
            if given >= budget:
                return
            write = self._write(self._next())
            if write:
                given += 1
                yield write

    def _next(self) -> TopicPartition:
        tp = next(iter(self._queue))
        del self._queue[tp]
        return tp

    def _write(self, tp: TopicPartition) -> Write | None:
        target, key = self._wanted.get(tp), self._state.keys.standby(tp)
        if target is None or key in self._writing or self._is_unreadable(tp, key):
            return None
        wanted = self._holders(target)
        if wanted is None or not differs(self._state, tp, wanted):
            return None
        self._writing[key] = tp
        return self._transitions.standbys(tp, wanted)

    def _is_unreadable(self, tp: TopicPartition, key: str) -> bool:
        """Whether the partition's record, or that of a consumer it names, can't be read, so that it is left alone."""
        state = self._state
        if key in state.unreadable or tp in state.unreadable_partitions or tp.topic not in state.topics:
            return True
        return any(name in state.unreadable_consumers for name in holders(state, tp))

    def _holders(self, target: StandbyTarget) -> tuple[str, ...] | None:
        """The holders that the record is to name now; None: that can't be decided yet."""
        tp = target.tp
        if tp in self._state.handoffs or self._in_flight.is_starting(tp):
            return tuple(sorted({*holders(self._state, tp), *target.holders}))
        held = self._state.assignments.get(tp)
        if tp in self._pending or (held.record.owner if held else "") != target.owner:
            return None
        del self._wanted[tp]
        return target.holders
