"""Joins, leaves and cut connections for as long as one likes, and whether anything grows or dies by it.

Two `assigner serve` processes on a real etcd; real clients that come and go, some in order, some drained, some just
gone; proxies between instances and etcd and between clients and instances, whose connections are cut all the time.
Then it all settles. `python -m bench.soak [--minutes M]`; exits with 1 unless everything stayed flat, nobody became a
zombie, no loop had to be restarted and the groups have settled.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from bench.soak.churn import soak
from bench.soak.report import compare, table


@contextmanager
def _clients_say_errors_only() -> Iterator[None]:
    """They would warn of every cut. The level is put back: a test runs this in its own process."""
    logger = logging.getLogger("assigner.client")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="of churn; settling comes on top (20)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the chance that decides")
    parser.add_argument("--logs", type=Path, help="a directory to keep the instances' logs in")
    options: Any = parser.parse_args(arguments)
    # A table as wide as it needs to be, unless a terminal would break its lines.
    console = Console(width=None if sys.stdout.isatty() else 160)
    with TemporaryDirectory() as temporary, _clients_say_errors_only():
        directory = options.logs or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        run, problems = asyncio.run(soak(options.minutes, directory, options.seed, console.print))
    console.print(table(run.samples, compare(run.samples)))
    console.print(", ".join(f"{what} {count}" for what, count in sorted(run.counts.items())))
    for problem in problems:
        console.print(f"[red]{problem}[/red]")
    console.print("NOT FLAT OR NOT WELL" if problems else "flat, settled, nobody a zombie", style="bold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
