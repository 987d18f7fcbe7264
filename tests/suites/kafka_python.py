"""kafka-python's own integration tests of its consumer, producer and admin client: one pytest with a limit per test."""

from __future__ import annotations

import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from tests.suites.fronts import Side, served
from tests.suites.outcomes import Outcome, Outcomes, Verdict
from tests.suites.running import run_limited
from tools.install_kafka_suites import KAFKA_PYTHON

FILES = ("test_consumer_integration.py", "test_admin_integration.py", "test_producer_integration.py")
_BESIDE = Path(__file__).parent / "beside_kafka_python"
# The newest that this release of the client knows by number.
_BROKER_VERSION = "4.3"
_LIMIT = 1800.0


def run(suite: str, side: Side, directory: Path, chosen: Sequence[str]) -> Outcomes:
    """`chosen`: parts of names of tests; empty: all of them."""
    home = KAFKA_PYTHON.ensure()
    tests = directory / "test"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(home / "test", tests)
    for missing in ("__init__.py", "service.py"):
        shutil.copyfile(_BESIDE / missing, tests / missing)
    shutil.copyfile(_BESIDE / "limits.py", directory / "limits.py")
    report = directory / "report.xml"
    with served(side, directory) as bootstrap:
        environment = {
            "KAFKA_URI": f"kafka://{bootstrap}",
            "KAFKA_VERSION": _BROKER_VERSION,
            "KAFKA_ROOT": str(home),
            "PYTHONPATH": f"{directory}:{home}",
        }
        own = ["-c", "/dev/null", "--rootdir", str(directory), "-p", "no:cacheprovider", "-p", "limits"]
        which = [str(tests / "integration" / file) for file in FILES]
        words = ["-k", " or ".join(chosen)] if chosen else []
        command = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(report), *own, *words, *which]
        log = directory / "pytest.log"
        run_limited(command, directory=directory, log=log, limit=_LIMIT, environment=environment)
    return read(report.read_text()) if report.exists() else {}


def read(report: str) -> Outcomes:
    """Outcomes by test, from pytest's report."""
    found: Outcomes = {}
    for case in ET.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        seconds = float(case.get("time", "0"))
        bad = next((part for part in case if part.tag in ("failure", "error")), None)
        if bad is not None:
            found[name] = Outcome(Verdict.FAILED, seconds, " ".join((bad.get("message") or "").split())[:300])
        elif case.find("skipped") is not None:
            found.setdefault(name, Outcome(Verdict.SKIPPED, seconds))
        else:
            found.setdefault(name, Outcome(Verdict.PASSED, seconds))
    return found
