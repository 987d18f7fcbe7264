"""Putting the play on a screen: live where there is a terminal, a frame now and then where there is none."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import anyio
from rich.console import Console
from rich.live import Live

from assigner import logs
from assigner.demo import recording
from assigner.demo.picture import draw
from assigner.demo.play import play
from assigner.demo.scene import Scene
from assigner.demo.stage import DemoStage, Pace
from assigner.logs import LogLevel, LogSettings

RECORDED_FRAMES = 12


async def show(pace: Pace, console: Console, record: Path | None = None) -> list[Scene]:
    """Play the demo; the scenes that were shown."""
    # The service logs into this process; on the screen it would tear the picture apart.
    logs.configure(LogSettings(level=LogLevel.ERROR), io.StringIO())
    scenes: list[Scene] = []
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            async with DemoStage(pace) as stage:
                async for scene in play(stage, anyio.sleep):
                    if console.is_terminal:
                        live.update(draw(scene), refresh=True)
                    elif not scenes or scene.title != scenes[-1].title:
                        _print_last(scenes, console)
                    scenes.append(scene)
    finally:
        logs.close()
    if not console.is_terminal:
        _print_last(scenes, console)
    if record is not None:
        recording.save(selection(scenes, RECORDED_FRAMES), record)
    return scenes


def _print_last(scenes: Sequence[Scene], console: Console) -> None:
    """Without a terminal: how each act ended."""
    if scenes:
        console.print(draw(scenes[-1]))


def selection(scenes: Sequence[Scene], count: int) -> list[Scene]:
    """Few scenes for many: those in which something changed, spread evenly, and the last."""
    telling: list[Scene] = []
    for scene in scenes[:-1]:
        if not telling or _shape(telling[-1]) != _shape(scene):
            telling.append(scene)
    step = max(1, -(-len(telling) // max(1, count - 1)))
    return [*telling[::step], *scenes[-1:]]


def _shape(scene: Scene) -> tuple[object, ...]:
    """What a viewer would call a change."""
    return (scene.title, scene.cells, scene.workers)
