"""Runs the demo and displays it: live on a terminal, otherwise the last frame of each step."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
from rich.console import Console
from rich.live import Live

from assigner import logs
from assigner.demo import recording
from assigner.demo.environment import DemoEnvironment, Pace
from assigner.demo.rendering import render
from assigner.demo.routed_environment import RoutedEnvironment
from assigner.demo.routed_script import ROUTED_STEPS
from assigner.demo.script import STEPS, DemoStep, E, run_script
from assigner.demo.snapshot import Snapshot
from assigner.logs import LogLevel, LogSettings

RECORDED_FRAMES = 12


async def show(
    pace: Pace, console: Console, record: Path | None = None, *, with_routers: bool = False
) -> list[Snapshot]:
    """Run the demo, and return the snapshots that were displayed."""
    # The service logs in this process; its lines would break the display.
    logs.configure(LogSettings(level=LogLevel.ERROR), io.StringIO())
    snapshots: list[Snapshot] = []
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:

            def display(snapshot: Snapshot) -> None:
                if console.is_terminal:
                    live.update(render(snapshot), refresh=True)
                elif not snapshots or snapshot.title != snapshots[-1].title:
                    _print_last(snapshots, console)
                snapshots.append(snapshot)

            if with_routers:
                await _run(RoutedEnvironment(pace), ROUTED_STEPS, display)
            else:
                await _run(DemoEnvironment(pace), STEPS, display)
    finally:
        logs.close()
    if not console.is_terminal:
        _print_last(snapshots, console)
    if record is not None:
        recording.save(selection(snapshots, RECORDED_FRAMES), record)
    return snapshots


async def _run(environment: E, steps: Sequence[DemoStep[E]], display: Callable[[Snapshot], None]) -> None:
    async with environment:
        async for snapshot in run_script(environment, steps, anyio.sleep):
            display(snapshot)


def _print_last(snapshots: Sequence[Snapshot], console: Console) -> None:
    """Print the last snapshot of a step, where there is no terminal."""
    if snapshots:
        console.print(render(snapshots[-1]))


def selection(snapshots: Sequence[Snapshot], count: int) -> list[Snapshot]:
    """Select about `count` snapshots: evenly from those in which something changed, and the last one."""
    distinct: list[Snapshot] = []
    for snapshot in snapshots[:-1]:
        if not distinct or _shape(distinct[-1]) != _shape(snapshot):
            distinct.append(snapshot)
    step = max(1, -(-len(distinct) // max(1, count - 1)))
    return [*distinct[::step], *snapshots[-1:]]


def _shape(snapshot: Snapshot) -> tuple[object, ...]:
    """The parts of a snapshot whose change is worth a frame."""
    return (snapshot.title, snapshot.cells, snapshot.workers)
