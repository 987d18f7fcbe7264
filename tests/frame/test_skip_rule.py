"""Under CI, a skip that nobody allowed fails the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.project.skip_rule import AllowedSkip, Skip, read_allowed

CONFTEST = """
from pathlib import Path
from tests.support.project.skip_rule import SkipRule, is_ci, read_allowed

def pytest_configure(config):
    allowed = read_allowed(Path(__file__).with_name("allowed_skips.toml"))
    config.pluginmanager.register(SkipRule(config, allowed, strict=is_ci()), "skip-rule")
"""
TESTS = """
import pytest

def test_that_runs(): pass

@pytest.mark.parametrize("size", ["small"])
def test_that_skips(size): pytest.skip("no broker here")

@pytest.mark.xfail(reason="known", strict=True)
def test_that_is_expected_to_fail(): assert False
"""
# Plugins that the inner runs do not need, and would spend their time on.
LEAN = ("-p", "no:asyncio", "-p", "no:anyio", "-p", "no:hypothesispytest")
Run = Callable[[pytest.Pytester], pytest.RunResult]


def alone(project: pytest.Pytester) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:xdist", *LEAN)


def with_workers(project: pytest.Pytester) -> pytest.RunResult:
    return project.runpytest_subprocess("-n", "2", *LEAN)


RUNS = pytest.mark.parametrize("run", [alone, with_workers])


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of three tests, one of which skips, with the rule and an empty list."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    # The inner run needs this repository's `tests`, also in the worker processes of xdist.
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("CI", "true")
    # The inner run is none of the outer one's workers.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    allow(pytester, "")
    return pytester


def allow(project: pytest.Pytester, entries: str) -> None:
    (project.path / "allowed_skips.toml").write_text(entries)


@RUNS
def test_a_skip_that_nobody_allowed_fails_the_run(project: pytest.Pytester, run: Run) -> None:
    result = run(project)
    result.assert_outcomes(passed=1, skipped=1, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skips that are not allowed*", "*::test_that_skips[[]small[]]: no broker here"])


@RUNS
def test_an_allowed_skip_passes_and_a_file_that_skips_as_a_whole_fails(project: pytest.Pytester, run: Run) -> None:
    allow(project, '[[skip]]\nnodeid = "*::test_that_skips[small]"\nreason = "no broker*"\n')
    project.makepyfile(test_whole='import pytest\npytest.skip("not on this system", allow_module_level=True)')
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_whole.py: not on this system"])
    result.stdout.no_fnmatch_line("*no broker here")


def test_a_run_with_only_allowed_skips_is_fine(project: pytest.Pytester) -> None:
    allow(project, '[[skip]]\nnodeid = "*::test_that_skips[small]"\nreason = "no broker*"\n')
    assert alone(project).ret == pytest.ExitCode.OK


def test_a_skip_for_another_reason_than_the_allowed_one_fails(project: pytest.Pytester) -> None:
    allow(project, '[[skip]]\nnodeid = "*"\nreason = "no etcd here"\n')
    assert alone(project).ret == pytest.ExitCode.TESTS_FAILED


def test_outside_ci_skips_are_fine(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI")
    assert alone(project).ret == pytest.ExitCode.OK


def test_brackets_of_parameters_are_taken_as_they_are() -> None:
    entry = AllowedSkip(nodeid="a.py::test[x]", reason="*")
    assert entry.covers(Skip("a.py::test[x]", "any"))
    assert not entry.covers(Skip("a.py::testx", "any"))


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    path.write_text('[[skip]]\nnodeid = "*"\n')
    with pytest.raises(pytest.UsageError, match="needs a nodeid and a reason"):
        read_allowed(path)
