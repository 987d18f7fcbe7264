"""Our strategies beside Kafka's assignors and two published algorithms, on the same problems.

`python -m bench.strategies [--quick | --full]` prints how long each takes, what it moves, how far that is from the
least possible and how even the result is. Kafka's own assignors run in a Java process where Java and Maven are at hand;
where they are not, the tables say so. `--markdown docs/performance.md` rewrites the tables of that page.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assigner.strategy import Problem
from bench.sheets import Sheet, page, terminal, write_between
from bench.strategies.cells import Grid, Row
from bench.strategies.contestants import Contestant, kafkas, models, ours
from bench.strategies.grid import (
    QUICK,
    USUAL,
    Operation,
    Shape,
    Sizes,
    Subscriptions,
    changed,
    dealt,
    everything,
    fresh,
)
from bench.strategies.kafka_assignors import KafkaAssignors, unavailable
from bench.strategies.memory import SHAPES, Peak, peaks
from bench.strategies.sheets import cells_sheet, grid_sheets, memory_sheet
from bench.strategies.targets import SMALL, Size, Target, targets, targets_sheet
from bench.strategies.timed_calls import Effort
from tools.install_kafka import KAFKA_VERSION

PARTS = ("targets", "grid", "memory")
Tell = Callable[[str], None]


@dataclass
class Found:
    """All that a run measured."""

    kafka: str
    """Kafka's version, or why it was not run."""
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)
    size: Size = field(default_factory=Size)
    """Of the targets."""
    left_out: Counter[str] = field(default_factory=Counter)

    def sheets(self, *, cells: bool) -> list[Sheet]:
        sheets = [targets_sheet(self.targets, self.size)] if self.targets else []
        if self.rows:
            sheets += grid_sheets(self.rows) + ([cells_sheet(self.rows)] if cells else [])
        return sheets + ([memory_sheet(self.peaks)] if self.peaks else [])

    def remarks(self) -> list[str]:
        lines = [f"Kafka: {self.kafka}. Python {platform.python_version()}."]
        skipped = Counter(f"{row.contestant}: {row.not_run}" for row in self.rows if row.not_run)
        lines += [f"Not run in {count} cells: {why}." for why, count in sorted(skipped.items())]
        return lines + [f"{count} groups left out: {why}." for why, count in sorted(self.left_out.items())]


def run(options: argparse.Namespace, console: Console) -> Found:
    effort = Effort(0.02, 0.1, 3, 10.0) if options.quick else Effort()
    missing = "not asked for" if options.no_kafka else unavailable()
    found = Found(missing or f"{KAFKA_VERSION}, after warming up")
    found.size = SMALL if options.quick else found.size
    with KafkaAssignors(_warm_up_on(), 0.2 if options.quick else 2.0) as process:
        contestants = ours() + ([] if missing else kafkas(process)) + models()
        # Whoever interrupts a run of hours gets what there is.
        with contextlib.suppress(KeyboardInterrupt):
            _measure(found, contestants, effort, options, console)
    return found


def _measure(
    found: Found, contestants: Sequence[Contestant], effort: Effort, options: argparse.Namespace, console: Console
) -> None:
    parts = options.only or PARTS
    if "targets" in parts:
        with console.status("targets") as status:
            # Java needs seconds to compile what large problems make it do.
            longer = effort if options.quick else replace(effort, warm_up=2.0)
            found.targets.extend(targets(contestants, longer, status.update, found.size))
    if "grid" in parts:
        shapes, found.left_out = _sensible(_shapes(options))
        operations = [Operation(name) for name in options.operation or list(Operation)]
        with _progress(console, len(shapes) * len(operations) * len(contestants)) as tell:
            for row in Grid(contestants, effort).run(shapes, operations, tell):
                found.rows.append(row)
    if "memory" in parts and (not options.quick or options.only):
        with console.status("memory") as status:
            found.peaks = peaks(SHAPES, status.update)


def _warm_up_on() -> list[Problem]:
    """Each way through the assignors: from nothing and from a change, with one subscription and with several. Small
    where subscriptions differ: Kafka's cooperative-sticky assignor takes a minute for 5,000 partitions then."""
    problems = []
    for shape in (Shape(100, 20, 5_000), Shape(20, 20, 400, subscriptions=Subscriptions.NESTED)):
        problems += [fresh(shape), changed(shape, Operation.JOIN_MANY, dealt(shape, Operation.JOIN_MANY))]
    return problems


def _shapes(options: argparse.Namespace) -> Sequence[Shape]:
    if options.shape:
        return list(options.shape)
    return QUICK if options.quick else everything() if options.full else USUAL


def _sensible(shapes: Sequence[Shape]) -> tuple[list[Shape], Counter[str]]:
    reasons = Counter(reason for shape in shapes if (reason := shape.nonsense()) is not None)
    return [shape for shape in shapes if shape.nonsense() is None], reasons


def shape_of(words: str) -> Shape:
    """`500,50,20000,skewed,nested,racks`: three numbers, then what is not ordinary."""
    members, topics, partitions, *rest = words.split(",")
    sizes = Sizes.SKEWED if "skewed" in rest else Sizes.EQUAL
    kinds = [Subscriptions(word) for word in rest if word in (Subscriptions.DISJOINT, Subscriptions.NESTED)]
    unknown = set(rest) - {"skewed", "disjoint", "nested", "racks"}
    if unknown:
        raise argparse.ArgumentTypeError(f"{words}: don't know {', '.join(sorted(unknown))}")
    subscriptions = kinds[0] if kinds else Subscriptions.ONE
    return Shape(int(members), int(topics), int(partitions), sizes, subscriptions, "racks" in rest)


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Tell]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def tell(text: str) -> None:
            progress.update(task, advance=1, description=text)

        yield tell


def _write(found: Found, options: argparse.Namespace) -> None:
    if options.json:
        content = {"kafka": found.kafka, "targets": found.targets, "cells": found.rows, "memory": found.peaks}
        Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(content)))
    if options.markdown:
        remarks = " ".join(found.remarks())
        tables = "\n".join(page(sheet) for sheet in found.sheets(cells=False))
        write_between(Path(options.markdown), "strategies", f"{remarks}\n\n{tables}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.strategies", description=(__doc__ or "").splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small groups, some seconds")
    size.add_argument("--full", action="store_true", help="the whole grid, hours")
    size.add_argument("--shape", action="append", type=shape_of, metavar="M,T,P[,skewed][,disjoint|nested][,racks]")
    parser.add_argument("--operation", action="append", choices=[operation.value for operation in Operation])
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--memory", dest="only", action="append_const", const="memory", help="--only memory")
    parser.add_argument("--no-kafka", action="store_true", help="don't start Java")
    parser.add_argument("--cells", action="store_true", help="also a line for each contestant in each cell")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE", help="rewrite the tables between the marks of this page")
    options = parser.parse_args()
    console = Console()
    console.width = max(console.width, 200)
    found = run(options, console)
    for sheet in found.sheets(cells=options.cells):
        console.print(terminal(sheet))
    for remark in found.remarks():
        console.print(f"[dim]{remark}")
    _write(found, options)


if __name__ == "__main__":
    main()
