"""The course of a measurement: which pods join, drain and are killed at which moment, and when which request is due.

Every contestant goes through the same one: routers with their pods, and Kafka's consumers. Four pods are there in the
beginning. Pure: the two systems carry it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

GROUP, TOPIC, PARTITIONS = "cutover", "requests", 64
ROUTERS = 2
FIRST_PODS = ("pod-1", "pod-2", "pod-3", "pod-4")
SECOND = 1_000_000_000
"""In nanoseconds, which all times of recordings are in."""


class Action(str, Enum):
    JOIN = "join"
    DRAIN = "drain"
    KILL = "kill"


class Step(msgspec.Struct, frozen=True):
    at: float
    """Seconds after the first request."""
    action: Action
    pod: str


COURSE = (
    Step(3.0, Action.JOIN, "pod-5"),
    Step(7.0, Action.DRAIN, "pod-1"),
    Step(11.0, Action.JOIN, "pod-6"),
    Step(15.0, Action.DRAIN, "pod-3"),
    Step(19.0, Action.KILL, "pod-2"),
)
KILLED = next(step.pod for step in COURSE if step.action is Action.KILL)


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    rate: int
    """Requests per second, in all."""
    seconds: float
    """At least so long are requests made."""
    pace: float = 1.0
    """By which the moments of the course are multiplied."""
    ttl: float
    """Of a pod's lease, in seconds."""
    in_turn: bool = False
    """Each step waits until the moves of the one before have ended, and the requests end after the last one's: for
    machines so busy that a pod may take longer to start than the course has from one step to the next."""

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(Step(step.at * self.pace, step.action, step.pod) for step in COURSE)

    def pods(self, steps: int) -> tuple[str, ...]:
        """Those that are there after so many steps."""
        gone = {step.pod for step in self.steps[:steps] if step.action is not Action.JOIN}
        joined = [step.pod for step in self.steps[:steps] if step.action is Action.JOIN]
        return tuple(pod for pod in (*FIRST_PODS, *joined) if pod not in gone)

    def lasting(self, detection: float) -> float:
        """Seconds of requests, where a killed pod is noticed after `detection` seconds: to the end of its moves."""
        return max(self.seconds, self.steps[-1].at + detection + SETTLE)


SETTLE = 6.0
"""Seconds in which partitions move on after a death was noticed; Kafka's members learn of it by a heartbeat."""

USUAL = Effort(rate=2_000, seconds=30.0, ttl=10.0)
QUICK = Effort(rate=400, seconds=12.0, pace=0.5, ttl=4.0)


class Due(msgspec.Struct, frozen=True, gc=False):
    at: int
    """Nanoseconds after the first request."""
    partition: int
    sequence: int
    """Counted for each partition."""


def requests(rate: int, seconds: float, source: int = 0, sources: int = 1) -> Iterator[Due]:
    """The requests of one of several sources, at equal distances; each partition gets its share of all in turns."""
    count = int(rate * seconds)
    # A source begins at partitions of its own, so that no partition gets a burst.
    offset = source * PARTITIONS // sources
    for number, place in enumerate(range(source, count, sources)):
        yield Due(place * SECOND // rate, (offset + number) % PARTITIONS, number // PARTITIONS)
