"""Kafka's own integration tests of its Java consumer: one JVM per class, each test with brokers of its own in it.

Methods `testAsync*` use the protocol of Kafka 4's groups, `testClassic*` the one before; they are two suites here.
Behind the gateway a class of ours (`java/`) hands the tests their cluster with a gateway in front of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.suites.fronts import Side
from tests.suites.outcomes import Outcome, Outcomes, Verdict
from tests.suites.running import run_limited
from tests.support.kafka_groups.gateway_process import ROOT
from tools.install_kafka_suites import JAVA

CLASSES = (
    "PlaintextConsumerCommitTest",
    "PlaintextConsumerSubscriptionTest",
    "PlaintextConsumerCallbackTest",
    "PlaintextConsumerPollTest",
    "PlaintextConsumerTest",
    "PlaintextConsumerAssignTest",
    "PlaintextConsumerCloseTest",
)
METHODS = {"kafka-java consumer": "testAsync", "kafka-java classic": "testClassic"}
"""The two suites, each with what the names of its tests begin with."""

_PACKAGE = "org.apache.kafka.clients.consumer"
_SOURCE = Path(__file__).parent / "java/org/apache/kafka/common/test/junit/ClusterInstanceParameterResolver.java"
_JVM = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_TEST_LIMIT = 120
_CLASS_LIMIT = 2400.0
_UNIQUE_ID = re.compile(r"uniqueId: .*\[(?:test-template|method):(\w+)\(")
_CAUGHT = re.compile(r"caught: (.*)")
_DURATION = re.compile(r"duration: (\d+) ms")
_STATUS = re.compile(r"status: \[\S+\] (\w+)")


def run(suite: str, side: Side, directory: Path, chosen: Sequence[str]) -> Outcomes:
    """`chosen`: names of classes or of tests, or parts of them; empty: all."""
    home = JAVA.ensure()
    shadow = _compiled(home, directory) if side is Side.GATEWAY else None
    found: Outcomes = {}
    for name in _classes(chosen):
        log = directory / f"{name}-{METHODS[suite]}.log"
        found |= {f"{name}.{test}": outcome for test, outcome in _run_class(suite, name, home, shadow, log, chosen)}
    return found


def _classes(chosen: Sequence[str]) -> list[str]:
    named = [one for one in CLASSES if any(word.partition(".")[0] == one for word in chosen)]
    return named or list(CLASSES)


def _run_class(
    suite: str, name: str, home: Path, shadow: Path | None, log: Path, chosen: Sequence[str]
) -> list[tuple[str, Outcome]]:
    scratch = log.with_suffix("")
    scratch.mkdir(parents=True, exist_ok=True)
    properties = [
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
        f"-Djunit.jupiter.execution.timeout.default={_TEST_LIMIT}s",
    ]
    path = f"{home / 'libs'}/*"
    if shadow is not None:
        command = "\x1f".join((sys.executable, "-m", "tests.suites.fronts", str(scratch)))
        properties += [f"-Dgateway.command={command}", f"-Dgateway.directory={ROOT}"]
        path = f"{shadow}:{path}"
    launcher = ["org.junit.platform.console.ConsoleLauncher", "execute", "-c", f"{_PACKAGE}.{name}"]
    shown = ["--details=verbose", "--details-theme=ascii", "--disable-ansi-colors", "--disable-banner"]
    methods = ["--include-methodname", _pattern(METHODS[suite], chosen)]
    whole = ["java", *_JVM, *properties, "-cp", path, *launcher, *methods, *shown]
    run_limited(whole, directory=scratch, log=log, limit=_CLASS_LIMIT)
    return list(read(log.read_text(errors="replace")).items())


def _pattern(prefix: str, chosen: Sequence[str]) -> str:
    """What the names of the tests to run match."""
    tests = [word.rpartition(".")[2] for word in chosen if "." in word or word.startswith("test")]
    matching = [re.escape(test) for test in tests if test.startswith(prefix)]
    return rf".*({'|'.join(matching)})\b.*" if matching else rf".*\b{prefix}.*"


def read(log: str) -> Outcomes:
    """Outcomes by method, from the launcher's verbose output. A test that began and did not end has failed."""
    found: Outcomes = {}
    test, seconds, reason = "", 0.0, ""
    for line in log.splitlines():
        if began := _UNIQUE_ID.search(line):
            test, seconds, reason = began[1], 0.0, ""
            found.setdefault(test, Outcome(Verdict.FAILED, reason="it came to no end"))
        elif caught := _CAUGHT.search(line):
            reason = reason or caught[1].strip()[:300]
        elif took := _DURATION.search(line):
            seconds = int(took[1]) / 1000
        elif test and (status := _STATUS.search(line)):
            found[test] = Outcome(_VERDICTS.get(status[1], Verdict.FAILED), seconds, reason)
            test = ""
    return found


_VERDICTS = {"SUCCESSFUL": Verdict.PASSED, "ABORTED": Verdict.SKIPPED, "FAILED": Verdict.FAILED}


def _compiled(home: Path, directory: Path) -> Path:
    """Our class that stands for one of Kafka's, compiled against its jars."""
    classes = directory / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    command = ["javac", "-nowarn", "-d", str(classes), "-cp", f"{home / 'libs'}/*", str(_SOURCE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return classes
