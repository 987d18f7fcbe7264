"""Tells whether the process still does its work: whether its event loop is responsive and its essential tasks run.

A ticker on the event loop measures how late it wakes up, and every essential task sends heartbeats. `/livez` fails when
the ticker or a task has been silent for too long, when an essential task ended, or when a supervised loop keeps
failing: then a restart helps. It does not fail when the store can't be reached, because a restart would not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio

from assigner.clock import Clock

TICK = 0.25


class LoopPulse:
    """The heartbeat of one essential task, which calls `beat` in each round of its loop."""

    def __init__(self, name: str, silence: float | None, clock: Clock) -> None:
        self.name = name
        self._silence = silence
        self._clock = clock
        self._last = clock.now()
        self._ended: str | None = None

    def beat(self) -> None:
        self._last = self._clock.now()

    def end(self, why: str) -> None:
        self._ended = why

    def problem(self) -> str | None:
        if self._ended is not None:
            return f"{self.name} ended: {self._ended}"
        quiet = self._clock.now() - self._last
        if self._silence is not None and quiet > self._silence:
            return f"{self.name} made no progress for {quiet:.1f} s"
        return None


class ProcessLiveness:
    def __init__(
        self,
        clock: Clock,
        *,
        stall: float = 10.0,
        tick: float = TICK,
        failures: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`failures` returns the problems of supervised loops that keep failing."""
        self._clock = clock
        self._failures = failures
        self._tick = tick
        self._ticker = LoopPulse("event loop", stall, clock)
        self._pulses: dict[str, LoopPulse] = {}

    @contextmanager
    def essential(self, name: str, silence: float | None = None) -> Iterator[LoopPulse]:
        """Run an essential task inside the context. The task counts as ended if the context is left by an error, but
        not if it is left normally or by cancellation. `silence`: seconds without a beat that count as a stall; None:
        any silence is fine."""
        pulse = LoopPulse(name, silence, self._clock)
        self._pulses[name] = pulse
        try:
            yield pulse
        except Exception as error:
            pulse.end(f"{type(error).__name__}: {error}")
            raise
        except BaseException:
            # Cancelled: the service is stopping, which is no failure.
            self._forget(pulse)
            raise
        else:
            self._forget(pulse)

    def _forget(self, pulse: LoopPulse) -> None:
        if self._pulses.get(pulse.name) is pulse:
            del self._pulses[pulse.name]

    def problems(self) -> list[str]:
        """The problems of the process, one sentence each; empty: it is alive."""
        pulses = (self._ticker, *self._pulses.values())
        return [problem for pulse in pulses if (problem := pulse.problem())] + list(self._failures())

    async def run(self, lag: Callable[[float], None]) -> None:
        """Tick until cancelled, and call `lag` with how late each tick came."""
        try:
            while True:
                due = self._clock.now() + self._tick
                await anyio.sleep(self._tick)
                self._ticker.beat()
                lag(max(0.0, self._clock.now() - due))
        except Exception as error:
            self._ticker.end(f"{type(error).__name__}: {error}")
            raise
