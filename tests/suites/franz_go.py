"""franz-go's tests of groups: chains of consumers that read and write, join and leave, in both protocols."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.suites.fronts import Side, served
from tests.suites.outcomes import Outcome, Outcomes, Verdict
from tests.suites.running import run_limited
from tools.install_kafka_suites import FRANZ_GO

TESTS = (
    "Test848RegexBrokerResolves", "TestGroupSimple", "TestGroupETL", "TestConsumeRegex", "TestAddRemovePartitions",
    "TestPauseIssue489", "TestPauseIssueOct2023", "TestIssue337", "TestIssue434", "TestIssue523", "TestIssue648",
    "TestIssue810", "TestIssue865", "TestUnknownGroupOffsetFetchPinned", "TestIssue1034", "TestPing",
)  # fmt: skip
_RECORDS = "20000"
_LIMIT = 600
_RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)")
_REASON = re.compile(r"^\s+(\w+_test\.go:\d+: .*)")
_STARTED = re.compile(r"^=== RUN\s+(\S+)")
_VERDICTS = {"PASS": Verdict.PASSED, "FAIL": Verdict.FAILED, "SKIP": Verdict.SKIPPED}


def run(suite: str, side: Side, directory: Path, chosen: Sequence[str]) -> Outcomes:
    """`chosen`: names of tests, with their subtests after a slash; empty: all of them."""
    program = FRANZ_GO.ensure() / "kgo.test"
    log = directory / "kgo.log"
    pattern = "|".join(f"^{one}$" for one in chosen or TESTS)
    if len(chosen) == 1:
        # Each part between slashes is a pattern of its own.
        pattern = "/".join(f"^{part}$" for part in chosen[0].split("/"))
    with served(side, directory) as bootstrap:
        environment = {"KGO_SEEDS": bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": _RECORDS}
        # One test at a time, so that a limit says something of the test.
        what = ["-test.run", pattern, "-test.v", "-test.parallel", "1", "-test.timeout", f"{_LIMIT}s"]
        command = [str(program), *what]
        run_limited(command, directory=directory, log=log, limit=_LIMIT + 60.0, environment=environment)
    return read(log.read_text(errors="replace"))


def read(log: str) -> Outcomes:
    """Outcomes of tests and subtests, from Go's verbose output. One that began and did not end has failed."""
    found: Outcomes = {}
    reasons: dict[str, str] = {}
    running = ""
    for line in log.splitlines():
        if began := _STARTED.match(line):
            running = began[1]
            found.setdefault(running, Outcome(Verdict.FAILED, reason="it came to no end"))
        elif ended := _RESULT.match(line):
            running = ended[2]
            found[running] = Outcome(_VERDICTS[ended[1]], float(ended[3]))
        elif running and running not in reasons and (told := _REASON.match(line)):
            reasons[running] = told[1][:300]
    return {
        name: Outcome(outcome.verdict, outcome.seconds, outcome.reason or reasons.get(name, ""))
        if outcome.verdict is Verdict.FAILED
        else outcome
        for name, outcome in found.items()
    }
