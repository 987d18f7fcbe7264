"""How the results of foreign suites are read, and which differences between broker and gateway count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites import __main__ as suites
from tests.suites import franz_go, kafka_java, kafka_python, librdkafka
from tests.suites.outcomes import (
    Comparison,
    Explanation,
    Outcome,
    Outcomes,
    Verdict,
    details,
    idle,
    read_explained,
    table,
)

PASSED, FAILED, SKIPPED = (Outcome(verdict) for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED))


def verdicts(found: Outcomes) -> dict[str, str]:
    return {name: outcome.verdict.value for name, outcome in found.items()}


# --- reading -----------------------------------------------------------------------------------------------------

_LAUNCHER = """\
| | | |  uniqueId: [engine:junit-jupiter]/[class:a.B]/[test-template:testAsyncOne()]/[test-template-invocation:#1]
| | | |    parent: [engine:junit-jupiter]/[class:a.B]/[test-template:testAsyncOne()]
[2026-11-19 21:58:41,107] WARN something of a broker (a.b.C)
| | | |  duration: 1797 ms
| | | |    status: [OK] SUCCESSFUL
| | | |  uniqueId: [engine:junit-jupiter]/[class:a.B]/[test-template:testAsyncTwo()]/[test-template-invocation:#1]
| | | |    caught: org.opentest4j.AssertionFailedError: expected: <1> but was: <2>
| | | |  duration: 20 ms
| | | |    status: [X] FAILED
| | | |  uniqueId: [engine:junit-jupiter]/[class:a.B]/[method:testAsyncThree()]
"""


def test_the_launchers_output_names_each_java_test_and_how_it_ended() -> None:
    found = kafka_java.read(_LAUNCHER)
    assert verdicts(found) == {"testAsyncOne": "passed", "testAsyncTwo": "failed", "testAsyncThree": "failed"}
    assert found["testAsyncOne"].seconds == 1.797
    assert "expected: <1>" in found["testAsyncTwo"].reason
    assert "no end" in found["testAsyncThree"].reason


_GO = """\
=== RUN   TestGroupETL
=== RUN   TestGroupETL/range/848
    helpers_test.go:12: something is wrong
--- FAIL: TestGroupETL (21.94s)
    --- PASS: TestGroupETL/range (9.10s)
    --- FAIL: TestGroupETL/range/848 (9.10s)
=== RUN   TestHangs
panic: test timed out after 10m0s
"""


def test_gos_output_names_subtests_and_those_without_an_end() -> None:
    found = franz_go.read(_GO)
    assert verdicts(found) == {
        "TestGroupETL": "failed",
        "TestGroupETL/range": "passed",
        "TestGroupETL/range/848": "failed",
        "TestHangs": "failed",
    }
    assert found["TestGroupETL/range/848"].reason == "helpers_test.go:12: something is wrong"


_PYTEST = """\
<testsuites><testsuite>
<testcase classname="test.integration.test_consumer" name="test_a" time="0.5"/>
<testcase classname="test.integration.test_consumer" name="test_b"><failure message="no&#10;good"/></testcase>
<testcase classname="test.integration.test_consumer" name="test_c"><skipped/></testcase>
<testcase classname="test.integration.test_consumer" name="test_a"><error message="at its end"/></testcase>
</testsuite></testsuites>
"""


def test_pytests_report_is_read_and_an_error_at_a_tests_end_counts() -> None:
    found = kafka_python.read(_PYTEST)
    assert verdicts(found) == {
        "test_consumer.test_a": "failed",
        "test_consumer.test_b": "failed",
        "test_consumer.test_c": "skipped",
    }
    assert found["test_consumer.test_b"].reason == "no good"


_RUNNER = """\
\x1b[36m[<MAIN>  / 0.1s] \x1b[0m================= Running test 0045_subscribe_update =================
[0045_subscribe_update / 26.0s] \x1b[32m================= Test 0045_subscribe_update PASSED =================\x1b[0m
[<MAIN>  / 0.1s] ================= Running test 0045_subscribe_update_mock =================
[<MAIN>  / 0.1s] ================= Running test 0045_regex =================
### Test "0045_regex (sub:12: a thing)" failed at test.c:77:check() at Thu Nov 19: ###
Expected 1, not 2
[<MAIN>  / 0.1s] ================= Running test 0045_many =================
"""


def test_librdkafkas_runner_says_how_each_test_of_a_number_ended() -> None:
    found = librdkafka.read("0045", _RUNNER)
    assert verdicts(found) == {"0045_subscribe_update": "passed", "0045_regex": "failed", "0045_many": "failed"}
    assert found["0045_regex"].reason == "test.c:77:check() Expected 1, not 2"
    assert found["0045_many"].reason == "it came to no end"


def test_librdkafkas_summary_has_the_last_word() -> None:
    log = "|\x1b[32m <MAIN>  |  PASSED |  9.0s |\n|\x1b[36m 0107_topic_recreate  |    SKIPPED |   0.000s \x1b[0m|\n"
    assert verdicts(librdkafka.read("0107", log)) == {"0107_topic_recreate": "skipped"}


def test_a_runner_that_dies_at_once_has_failed() -> None:
    assert verdicts(librdkafka.read("0018", "Segmentation fault\n")) == {"0018": "failed"}


# --- comparing ---------------------------------------------------------------------------------------------------

_BROKER = {"one": PASSED, "two": PASSED, "three": FAILED, "four": FAILED, "five": SKIPPED}
_GATEWAY = {"one": PASSED, "two": FAILED, "three": FAILED, "four": PASSED, "five": FAILED}


def test_only_what_passes_on_the_broker_can_be_worse_behind_the_gateway() -> None:
    compared = Comparison("a", _BROKER, _GATEWAY)
    assert compared.worse == ["two"]
    assert compared.better == ["four"]


@pytest.mark.parametrize("behind", [{}, {"one": SKIPPED}])
def test_a_test_that_does_not_come_to_its_end_behind_the_gateway_is_worse(behind: Outcomes) -> None:
    assert Comparison("a", {"one": PASSED}, behind).worse == ["one"]


def test_a_suite_that_was_run_on_the_broker_only_is_not_worse() -> None:
    assert Comparison("a", _BROKER, None).worse == []


def test_a_difference_is_explained_by_the_name_of_its_suite_and_test() -> None:
    compared = Comparison("librdkafka consumer", _BROKER, _GATEWAY)
    assert compared.unexplained([Explanation("librdkafka *", "t*", "known")]) == []
    assert compared.unexplained([Explanation("franz-go", "two", "another suite")]) == ["two"]


def test_an_explanation_of_what_passes_now_is_idle_but_not_one_of_what_was_not_run() -> None:
    known = [Explanation("a", name, "known") for name in ("one", "two", "six")]
    assert [one.test for one in idle(known, [Comparison("a", _BROKER, _GATEWAY)])] == ["one"]


def test_the_table_and_the_lines_below_it_name_what_differs() -> None:
    compared = [Comparison("a", _BROKER, _GATEWAY), Comparison("b", {"one": PASSED}, None)]
    assert table(compared).splitlines()[2].split() == ["a", "5", "2", "2", "1", "2", "3", "0"]
    lines = details(compared, [])
    assert lines[0].startswith("WORSE: a: two")
    assert "better: a: four" in lines


# --- the command -------------------------------------------------------------------------------------------------


def test_the_exit_status_says_whether_anything_unexplained_is_worse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suites, "EXPLAINED", tmp_path / "explained.toml")
    results = {"franz-go": {"broker": _BROKER, "gateway": _GATEWAY}}
    suites.EXPLAINED.write_text("")
    assert suites.report(results, {}, []) == 1
    suites.EXPLAINED.write_text('[[difference]]\nsuite = "franz-go"\ntest = "two"\nbecause = "it must be so"\n')
    assert suites.report(results, {}, []) == 0


def test_earlier_outcomes_of_the_broker_stand_in_and_a_missing_test_counts_unless_only_some_were_run() -> None:
    before = {"franz-go": {"broker": {"one": PASSED, "two": PASSED}}}
    now = {"franz-go": {"gateway": {"one": PASSED}}}
    assert suites.report(now, before, []) == 1
    assert suites.report(now, before, [], partial=["franz-go"]) == 0


def test_the_checked_in_explanations_can_be_read() -> None:
    assert all(one.because for one in read_explained(suites.EXPLAINED))
