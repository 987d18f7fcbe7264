"""The rule that tests never skip in silence: under CI a skip fails the run unless it is on the list."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

_TRUE = {"1", "true", "yes", "on"}
_HEADING = "skips that are not allowed"


@dataclass(frozen=True)
class AllowedSkip:
    """A skip that CI accepts: of which tests (a glob over node ids) and for what reason (a glob)."""

    nodeid: str
    reason: str

    def covers(self, skip: Skip) -> bool:
        return _matches(skip.nodeid, self.nodeid) and _matches(skip.reason, self.reason)


@dataclass(frozen=True)
class Skip:
    """A test, or with a skip at module level a whole file, that did not run, and why."""

    nodeid: str
    reason: str


def _matches(text: str, pattern: str) -> bool:
    # Node ids of parametrised tests hold brackets, which are to be taken as they are.
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def is_ci() -> bool:
    """Say whether this run is a CI run, by the variable that all CI services set."""
    return os.environ.get("CI", "").lower() in _TRUE


def read_allowed(path: Path) -> list[AllowedSkip]:
    """Read the list; an entry without a node id and a reason is an error."""
    entries = tomllib.loads(path.read_text()).get("skip", [])
    try:
        return [AllowedSkip(nodeid=entry["nodeid"], reason=entry["reason"]) for entry in entries]
    except KeyError as missing:
        raise pytest.UsageError(f"{path}: each [[skip]] needs a nodeid and a reason; {missing} lacks") from None


class SkipRule:
    """Pytest plugin that notes the skips and, at the end of a CI run, fails it for those not allowed.

    Under pytest-xdist the reports of all workers arrive in the controlling process, which alone judges.
    """

    def __init__(self, config: pytest.Config, allowed: list[AllowedSkip], *, strict: bool) -> None:
        self._judges = strict and not hasattr(config, "workerinput")
        self._allowed = allowed
        self._refused: list[Skip] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An expected failure is reported as skipped too, but it did run.
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._refused:
            return
        terminalreporter.section(_HEADING, red=True, bold=True)
        for skip in self._refused:
            terminalreporter.line(f"{skip.nodeid}: {skip.reason}")
        terminalreporter.line("Under CI every test runs: provide what is missing, or add the test to")
        terminalreporter.line("tests/allowed_skips.toml with the reason why CI may do without it.")

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        skip = Skip(report.nodeid, _reason(report))
        if self._judges and not any(entry.covers(skip) for entry in self._allowed):
            self._refused.append(skip)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    # Pytest reports a skip as (file, line, "Skipped: the reason").
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
