"""`assigner demo`: shows workers that join, crash and drain, live on the terminal."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import click
from rich.console import Console

from assigner.cli.exit_codes import REFUSED, Failure
from assigner.demo.environment import Pace
from assigner.demo.script import StepFailed
from assigner.demo.show import DemoStopped, show


@click.command()
@click.option(
    "--speed", type=click.FloatRange(min=0.2, max=20), default=1.0, show_default=True, help="2: twice as fast."
)
@click.option("--wait/--no-wait", default=True, help="Pause between the steps, or start the next one at once.")
@click.option("--routers", is_flag=True, help="Routers send requests to pods that come and go, and lose none.")
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Save it as .svg or .txt.")
def demo(speed: float, wait: bool, routers: bool, record: Path | None) -> None:
    """Watch workers join, die and drain for a minute."""
    pace = Pace(speed=speed, hold=wait)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=100)
    try:
        anyio.run(partial(show, pace, console, record, with_routers=routers))
    except StepFailed as error:
        raise Failure(REFUSED, str(error), kind="demo_failed") from error
    except (KeyboardInterrupt, DemoStopped):
        click.echo("stopped" if record is None else f"stopped; nothing is recorded in {record}")
        return
    if record is not None:
        click.echo(f"recorded in {record}")
