"""librdkafka's own tests of groups, in both protocols: one process of its test runner per test."""

from __future__ import annotations

import time
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
_SKIPPED = "SKIPPED"


def run(suite: str, side: Side, directory: Path, chosen: Sequence[str]) -> Outcomes:
    """`chosen`: numbers of tests; empty: all of them."""
    tests = LIBRDKAFKA.ensure() / "tests"
    directory.mkdir(parents=True, exist_ok=True)
    found: Outcomes = {}
    with served(side, directory) as bootstrap:
        environment = _environment(directory, bootstrap, PROTOCOLS[suite])
        for test in [one for one in TESTS if not chosen or one in chosen]:
            log = directory / f"{test}.log"
            began = time.monotonic()
            command = [str(tests / "test-runner"), "-p1", "-E"]
            more = environment | {"TESTS": test}
            status = run_limited(command, directory=directory, log=log, limit=_LIMIT, environment=more)
            found[test] = read(status, log.read_text(errors="replace"), time.monotonic() - began)
    return found


def read(status: int | None, log: str, seconds: float) -> Outcome:
    """What the runner's exit status and output say of the one test that it ran."""
    if status is None:
        return Outcome(Verdict.FAILED, seconds, f"not over within {_LIMIT:g} s")
    if status != 0:
        failures = [line.strip() for line in log.splitlines() if "TEST FAILURE" in line or " FAILED" in line]
        told = [line.strip() for line in log.splitlines() if "failed:" in line.lower() or "assert" in line.lower()]
        return Outcome(Verdict.FAILED, seconds, (told or failures or [f"status {status}"])[0][:300])
    results = [line for line in log.splitlines() if line.lstrip().startswith("|")]
    ran = [line for line in results if "PASSED" in line and "<MAIN>" not in line]
    return Outcome(Verdict.PASSED if ran else Verdict.SKIPPED, seconds)


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
