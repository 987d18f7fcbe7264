"""`assigner demo`: the moving picture."""

from __future__ import annotations

import importlib
from pathlib import Path

import anyio
import click

from assigner.cli.failures import REFUSED, Failure


@click.command()
@click.option("--speed", type=click.FloatRange(min=0.2, max=20), default=1.0, show_default=True, help="2: twice.")
@click.option("--wait/--no-wait", default=True, help="Linger between the acts, or go on as soon as one is done.")
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Keep it as .svg or .txt.")
def demo(speed: float, wait: bool, record: Path | None) -> None:
    """Watch workers join, die and drain for a minute."""
    from rich.console import Console

    # Found at run time: the command line must not pull the whole service in to print a table.
    show = importlib.import_module("assigner.demo.show").show
    play = importlib.import_module("assigner.demo.play")
    pace = importlib.import_module("assigner.demo.stage").Pace(speed=speed, hold=wait)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=100)
    try:
        anyio.run(show, pace, console, record)
    except play.ActFailed as error:
        raise Failure(REFUSED, str(error), kind="demo_failed") from error
    except KeyboardInterrupt:
        click.echo("stopped")
    if record is not None:
        click.echo(f"recorded in {record}")
