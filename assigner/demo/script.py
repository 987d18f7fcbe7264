"""Runs the script of a demo, step by step. Each acts, waits for its result, and then pauses for the viewer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from assigner.demo.environment import NAMES, DemoEnvironment
from assigner.demo.snapshot import Snapshot, State

FRAMES_PER_SECOND = 8
STEP_TIMEOUT = 120.0
"""Seconds after which a step fails."""


class StepFailed(Exception):
    """A step's condition did not come true in time."""


E = TypeVar("E", bound=DemoEnvironment)


class DemoStep(msgspec.Struct, Generic[E], frozen=True):
    title: str
    action: Callable[[E], Awaitable[None]]
    until: Callable[[Snapshot], bool]
    linger: float
    """The shortest duration of the step in seconds, at normal speed."""


def states(snapshot: Snapshot) -> dict[str, State]:
    return {worker.name: worker.state for worker in snapshot.workers}


def settled(snapshot: Snapshot, *ready: str) -> bool:
    """Whether the named workers own all partitions evenly and no handoff is in flight."""
    owned = {worker.name: worker.owned for worker in snapshot.workers}
    shares = [owned[name] for name in ready]
    at_rest = not snapshot.moving and not snapshot.unowned
    return at_rest and sum(shares) == len(snapshot.cells) and max(shares) - min(shares) <= 1


ONE, TWO, THREE, FOUR = NAMES

STEPS: tuple[DemoStep[DemoEnvironment], ...] = (
    DemoStep(
        "Three workers start and share 64 partitions",
        lambda environment: environment.start(ONE, TWO, THREE),
        lambda snapshot: settled(snapshot, ONE, TWO, THREE),
        10,
    ),
    DemoStep(
        "A fourth joins: it builds each partition's state, then takes it over",
        lambda environment: environment.start(FOUR),
        lambda snapshot: settled(snapshot, *NAMES),
        18,
    ),
    DemoStep(
        "worker-2 is killed: when its lease ends, the others get its partitions",
        lambda environment: environment.kill(TWO),
        lambda snapshot: settled(snapshot, ONE, THREE, FOUR),
        15,
    ),
    DemoStep(
        "worker-1 drains: it hands everything over before it leaves",
        lambda environment: environment.drain(ONE),
        lambda snapshot: settled(snapshot, THREE, FOUR) and states(snapshot)[ONE] is State.GONE,
        16,
    ),
)


async def run_script(
    environment: E, steps: Sequence[DemoStep[E]], sleep: Callable[[float], Awaitable[None]]
) -> AsyncIterator[Snapshot]:
    """Run all steps, and yield a few snapshots per second. Raises `StepFailed`."""
    for number, step in enumerate(steps, 1):
        environment.title = f"{number}/{len(steps)}  {step.title}"
        began = environment.now()
        await step.action(environment)
        snapshot = await environment.take_snapshot()
        while not step.until(snapshot):
            if environment.now() - began > STEP_TIMEOUT:
                raise StepFailed(f"{step.title}: not done after {STEP_TIMEOUT:g} s")
            yield snapshot
            await sleep(1 / FRAMES_PER_SECOND)
            snapshot = await environment.take_snapshot()
        yield snapshot
        while environment.pace.hold and environment.now() - began < environment.pace.seconds(step.linger):
            await sleep(1 / FRAMES_PER_SECOND)
            yield await environment.take_snapshot()
