"""Run the suites on a plain broker and behind the gateway: `python -m tests.suites [--side broker] [SUITE[:TEST]...]`.

Prints a table and every difference by name. Exit status 1: the gateway fails a test that the broker passes, and
`explained.toml` does not say why.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from tests.suites import franz_go, kafka_java, kafka_python, librdkafka
from tests.suites.fronts import Side
from tests.suites.outcomes import (
    Comparison,
    Explanation,
    Outcomes,
    Verdict,
    count,
    details,
    idle,
    read_explained,
    table,
)
from tools.install_kafka_suites import Unavailable

Results = dict[str, dict[str, Outcomes]]
"""By suite and side."""
Run = Callable[[str, Side, Path, Sequence[str]], Outcomes]
SUITES: dict[str, Run] = {
    **dict.fromkeys(kafka_java.METHODS, kafka_java.run),
    **dict.fromkeys(librdkafka.PROTOCOLS, librdkafka.run),
    "franz-go": franz_go.run,
    "kafka-python": kafka_python.run,
}
EXPLAINED = Path(__file__).with_name("explained.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    sides = [Side(options.side)] if options.side else list(Side)
    directory = Path(options.keep or tempfile.mkdtemp(prefix="kafka-suites-"))
    chosen = _chosen(options.suites)
    results: Results = {}
    missing = []
    for suite, tests in chosen.items():
        for side in sides:
            place = directory / suite.replace(" ", "-") / side.value
            place.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            try:
                found = SUITES[suite](suite, side, place, tests)
            except Unavailable as failure:
                missing.append(f"{suite} cannot be had: {failure}")
                break
            results.setdefault(suite, {})[side.value] = found
            passed = count(found, Verdict.PASSED)
            print(f"{suite}, {side.value}: {passed} of {len(found)} in {time.monotonic() - began:.0f} s", flush=True)
    if options.json:
        Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    if not options.keep:
        shutil.rmtree(directory, ignore_errors=True)
    before = _read(options.broker) if options.broker else {}
    return report(results, before, missing, partial={suite for suite, tests in chosen.items() if tests})


def report(results: Results, before: Results, missing: list[str], partial: Collection[str] = ()) -> int:
    """Print what was found; its exit status. `before`: earlier results, for sides that were not run now; `partial`:
    suites of which only some tests were run."""
    comparisons = []
    for suite, sides in results.items():
        known = {**before.get(suite, {}), **sides}
        on_broker = known.get(Side.BROKER.value, {})
        behind = known.get(Side.GATEWAY.value)
        if behind is not None and suite in partial:
            on_broker = {name: one for name, one in on_broker.items() if name in behind}
        comparisons.append(Comparison(suite, on_broker, behind))
    explained = read_explained(EXPLAINED)
    print("\n" + table(comparisons) + "\n")
    for line in [*details(comparisons, explained), *missing, *_idle_lines(explained, comparisons)]:
        print(line)
    return 1 if any(one.unexplained(explained) for one in comparisons) else 0


def _idle_lines(explained: list[Explanation], comparisons: list[Comparison]) -> list[str]:
    return [
        f"passes now, take it from {EXPLAINED.name}: {one.suite}: {one.test}" for one in idle(explained, comparisons)
    ]


def _chosen(words: Sequence[str]) -> dict[str, list[str]]:
    """The suites to run, each with the tests to run of it, if not all."""
    chosen: dict[str, list[str]] = {}
    for word in words or list(SUITES):
        name, _, test = word.partition(":")
        matching = [suite for suite in SUITES if suite == name or suite.split()[0] == name]
        if not matching:
            raise SystemExit(f"no such suite: {name}; there are {', '.join(SUITES)}")
        for suite in matching:
            chosen.setdefault(suite, []).extend([test] if test else [])
    return chosen


def _read(paths: Sequence[str]) -> Results:
    found: Results = {}
    for path in paths:
        for suite, sides in msgspec.json.decode(Path(path).read_bytes(), type=Results).items():
            found.setdefault(suite, {}).update(sides)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE[:TEST]", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--side", choices=[side.value for side in Side], help="run on one side only")
    parser.add_argument("--json", metavar="FILE", help="write every outcome there too")
    parser.add_argument("--broker", nargs="*", metavar="FILE", help="take the broker's outcomes from such files")
    parser.add_argument("--keep", metavar="DIR", help="keep all logs there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
