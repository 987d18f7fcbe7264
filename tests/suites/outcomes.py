"""What tests of a suite came to, on the broker and behind the gateway, and which differences count.

A test that fails behind the gateway and passes on the broker is a fault of the gateway, unless it is explained. One
that fails on both says nothing about the gateway. An explanation that explains nothing any more is told, so that the
list does not outlive its reasons.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path

import msgspec


class Verdict(str, Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(msgspec.Struct, frozen=True):
    """What one test came to."""

    verdict: Verdict
    seconds: float = 0.0
    reason: str = ""
    """The first line of why it failed."""


Outcomes = dict[str, Outcome]
"""By the test's name."""


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a test that passes on the broker may fail behind the gateway."""

    suite: str
    test: str
    """Its name, or a pattern of names."""
    because: str

    def covers(self, suite: str, test: str) -> bool:
        return fnmatch.fnmatchcase(suite, self.suite) and fnmatch.fnmatchcase(test, self.test)


class _Explained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    difference: list[Explanation] = []


def read_explained(path: Path) -> list[Explanation]:
    return msgspec.convert(tomllib.loads(path.read_text()), _Explained).difference


class Comparison(msgspec.Struct, frozen=True):
    """One suite on both sides."""

    suite: str
    broker: Outcomes
    gateway: Outcomes | None
    """None: it was run on the broker only."""

    @property
    def worse(self) -> list[str]:
        """Tests that pass on the broker and not behind the gateway."""
        if self.gateway is None:
            return []
        passed = [name for name, outcome in self.broker.items() if outcome.verdict is Verdict.PASSED]
        return [name for name in passed if self.behind_gateway(name).verdict is not Verdict.PASSED]

    @property
    def better(self) -> list[str]:
        """Tests that fail on the broker and pass behind the gateway."""
        failed = [name for name, outcome in self.broker.items() if outcome.verdict is Verdict.FAILED]
        found = self.gateway or {}
        return [name for name in failed if name in found and found[name].verdict is Verdict.PASSED]

    def unexplained(self, explained: Sequence[Explanation]) -> list[str]:
        return [name for name in self.worse if not any(one.covers(self.suite, name) for one in explained)]

    def behind_gateway(self, test: str) -> Outcome:
        missing = Outcome(Verdict.FAILED, reason="it came to no end")
        return (self.gateway or {}).get(test, missing)


def idle(explained: Iterable[Explanation], comparisons: Sequence[Comparison]) -> list[Explanation]:
    """Explanations whose tests were run and pass on both sides."""
    worse = [(one.suite, test) for one in comparisons for test in one.worse]
    run = [(one.suite, test) for one in comparisons if one.gateway is not None for test in one.gateway]
    return [
        one
        for one in explained
        if any(one.covers(*which) for which in run) and not any(one.covers(*which) for which in worse)
    ]


def count(outcomes: Mapping[str, Outcome] | None, verdict: Verdict) -> int:
    return sum(outcome.verdict is verdict for outcome in (outcomes or {}).values())


def table(comparisons: Sequence[Comparison]) -> str:
    """Passed/failed of each suite on both sides, as lines of text."""
    head = ("suite", "tests", "broker passed", "failed", "skipped", "gateway passed", "failed", "skipped")
    rows = [head, *(_row(one) for one in comparisons)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _row(one: Comparison) -> tuple[str, ...]:
    verdicts = (Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED)
    on_broker = [str(count(one.broker, verdict)) for verdict in verdicts]
    behind = ["-"] * 3 if one.gateway is None else [str(count(one.gateway, verdict)) for verdict in verdicts]
    return (one.suite, str(len(one.broker.keys() | (one.gateway or {}).keys())), *on_broker, *behind)


def details(comparisons: Sequence[Comparison], explained: Sequence[Explanation]) -> list[str]:
    """A line for each test that differs, or fails on both sides."""
    lines = []
    for one in comparisons:
        for test in one.worse:
            why = next((known.because for known in explained if known.covers(one.suite, test)), "")
            outcome = one.behind_gateway(test)
            lines.append(f"{'explained' if why else 'WORSE'}: {one.suite}: {test}: {why or outcome.reason}")
        lines += [f"better: {one.suite}: {test}" for test in one.better]
        lines += [
            f"fails on the broker{' too' if one.gateway else ''}: {one.suite}: {test}: {outcome.reason}"
            for test, outcome in one.broker.items()
            if outcome.verdict is Verdict.FAILED and test not in one.better
        ]
    return lines
