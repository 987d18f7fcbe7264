"""Many seeds of chaos, from the command line: `make chaos SEEDS=2000`, or `python -m tests.chaos.run --help`.

Each seed is run three times: as a course of `tests/chaos/histories/group_life.py`, as one of `random_histories.py`
beside it, and as one of `tests/chaos/routers`. What is found is told at once, with how to see it again; in the end a
table tells how much was tried. Exit status 1: something was found.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import anyio.to_thread
import msgspec

from assigner.model.records import HandoffMode
from assigner.testing.virtual_time import run
from tests.chaos.histories import group_life
from tests.chaos.histories.random_histories import course as running_course
from tests.chaos.routers.course import course as routers_course

KINDS = ("chaos", "course", "routers")
EVERY = 10.0
"""Seconds between two lines of progress."""


class Result(msgspec.Struct, frozen=True):
    kind: str
    seed: int
    steps: int
    seconds: float
    happened: dict[str, int] = {}
    faults: dict[str, int] = {}
    seen: dict[str, int] = {}
    violation: str = ""
    story: str = ""


async def _here(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
    return work(*args)


def alone() -> None:
    """A thread takes as long as it takes, and a course from a seed must not depend on that."""
    anyio.to_thread.run_sync = _here  # type: ignore[assignment]
    logging.disable(logging.CRITICAL)


def one(kind: str, seed: int, steps: int) -> Result:
    began = time.process_time()
    found: list[Any] = []
    violation = story = ""
    try:
        run(lambda: _course(kind, seed, steps, found))
    except Exception as error:  # noqa: BLE001
        first = _first(error)
        violation = f"{type(first).__name__}: {first}"
        story = "\n".join([*getattr(first, "__notes__", ()), *getattr(error, "__notes__", ())])
    what = found[0]
    return Result(
        kind=kind,
        seed=seed,
        steps=sum(what.happened.values()),
        seconds=time.process_time() - began,
        happened=dict(what.happened),
        faults=dict(what.faults),
        seen=dict(what.checks.seen),
        violation=violation,
        story=story,
    )


async def _course(kind: str, seed: int, steps: int, found: list[Any]) -> None:
    if kind == "chaos":
        await group_life.course(seed, steps=steps, begun=found.append)
        return
    if kind == "routers":
        await routers_course(seed, steps=steps, begun=found.append)
        return
    mode = HandoffMode.EXCLUSIVE if seed % 2 else HandoffMode.OVERLAP
    topics = ("t",) if seed % 4 < 2 else ("t", "u")
    async with running_course(seed, mode, topics, standbys=seed // 4 % 2) as running:
        found.append(running)
        try:
            await running.run(steps=steps)
        except BaseException as error:
            error.add_note("\n".join(running.log[-60:]))
            raise


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def results(jobs: Iterable[tuple[str, int]], steps: int, workers: int) -> Iterator[Result]:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=alone) as pool:
        futures = [pool.submit(one, kind, seed, steps) for kind, seed in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


class Totals:
    def __init__(self) -> None:
        self.seeds: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.counts: dict[str, dict[str, Counter[str]]] = {
            title: {kind: Counter() for kind in KINDS} for title in ("happened", "calls disturbed", "looked at")
        }
        self.steps: Counter[str] = Counter()
        self.seconds = 0.0

    def add(self, result: Result) -> None:
        self.seeds[result.kind] += 1
        self.steps[result.kind] += result.steps
        self.seconds += result.seconds
        self.violations[result.kind] += bool(result.violation)
        for title, found in zip(self.counts, (result.happened, result.faults, result.seen), strict=True):
            self.counts[title][result.kind].update(found)

    def lines(self) -> Iterator[str]:
        yield _row("", *KINDS)
        yield _row("seeds", *(self.seeds[kind] for kind in KINDS))
        yield _row("steps", *(self.steps[kind] for kind in KINDS))
        for title, by_kind in self.counts.items():
            yield f"{title}:"
            names = sorted(set().union(*by_kind.values()))
            for name in names:
                yield _row(f"  {name}", *(by_kind[kind][name] for kind in KINDS))
        yield _row("violations", *(self.violations[kind] for kind in KINDS))
        yield f"{self.seconds:.0f} s of processor time"


def _row(name: str, *values: object) -> str:
    return f"{name:<28}" + "".join(f"{value!s:>12}" for value in values)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=200, help="how many, of each kind")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60, help="of each course")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only courses of this kind")
    asked = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        print("PYTHONHASHSEED is not 0: a seed may take another course the next time", file=sys.stderr)
    seeds = range(asked.first, asked.first + asked.seeds)
    jobs = [(kind, seed) for seed in seeds for kind in asked.kind or KINDS]
    totals, told = Totals(), time.monotonic()
    for number, result in enumerate(results(jobs, asked.steps, asked.jobs), 1):
        totals.add(result)
        if result.violation:
            print(f"\n{result.kind} {result.seed}: {result.violation}\n{result.story}", flush=True)
            again = f"--kind {result.kind} --first {result.seed} --seeds 1"
            print(f"again: PYTHONHASHSEED=0 python -m tests.chaos.run {again}", flush=True)
        if time.monotonic() - told > EVERY or number == len(jobs):
            told = time.monotonic()
            print(f"{number} of {len(jobs)}, {sum(totals.violations.values())} violations", flush=True)
    print("\n".join(totals.lines()), flush=True)
    return bool(sum(totals.violations.values()))


if __name__ == "__main__":
    sys.exit(main())
