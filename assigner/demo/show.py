"""Runs the demo and displays it: live on a terminal, otherwise the last frame of each step."""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
from rich.console import Console
from rich.live import Live

from assigner import logs
from assigner.demo import recording
from assigner.demo.environment import DemoEnvironment, Pace
from assigner.demo.rendering import HEIGHT, NARROW, layout_for, render
from assigner.demo.routed_environment import RoutedEnvironment
from assigner.demo.routed_script import ROUTED_STEPS
from assigner.demo.script import STEPS, DemoStep, E, run_script
from assigner.demo.snapshot import Snapshot
from assigner.logs import LogLevel, LogSettings

RECORDED_FRAMES = 13


class DemoStopped(Exception):
    """The demo was told to end, by SIGTERM or because its terminal was closed."""


async def show(
    pace: Pace, console: Console, record: Path | None = None, *, with_routers: bool = False
) -> list[Snapshot]:
    """Run the demo, and return the snapshots that were displayed. Raises `DemoStopped` on SIGTERM and SIGHUP."""
    if console.is_terminal and (console.width < NARROW.width or console.height < HEIGHT):
        needed = f"The picture needs {NARROW.width} columns and {HEIGHT} lines"
        console.print(f"{needed}; this terminal has {console.width} and {console.height}.", soft_wrap=True)
    # The service logs in this process; its lines would break the display.
    logs.configure(LogSettings(level=LogLevel.ERROR), io.StringIO())
    snapshots: list[Snapshot] = []
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:

            def display(snapshot: Snapshot) -> None:
                if console.is_terminal:
                    live.update(render(snapshot, layout_for(console)), refresh=True)
                elif not snapshots or snapshot.title != snapshots[-1].title:
                    _print_last(snapshots, console)
                snapshots.append(snapshot)

            with anyio.CancelScope() as scope:
                for number in (signal.SIGTERM, signal.SIGHUP):
                    asyncio.get_running_loop().add_signal_handler(number, scope.cancel)
                if with_routers:
                    await _run(RoutedEnvironment(pace), ROUTED_STEPS, display)
                else:
                    await _run(DemoEnvironment(pace), STEPS, display)
            if scope.cancelled_caught:
                raise DemoStopped
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
        console.print(render(snapshots[-1], layout_for(console)))


def selection(snapshots: Sequence[Snapshot], count: int) -> list[Snapshot]:
    """Select about `count` snapshots, as many of each step: of those in which something changed the liveliest ones, in
    their order, and the last of all."""
    steps: dict[str, list[Snapshot]] = {}
    for snapshot in snapshots[:-1]:
        if snapshot.unowned == len(snapshot.cells):  # nothing to see yet
            continue
        distinct = steps.setdefault(snapshot.title, [])
        if distinct and _shape(distinct[-1]) == _shape(snapshot):
            distinct.pop()
        distinct.append(snapshot)
    chosen: list[Snapshot] = []
    for distinct in steps.values():
        part = max(1, -(-len(distinct) * len(steps) // max(1, count - 1)))
        chosen += [max(distinct[at : at + part], key=_liveliness) for at in range(0, len(distinct), part)]
    return [*chosen, *snapshots[-1:]]


def _shape(snapshot: Snapshot) -> tuple[object, ...]:
    """The parts of a snapshot whose change is worth a frame."""
    traffic = snapshot.traffic
    if traffic is None:
        return (snapshot.cells, snapshot.workers)
    routers = [(router.name, router.present) for router in traffic.routers]
    return (snapshot.cells, snapshot.workers, routers, any(traffic.waiting[-1:]))


def _liveliness(snapshot: Snapshot) -> tuple[int, ...]:
    waiting = snapshot.traffic.waiting[-1:] if snapshot.traffic is not None else ()
    return (snapshot.frozen, sum(waiting), len(snapshot.moving))
