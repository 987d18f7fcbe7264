"""Figures that a test found and a person may want to read: they are printed at the end of the run, passed or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_NAME = "figures"
_HEADING = "figures"


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Call it with a line for the end of the run."""
    return lambda line: record_property(_NAME, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind)]
    told = [(one.nodeid, line) for one in reports for name, line in one.user_properties if name == _NAME]
    if told:
        terminalreporter.section(_HEADING)
    for nodeid, line in told:
        terminalreporter.line(f"{nodeid}: {line}")
