"""`python -m bench.gateway [--quick]`: measures broker and gateway in one run, and prints their figures and ratios."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench.gateway.measures import PARTITIONS, Figures, commits, fresh, heartbeats, joins_and_leaves, records, storm
from bench.gateway.raw import Refused
from bench.gateway.subjects import Subject, running_broker, running_gateway
from bench.sheets import Sheet, page, terminal, write_between
from bench.store import some_etcd
from tests.support.servers.kafka import KafkaBroker


class Effort(msgspec.Struct, frozen=True):
    rounds: int = 6
    seconds: float = 5.0
    members: int = 500
    megabytes: int = 400
    singles: int = 1_000


QUICK = Effort(rounds=2, seconds=1.0, members=100, megabytes=40, singles=200)

WITHIN = 180.0
"""Seconds for one measurement. One that takes longer has no figures."""


def _bounded(work: Coroutine[Any, Any, Figures]) -> Figures:
    return asyncio.run(asyncio.wait_for(work, WITHIN))


Work = Callable[[Subject, Effort, str], Figures]
MEASURES: dict[str, Work] = {
    "joins": lambda subject, effort, topic: joins_and_leaves(subject, topic, effort.rounds),
    "heartbeats": lambda subject, effort, topic: _bounded(heartbeats(subject, topic, effort.seconds)),
    "commits": lambda subject, effort, topic: _bounded(commits(subject, topic, effort.seconds)),
    "storm": lambda subject, effort, topic: _bounded(storm(subject, topic, effort.members)),
    "records": lambda subject, effort, topic: records(subject, topic, effort.megabytes, effort.singles),
}


def measure(broker: KafkaBroker, subject: Subject, effort: Effort, only: list[str]) -> Figures:
    found: Figures = {}
    for name, work in MEASURES.items():
        if only and name not in only:
            continue
        print(f"{subject.name}: {name}", file=sys.stderr, flush=True)
        topic = fresh(name)
        broker.create_topic(topic, PARTITIONS)
        try:
            found |= work(subject, effort, topic)
        except (TimeoutError, Refused, OSError) as error:
            print(f"{subject.name}: {name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return found


def run(stores: list[str], effort: Effort, only: list[str]) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    with ExitStack() as stack:
        broker, itself = stack.enter_context(running_broker())
        endpoint = stack.enter_context(some_etcd(None)) if "etcd" in stores else None
        found[itself.name] = measure(broker, itself, effort, only)
        for store in stores:
            with running_gateway(store, endpoint if store == "etcd" else None, broker.bootstrap) as subject:
                found[subject.name] = measure(broker, subject, effort, only)
    return found


def sheet(found: dict[str, Figures], effort: Effort) -> Sheet:
    broker, *gateways = found
    header = ["what", broker, *(column for name in gateways for column in (name, "ratio"))]
    rows = []
    for what in dict.fromkeys(what for figures in found.values() for what in figures):
        figure = found[broker].get(what)
        row = [what, _shown(figure)]
        for name in gateways:
            other = found[name].get(what)
            row += [_shown(other), f"{other / figure:.2f}" if figure and other is not None else ""]
        rows.append(row)
    note = (
        "One machine, one run: a Kafka 4.3.1 broker, then `assigner serve --gateway` in front of it on each store. "
        "Ratios are to the broker. Processor time is that of the broker's or the gateway's own process; etcd and, "
        f"behind the gateway, the broker take more. Joins: {effort.rounds} of each, with librdkafka. The broker writes "
        "offsets without a flush for each commit; etcd flushes each."
    )
    return Sheet("The gateway beside the broker", note, header, rows)


def _shown(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.gateway", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, to see that it works")
    parser.add_argument("--only", action="append", choices=list(MEASURES), default=[], help="may be given repeatedly")
    parser.add_argument("--store", action="append", choices=["memory", "etcd"], help="by default both")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="rewrite the table of this page")
    options = parser.parse_args()
    effort = QUICK if options.quick else Effort()
    found = run(options.store or ["memory", "etcd"], effort, options.only)
    result = sheet(found, effort)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        console = Console()
        console.width = max(console.width, 130)
        console.print(terminal(result))
    if options.markdown:
        write_between(options.markdown, "gateway", page(result))


if __name__ == "__main__":
    main()
