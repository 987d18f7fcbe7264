"""The script of the demo: four acts, each waits for what it is about, and then lingers for a person to see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from assigner.demo.scene import Scene, State
from assigner.demo.stage import NAMES, DemoStage

FRAMES_PER_SECOND = 8
PATIENCE = 120.0
"""Seconds of waiting after which an act is taken for failed."""


class ActFailed(Exception):
    """What an act waits for did not come."""


class Act(msgspec.Struct, frozen=True):
    title: str
    action: Callable[[DemoStage], Awaitable[None]]
    until: Callable[[Scene], bool]
    linger: float
    """Seconds the act lasts at least, at ordinary speed."""


def _states(scene: Scene) -> dict[str, State]:
    return {worker.name: worker.state for worker in scene.workers}


def _settled(scene: Scene, *ready: str) -> bool:
    """Everything is owned by those who are to have it, evenly, and nothing moves."""
    owned = {worker.name: worker.owned for worker in scene.workers}
    shares = [owned[name] for name in ready]
    at_rest = not scene.moving and not scene.unowned
    return at_rest and sum(shares) == len(scene.cells) and max(shares) - min(shares) <= 1


ONE, TWO, THREE, FOUR = NAMES

ACTS = (
    Act(
        "Three workers start and share 64 partitions",
        lambda stage: stage.start(ONE, TWO, THREE),
        lambda scene: _settled(scene, ONE, TWO, THREE),
        10,
    ),
    Act(
        "A fourth joins: a quarter moves, each partition warmed before it changes hands",
        lambda stage: stage.start(FOUR),
        lambda scene: _settled(scene, *NAMES),
        18,
    ),
    Act(
        "worker-2 is killed: when its lease is over, its partitions go to the others",
        lambda stage: stage.kill(TWO),
        lambda scene: _settled(scene, ONE, THREE, FOUR),
        15,
    ),
    Act(
        "worker-1 drains: everything is handed over before it leaves",
        lambda stage: stage.drain(ONE),
        lambda scene: _settled(scene, THREE, FOUR) and _states(scene)[ONE] is State.GONE,
        16,
    ),
)


async def play(stage: DemoStage, sleep: Callable[[float], Awaitable[None]]) -> AsyncIterator[Scene]:
    """The scenes of the whole demo, a few per second. Raises `ActFailed`."""
    for number, act in enumerate(ACTS, 1):
        stage.title = f"{number}/{len(ACTS)}  {act.title}"
        began = stage.now()
        await act.action(stage)
        scene = await stage.look()
        while not act.until(scene):
            if stage.now() - began > PATIENCE:
                raise ActFailed(f"{act.title}: not done after {PATIENCE:g} s")
            yield scene
            await sleep(1 / FRAMES_PER_SECOND)
            scene = await stage.look()
        yield scene
        while stage.pace.hold and stage.now() - began < stage.pace.seconds(act.linger):
            await sleep(1 / FRAMES_PER_SECOND)
            yield await stage.look()
