"""Simulates a day in the life of a group for each strategy, and counts what it moves and how even it stays.

Twenty-four hours with a morning that scales up, an evening that scales down, crashes at any time and two rolling
deploys; new members have new names, as pods do. Everybody sees the same day and starts from its own first plan. Every
random choice comes from one seed, so the same strategies give the same figures.

Counted as moves: partitions taken from a member that stays. What a leaving member had must go anyway, so it is not.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from assigner.strategy import NONE, IntArray, Members, Problem, Topics, name_keys
from assigner.strategy.explanation import Explanation
from assigner.strategy.registry import installed, load
from bench.strategies.contestants import DEFAULT
from bench.strategies.models import MODELS

SEED = 25
TOPIC_SIZES = (64,) * 3 + (24,) * 8 + (6,) * 20 + (1,) * 40
"""A few large topics and many small ones, as they commonly are."""
QUIET, BUSY = 12, 20
"""Members at night and at noon."""
CRASHES = 8
DEPLOYS = (11.0, 16.0)

Assign = Callable[[Problem], IntArray]


@dataclass(frozen=True)
class Event:
    hour: float
    what: str
    joins: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()


@dataclass
class Life:
    """What one strategy made of the day: a value at midnight and after each event."""

    name: str
    moves: list[int] = field(default_factory=list)
    """All since midnight."""
    imbalance: list[int] = field(default_factory=list)
    """Most minus fewest partitions of a member."""
    worst_topic: list[int] = field(default_factory=list)

    def add(self, result: Explanation) -> None:
        self.moves.append(result.moves + (self.moves[-1] if self.moves else 0))
        self.imbalance.append(result.imbalance)
        self.worst_topic.append(int(result.imbalance_by_topic.max()))


# --- the day -------------------------------------------------------------------------------------------------------


class _Fleet:
    """Who is there, and what is going to happen; hands out names that nobody had before."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._queue: list[tuple[float, int, str, str]] = []
        self._order = itertools.count()
        self.names = [self._name() for _ in range(QUIET)]

    def plan(self, hour: float, what: str, name: str = "") -> None:
        heapq.heappush(self._queue, (hour, next(self._order), what, name))

    def events(self) -> Iterator[Event]:
        while self._queue:
            hour, _, what, name = heapq.heappop(self._queue)
            yield from self._happen(hour, what, name)

    def _happen(self, hour: float, what: str, name: str) -> Iterator[Event]:
        if what == "deploy":
            self._roll(hour)
        elif what in ("scale up", "restart", "replace"):
            yield self._join(hour, what)
        elif not name or name in self.names:
            yield self._leave(hour, what, name or self._chance.choice(self.names))
            if what == "crash":
                self.plan(hour + 0.1, "restart")

    def _roll(self, hour: float) -> None:
        """One more than there should be, then one less: as a rolling deploy does it."""
        for number, old in enumerate(self.names):
            self.plan(hour + 0.04 * number, "replace")
            self.plan(hour + 0.04 * number + 0.02, "replaced", old)

    def _name(self) -> str:
        return "pod-" + "".join(self._chance.choices("bcdfghjklmnpqrstvwxz2456789", k=8))

    def _join(self, hour: float, what: str) -> Event:
        self.names.append(self._name())
        return Event(hour, what, joins=(self.names[-1],))

    def _leave(self, hour: float, what: str, name: str) -> Event:
        self.names.remove(name)
        return Event(hour, what, leaves=(name,))


def a_day(seed: int = SEED) -> tuple[tuple[str, ...], list[Event]]:
    """Who is there at midnight, and what happens then, in order."""
    chance = random.Random(seed)
    fleet = _Fleet(chance)
    first = tuple(fleet.names)
    for _ in range(CRASHES):
        fleet.plan(chance.uniform(0.5, 23.0), "crash")
    for step in range(BUSY - QUIET):
        fleet.plan(7 + 3 * step / (BUSY - QUIET), "scale up")
        fleet.plan(19 + 3 * step / (BUSY - QUIET), "scale down")
    for hour in DEPLOYS:
        fleet.plan(hour, "deploy")
    return first, list(fleet.events())


# --- living it -----------------------------------------------------------------------------------------------------


def live(name: str, assign: Assign, first: Sequence[str], events: Sequence[Event]) -> Life:
    life = Life(name)
    names = sorted(first)
    fresh = _problem(names, None)
    owner = assign(fresh)
    life.add(Explanation(fresh, owner, 0))
    for event in events:
        after = sorted((set(names) | set(event.joins)) - set(event.leaves))
        given = _problem(after, _renumbered(owner, names, after))
        owner, names = assign(given), after
        life.add(Explanation(given, owner, 0))
    return life


def _renumbered(owner: IntArray, before: Sequence[str], after: Sequence[str]) -> IntArray:
    place = {name: number for number, name in enumerate(after)}
    number = np.array([place.get(name, NONE) for name in before] + [NONE], np.int32)
    return number[owner]


def _problem(names: Sequence[str], owner: IntArray | None) -> Problem:
    members, total = len(names), sum(TOPIC_SIZES)
    topics = [f"topic-{number:02}" for number in range(len(TOPIC_SIZES))]
    return Problem(
        Members(
            capacity=np.ones(members),
            rack=np.full(members, NONE, np.int32),
            subscription=np.ones((members, len(TOPIC_SIZES)), np.bool_),
            hold=np.zeros(members, np.bool_),
            cap=np.full(members, NONE, np.int32),
            key=name_keys(names),
        ),
        Topics(np.array(TOPIC_SIZES, np.int32), key=name_keys(topics)),
        owner=np.full(total, NONE, np.int32) if owner is None else owner,
        pinned=np.zeros(total, np.bool_),
    )


def contestants() -> dict[str, Assign]:
    """The default first, then all other strategies that are installed, then the models."""
    found: dict[str, Assign] = {}
    for name in sorted(installed(), key=lambda name: (name != DEFAULT, name)):
        found[name] = _assign(name)
    return {**found, **MODELS}


def _assign(name: str) -> Assign:
    strategy = load(name)
    return lambda problem: strategy.assign(problem).owner


@dataclass(frozen=True)
class Day:
    events: list[Event]
    members: list[int]
    """At midnight and after each event."""
    lives: list[Life]


def lived(seed: int = SEED) -> Day:
    first, events = a_day(seed)
    members = [len(first)]
    for event in events:
        members.append(members[-1] + len(event.joins) - len(event.leaves))
    return Day(events, members, [live(name, assign, first, events) for name, assign in contestants().items()])
