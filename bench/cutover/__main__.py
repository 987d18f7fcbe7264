"""How requests fare while pods join, drain and are killed: routers beside a plain Kafka consumer group.

`python -m bench.cutover [--quick] [--only WORD] [--runs N]`. Everything runs on one machine: etcd, the service, two
routers and their pods; then a Kafka broker, its producer and Java's consumers on the same course. Needs Java 17 and
Kafka's jars (`make kafka`) for the peer. Ends with a status other than 0 if one of our requests was lost, was served by
a stale owner or by two at once, had its effect twice, or was out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from bench.cutover import kafka_group, routed_group
from bench.cutover.analysis import Findings, analyse
from bench.cutover.course import QUICK, USUAL, Effort
from bench.cutover.recording import Recording
from bench.cutover.report import broken, middle, report
from bench.sheets import page, terminal, write_between
from tools import install_kafka

Run = Callable[[str, Effort, Path], Awaitable[Recording]]
KAFKA_SESSION = 45.0
"""Kafka's default `session.timeout.ms`, and that of groups whose members the broker assigns."""
SHORTEST_SESSION = 6.0
"""What a broker allows by default."""


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def ours(instances: int) -> dict[str, Run]:
    def runs(mode: str) -> Run:
        return partial(routed_group.run, mode=mode, instances=instances, tell=tell)

    return {"exclusive": runs("exclusive"), "overlap": runs("overlap")}


def peers(effort: Effort) -> dict[str, Run]:
    """With Kafka's defaults, and with a session as long as our lease, because a kill is noticed after that."""
    same = max(SHORTEST_SESSION, effort.ttl)
    short = {"session.timeout.ms": f"{1000 * same:.0f}"}
    found: dict[str, Run] = {
        f"Kafka cooperative-sticky, session {same:g} s": partial(
            kafka_group.run, settings=short, detection=same, tell=tell
        )
    }
    if effort is USUAL:
        found["Kafka cooperative-sticky"] = partial(kafka_group.run, settings={}, detection=KAFKA_SESSION, tell=tell)
        found["Kafka group.protocol=consumer"] = partial(
            kafka_group.run, settings={"group.protocol": "consumer"}, detection=KAFKA_SESSION, tell=tell
        )
    return found


def measure(contestants: dict[str, Run], effort: Effort, runs: int, directory: Path) -> dict[str, list[Findings]]:
    """All contestants in turn, so often."""
    found: dict[str, list[Findings]] = {name: [] for name in contestants}
    for number in range(1, runs + 1):
        for place, (name, run) in enumerate(contestants.items(), 1):
            scratch = directory / f"{number}-{place}"
            scratch.mkdir(parents=True)
            recording = asyncio.run(run_one(run, name, effort, scratch))
            (scratch / "recording.json").write_bytes(msgspec.json.encode(recording))
            found[name].append(analyse(recording))
    return found


async def run_one(run: Run, name: str, effort: Effort, directory: Path) -> Recording:
    return await run(name, effort, directory)


def selected(contestants: dict[str, Run], words: Sequence[str]) -> dict[str, Run]:
    return {name: run for name, run in contestants.items() if not words or any(word in name for word in words)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.cutover", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests, a faster course, and one peer")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="those with it in their name")
    parser.add_argument("--runs", type=int, default=1, help="the tables show medians of them")
    parser.add_argument("--instances", type=int, default=1, choices=(1, 2), help="of the service")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found in every run there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="rewrite the tables of this page")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep recordings and logs there")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else USUAL
    contestants = ours(options.instances)
    problem = install_kafka.missing_tool()
    if problem is None and install_kafka.main() == 0:
        contestants |= peers(effort)
    else:
        tell(f"without Kafka: {problem or 'its jars are not there'}")
    with TemporaryDirectory() as scratch:
        found = measure(selected(contestants, options.only), effort, options.runs, options.keep or Path(scratch))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    console = Console()
    console.width = max(console.width, 130)
    sheets = report([middle(runs) for runs in found.values()], effort, options.runs)
    for sheet in sheets:
        console.print(terminal(sheet))
    if options.markdown is not None:
        write_between(options.markdown, "cutover", "\n".join(page(sheet) for sheet in sheets))
    problems = [line for name, runs in found.items() if name in ours(1) for one in runs for line in broken(one)]
    for line in problems:
        console.print(f"[red]{line}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
