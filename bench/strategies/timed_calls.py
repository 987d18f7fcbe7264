"""How long a thing is called for, and what came of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from assigner.strategy import IntArray


class Failed(Exception):
    """A contestant raised, took too long, or its process ended."""


@dataclass(frozen=True)
class Effort:
    """Seconds to warm up and to measure, and how many calls are enough."""

    warm_up: float = 0.3
    measure: float = 1.0
    rounds: int = 15
    patience: float = 60.0
    """After this many seconds more, another process is not waited for."""


ONCE = Effort(warm_up=0.0, measure=0.0, rounds=1, patience=120.0)


@dataclass(frozen=True)
class Answer:
    milliseconds: tuple[float, ...]
    owner: IntArray

    @property
    def median(self) -> float:
        return median(self.milliseconds)


def timed(solve: Callable[[], IntArray], effort: Effort) -> Answer:
    """Time of each call; at least one, after at least one that warms up where warming up was asked for."""
    gc.collect()
    began = time.perf_counter()
    while time.perf_counter() - began < effort.warm_up:
        solve()
    times: list[float] = []
    began = time.perf_counter()
    while True:
        start = time.perf_counter()
        owner = solve()
        now = time.perf_counter()
        times.append(1000 * (now - start))
        if len(times) >= effort.rounds or now - began >= effort.measure:
            return Answer(tuple(times), owner)
