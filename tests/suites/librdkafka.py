"""librdkafka's own tests of groups, in both protocols: one process of its test runner per test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.suites.fronts import Side, served
from tests.suites.outcomes import Outcome, Outcomes, Verdict
from tests.suites.running import run_limited
from tools.install_kafka import KAFKA_VERSION, kafka_home
from tools.install_kafka_suites import JAVA, LIBRDKAFKA

TESTS = (
    "0018", "0019", "0029", "0030", "0033", "0045", "0050", "0056", "0061", "0069", "0089", "0091", "0099", "0102",
    "0106", "0107", "0112", "0113", "0116", "0118", "0120", "0122", "0130", "0132", "0137", "0140", "0153",
)  # fmt: skip
"""Those of its tests that are about groups, their offsets and their subscriptions."""
PROTOCOLS = {"librdkafka consumer": "consumer", "librdkafka classic": "classic"}
_LIMIT = 180.0
_LONGER = {"0045": 420.0, "0113": 420.0}
_BESIDE_THE_BROKER = ("_mock", "_local")
"""What the names of tests end with that use no broker, or one of their own."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BEGAN = re.compile(r"Running test (\w+) ")
_ENDED = re.compile(r"= Test (\w+) (PASSED|FAILED|SKIPPED) =")
_SUMMARY = re.compile(r"^\|\s*(\d\w+)\s*\|\s*(PASSED|FAILED|SKIPPED)\s*\|\s*([\d.]+)s")
_WHY = re.compile(r"### Test \"(\w+).*\" failed at (\S+)")
_VERDICTS = {"PASSED": Verdict.PASSED, "FAILED": Verdict.FAILED, "SKIPPED": Verdict.SKIPPED}


def run(suite: str, side: Side, directory: Path, chosen: Sequence[str]) -> Outcomes:
    """`chosen`: numbers of tests; empty: all of them."""
    tests = LIBRDKAFKA.ensure() / "tests"
    directory.mkdir(parents=True, exist_ok=True)
    found: Outcomes = {}
    with served(side, directory) as bootstrap:
        environment = _environment(directory, bootstrap, PROTOCOLS[suite])
        for test in [one for one in TESTS if not chosen or one in chosen]:
            log = directory / f"{test}.log"
            command = [str(tests / "test-runner"), "-p1", "-E"]
            limit, more = _LONGER.get(test, _LIMIT), environment | {"TESTS": test}
            run_limited(command, directory=directory, log=log, limit=limit, environment=more)
            found |= read(test, log.read_text(errors="replace"))
    return found


def read(test: str, log: str) -> Outcomes:
    """Outcomes of all tests that one number stands for. One that began and did not end has failed."""
    found: Outcomes = {}
    lines = _COLOUR.sub("", log).splitlines()
    reasons: dict[str, str] = {}
    for number, line in enumerate(lines):
        if began := _BEGAN.search(line):
            found.setdefault(began[1], Outcome(Verdict.FAILED, reason="it came to no end"))
        elif ended := _ENDED.search(line):
            found[ended[1]] = Outcome(_VERDICTS[ended[2]])
        elif row := _SUMMARY.search(line):
            found[row[1]] = Outcome(_VERDICTS[row[2]], float(row[3]))
        elif why := _WHY.search(line):
            said = lines[number + 1].strip() if number + 1 < len(lines) else ""
            reasons.setdefault(why[1], f"{why[2]} {said}"[:300])
    found = {name: one for name, one in found.items() if not name.endswith(_BESIDE_THE_BROKER)}
    failed = {
        name: Outcome(one.verdict, one.seconds, reasons.get(name, one.reason))
        for name, one in found.items()
        if one.verdict is Verdict.FAILED
    }
    return found | failed or {test: Outcome(Verdict.FAILED, reason="it began no test")}


def _environment(directory: Path, bootstrap: str, protocol: str) -> dict[str, str]:
    sources = LIBRDKAFKA.home
    (directory / "test.conf").write_text(f"bootstrap.servers={bootstrap}\nbroker.address.family=v4\n")
    return {
        "LD_LIBRARY_PATH": f"{sources / 'src'}:{sources / 'src-cpp'}",
        "RDKAFKA_TEST_CONF": str(directory / "test.conf"),
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_PATH": str(_kafka_path(directory)),
        "BROKERS": bootstrap,
    }


def _kafka_path(directory: Path) -> Path:
    """A directory in which the tests find the one script of Kafka that they call."""
    script = directory / "kafka" / "bin" / "kafka-topics.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    # The command is in a jar that a broker does without.
    libs = (JAVA.home if JAVA.home.exists() else kafka_home()) / "libs"
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
    script.write_text(f"#!/bin/sh\nexec java {quick} -cp '{libs}/*' org.apache.kafka.tools.TopicCommand \"$@\"\n")
    script.chmod(0o755)
    return script.parent.parent
