"""`assigned_kafka` beside Spark's own Kafka source: rows per second, and how long a partition rests when it moves.

`python -m bench.spark [--quick] [--json FILE]`. Broker, assigner and Spark share the machine; Spark runs two tasks at a
time. Needs Java 17, and Maven to fetch a broker and Spark's own source once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from assigner.model.records import HandoffMode
from bench.spark.environment import environment
from bench.spark.pauses import Pauses, handoffs, records_coming, restarts
from bench.spark.rates import JVM, OURS, Rate, rates
from tools import install_kafka, install_spark_kafka

SIZES = (100, 1000)
TARGET = 0.6


class Effort(msgspec.Struct, frozen=True):
    megabytes: int
    """In each topic."""
    turns: int
    rounds: int


USUAL, QUICK = Effort(300, 5, 10), Effort(60, 2, 2)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    connector: str
    """The version of Spark's own source."""
    load: tuple[float, ...]
    """Of the machine before and after: others may have been at work."""
    rates: list[Rate]
    pauses: list[Pauses]


def measure(effort: Effort) -> Figures:
    before = os.getloadavg()[0]
    found: list[Rate] = []
    pauses: list[Pauses] = []
    with environment(HandoffMode.EXCLUSIVE) as place:
        for size in SIZES:
            found += rates(place, size, effort.megabytes * 1_000_000 // size, effort.turns, _tell)
        with records_coming(place):
            pauses += handoffs(place, effort.rounds, _tell)
            pauses.append(restarts(place, 2 * effort.rounds, _tell))
    load = (before, os.getloadavg()[0])
    return Figures(connector=install_spark_kafka.connector(), load=load, rates=found, pauses=pauses)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table_of_rates(found: Sequence[Rate]) -> Table:
    title = "Rows per second; seconds of CPU for a million rows, the query's start among them"
    table = Table(title=title, title_justify="left")
    for heading in ("value", OURS, JVM, "ratio", "target", "CPU s", "CPU s (JVM)"):
        table.add_column(heading, justify="left" if heading == "value" else "right")
    for size in sorted({one.value_bytes for one in found}):
        ours, jvm = (next(one for one in found if (one.source, one.value_bytes) == (of, size)) for of in (OURS, JVM))
        rate = f"{ours.median:,.0f}", f"{jvm.median:,.0f}", f"{ours.median / jvm.median:.0%}", f"{TARGET:.0%}"
        table.add_row(f"{size} B", *rate, f"{ours.cpu:.1f}", f"{jvm.cpu:.1f}")
    return table


def table_of_pauses(found: Sequence[Pauses]) -> Table:
    table = Table(title="Seconds from one commit of a partition to the next", title_justify="left")
    for heading in ("what", "p50", "p99", "most", "times"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for one in found:
        table.add_row(one.what, *(f"{one.at(at):.2f}" for at in (50, 99, 100)), str(len(one.seconds)))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.spark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller and fewer measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there too")
    options = parser.parse_args()
    problem = install_kafka.missing_tool() or install_spark_kafka.unavailable()
    if problem is not None or install_kafka.main() != 0:
        print(f"nothing to compare with: {problem}", file=sys.stderr)
        return 1
    figures = measure(QUICK if options.quick else USUAL)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    console = Console()
    console.width = max(console.width, 100)
    console.print(table_of_rates(figures.rates))
    console.print(table_of_pauses(figures.pauses))
    before, after = figures.load
    console.print(
        f"Spark's own source: {figures.connector}. Load of the machine: {before:.1f} before, {after:.1f} after."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
