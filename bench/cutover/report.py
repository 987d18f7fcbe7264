"""The tables of what was found, and what of it must not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from bench.cutover.analysis import Findings, Latencies, Spread
from bench.cutover.course import PARTITIONS, Action, Effort
from bench.sheets import Sheet

MUST_BE_NONE = {
    "lost": "requests were lost",
    "stale": "requests were served by a stale owner",
    "doubled": "requests were served while another owner served their partition",
    "disordered": "requests had their effect after a later one of their key",
    "repeated": "requests had their effect more than once",
}
"""Fields of `Findings`, and what a number other than 0 means."""
_WORDS = {Action.JOIN: "join", Action.DRAIN: "drain or leave", Action.KILL: "kill"}


def broken(found: Findings) -> list[str]:
    return [
        f"{found.contestant}: {number} {meaning}"
        for name, meaning in MUST_BE_NONE.items()
        if (number := getattr(found, name))
    ]


# --- several runs ----------------------------------------------------------------------------------------------------


def middle(runs: Sequence[Findings]) -> Findings:
    """The median of each figure; of what must not be, the sum, so that no run's fault disappears."""

    def typical(of: Callable[[Findings], float]) -> float:
        return median(of(run) for run in runs)

    def total(of: Callable[[Findings], int]) -> int:
        return sum(of(run) for run in runs)

    return Findings(
        contestant=runs[0].contestant,
        load=(typical(lambda run: run.load[0]), typical(lambda run: run.load[1])),
        requests=total(lambda run: run.requests),
        lost=total(lambda run: run.lost),
        stale=total(lambda run: run.stale),
        doubled=total(lambda run: run.doubled),
        disordered=total(lambda run: run.disordered),
        repeated=total(lambda run: run.repeated),
        failed=total(lambda run: run.failed),
        cut=total(lambda run: run.cut),
        refused=total(lambda run: run.refused),
        waited=total(lambda run: run.waited),
        stashed=total(lambda run: run.stashed),
        longest_stash=max(run.longest_stash for run in runs),
        moves=total(lambda run: run.moves),
        pauses={
            cause: found for cause in Action if (found := _middle(run.pauses.get(cause) for run in runs)) is not None
        },
        latencies=Latencies(
            _middle(run.latencies.quiet for run in runs),
            _middle(run.latencies.moving for run in runs),
            _middle(run.latencies.killed for run in runs),
        ),
    )


def _middle(spreads: Iterable[Spread | None]) -> Spread | None:
    found = [spread for spread in spreads if spread is not None]
    if not found:
        return None
    return Spread(
        median(one.p50 for one in found),
        median(one.p99 for one in found),
        median(one.most for one in found),
        sum(one.count for one in found),
    )


# --- tables ----------------------------------------------------------------------------------------------------------


def report(found: Sequence[Findings], effort: Effort, runs: int) -> list[Sheet]:
    """`found`: one for each contestant."""
    return [_faults(found, effort, runs), _pauses(found), _latencies(found), _waits(found, effort)]


def _faults(found: Sequence[Findings], effort: Effort, runs: int) -> Sheet:
    course = ", ".join(f"{step.action.value} at {step.at:g} s" for step in effort.steps)
    note = (
        f"{effort.rate:,} requests a second over {PARTITIONS} partitions; {course}. Runs: {runs}; counts are of all "
        "of them together, times are medians. Load: the average before and after."
    )
    header = ("contestant", "requests", "moves", "lost", "stale", "two owners", "out of order", "twice", "load")
    rows = [
        (
            one.contestant,
            *(f"{number:,}" for number in (one.requests, one.moves)),
            *(f"{getattr(one, fault):,}" for fault in MUST_BE_NONE),
            f"{one.load[0]:.1f}, {one.load[1]:.1f}",
        )
        for one in found
    ]
    return Sheet("What must not be", note, header, rows)


def _waits(found: Sequence[Findings], effort: Effort) -> Sheet:
    note = (
        "In flight to the killed: failed by a typed error, and not repeated. Waited for the dead: its lease is "
        f"{effort.ttl:g} s. Held back: in the routers' stash while a partition moved."
    )
    header = (
        "contestant", "in flight to the killed", "failed otherwise", "refused, sent again", "waited for the dead",
        "held back", "longest, ms",
    )  # fmt: skip
    rows = [
        (
            one.contestant,
            *(f"{number:,}" for number in (one.cut, one.failed, one.refused, one.waited, one.stashed)),
            f"{1000 * one.longest_stash:,.0f}",
        )
        for one in found
        if one.stashed or one.waited or one.cut or one.failed
    ]
    return Sheet("What waited, failed or was sent again", note, header, rows)


def _pauses(found: Sequence[Findings]) -> Sheet:
    header = ["contestant"]
    for words in _WORDS.values():
        header += [f"{words}: p50", "p99", "most", "moves"]
    rows = []
    for one in found:
        row = [one.contestant]
        for cause in _WORDS:
            row += _cells(one.pauses.get(cause), "most")
        rows.append(row)
    note = "From the last request that the old owner served to the first of the new one."
    return Sheet("Pause of a partition that moves, ms", note, header, rows)


def _latencies(found: Sequence[Findings]) -> Sheet:
    header = ["contestant"]
    for words in ("quiet", "joins and drains", "kill"):
        header += [f"{words}: p50", "p99", "requests"]
    rows = [[one.contestant, *(cell for spread in _by_time(one.latencies) for cell in _cells(spread))] for one in found]
    note = (
        "Of all partitions, from the moment when a request was due to its answer, or for Kafka to its record's effect."
    )
    return Sheet("Latency, ms", note, header, rows)


def _by_time(latencies: Latencies) -> tuple[Spread | None, ...]:
    return latencies.quiet, latencies.moving, latencies.killed


def _cells(spread: Spread | None, *more: str) -> list[str]:
    if spread is None:
        return ["-"] * (3 + len(more))
    most = [_ms(getattr(spread, name)) for name in more]
    return [_ms(spread.p50), _ms(spread.p99), *most, f"{spread.count:,}"]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}" if seconds < 0.1 else f"{1000 * seconds:,.0f}"
