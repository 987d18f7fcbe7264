"""A day in the life of a group, planned by each strategy: how much it moves and how even it stays.

`python -m bench.day` writes `docs/images/strategies.svg` and prints the totals.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.day.picture import draw
from bench.day.simulation import Life, lived

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "strategies.svg"


def table(found: Sequence[Life]) -> Table:
    shown = Table(title="A day", title_justify="left")
    shown.add_column("strategy")
    for column in ("moves", "imbalance at most", "on average", "within a topic at most"):
        shown.add_column(column, justify="right")
    for life in found:
        average = sum(life.imbalance) / len(life.imbalance)
        figures = (f"{life.moves[-1]:,}", str(max(life.imbalance)), f"{average:.1f}", str(max(life.worst_topic)))
        shown.add_row(life.name, *figures)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.day", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--picture", type=Path, default=PICTURE, metavar="FILE")
    options = parser.parse_args()
    day = lived()
    draw(day, options.picture)
    console = Console()
    console.print(table(day.lives))
    console.print(f"{len(day.events)} events; drawn in {options.picture}")


if __name__ == "__main__":
    main()
