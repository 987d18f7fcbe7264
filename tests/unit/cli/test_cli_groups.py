"""Groups at the command line: a name that no group bears is an error with the nearest one that does, and what is
deleted is deleted whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from assigner.cli import main
from assigner.errors import FailedPrecondition
from tests.support.fakes.cli_service import ScriptedAdministration, serving
from tests.support.fakes.fake_service import FakeOffsets

Run = Callable[..., Result]

ON_A_GROUP = [
    ("describe", "GROUP"),
    ("topics", "list", "GROUP"),
    ("topics", "set", "GROUP", "t", "3"),
    ("topics", "delete", "GROUP", "t", "--yes"),
    ("pause", "GROUP"),
    ("resume", "GROUP"),
    ("rebalance", "GROUP"),
    ("options", "GROUP"),
    ("options", "GROUP", "paused=true"),
    ("loads", "GROUP"),
    ("offsets", "GROUP"),
    ("plan", "GROUP"),
    ("groups", "delete", "GROUP", "--yes"),
]


@pytest.fixture
def service() -> ScriptedAdministration:
    return ScriptedAdministration()


@pytest.fixture
def run(service: ScriptedAdministration) -> Iterator[Run]:
    with serving(service, offsets=FakeOffsets()) as address:

        def invoke(*arguments: str, **how: str) -> Result:
            return CliRunner(env={"ASSIGNER_ADDRESS": address, "COLUMNS": "160"}).invoke(main, arguments, **how)  # type: ignore[arg-type]

        yield invoke


def with_group(command: tuple[str, ...], group: str) -> tuple[str, ...]:
    return tuple(group if word == "GROUP" else word for word in command)


@pytest.mark.parametrize("command", ON_A_GROUP, ids=lambda command: " ".join(command))
def test_a_misspelt_group_is_an_error_that_names_the_nearest(run: Run, command: tuple[str, ...]) -> None:
    result = run(*with_group(command, "order"))
    assert result.exit_code == 1, result.output
    assert "no group 'order'" in result.stderr
    assert "did you mean 'orders'?" in result.stderr
    error = json.loads(run(*with_group(command, "order"), "-o", "json").stderr)["error"]
    assert error["kind"] == "not_found"


@pytest.mark.parametrize("command", ON_A_GROUP, ids=lambda command: " ".join(command))
def test_an_empty_group_is_refused_before_a_call_is_made(
    run: Run, service: ScriptedAdministration, command: tuple[str, ...]
) -> None:
    result = run(*with_group(command, ""))
    assert result.exit_code == 2
    assert "GROUP is empty" in result.stderr
    assert service.calls == []


def test_a_name_that_is_near_to_none_gets_no_guess(run: Run) -> None:
    result = run("pause", "xyzzy")
    assert result.exit_code == 1
    assert "did you mean" not in result.stderr
    assert "`assigner groups` lists what there is" in result.stderr


@pytest.mark.parametrize("command", [("topics", "set", "new", "t", "3"), ("options", "new", "debounce=2")])
def test_a_group_is_begun_where_that_is_said(run: Run, command: tuple[str, ...]) -> None:
    refused = run(*command)
    assert refused.exit_code == 1
    assert "--create" in refused.stderr
    assert run(*command, "--create").exit_code == 0


# --- deleting ----------------------------------------------------------------------------------------------------


def test_a_group_is_deleted_in_as_many_calls_as_it_takes(run: Run, service: ScriptedAdministration) -> None:
    service.left = 25
    result = run("groups", "delete", "orders", "--yes", "-o", "json")
    assert json.loads(result.stdout) == {"group": "orders", "records": 30}
    assert service.calls == [("delete_group", "orders", False)] * 3


def test_a_topic_is_deleted(run: Run, service: ScriptedAdministration) -> None:
    result = run("topics", "delete", "orders", "t", "--yes", "--force", "-o", "json")
    assert json.loads(result.stdout) == {"group": "orders", "topic": "t", "records": 3}
    assert service.calls == [("delete_topic", "orders", "t", True)]


def test_a_person_is_asked_before_anything_is_deleted(run: Run, service: ScriptedAdministration) -> None:
    assert run("groups", "delete", "orders", input="n\n").exit_code != 0
    assert service.calls == []
    assert run("groups", "delete", "orders", input="y\n").exit_code == 0
    assert service.calls == [("delete_group", "orders", False)]


def test_a_program_has_to_say_yes(run: Run, service: ScriptedAdministration) -> None:
    result = run("groups", "delete", "orders", "-o", "json")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert service.calls == []


def test_a_refusal_names_who_is_registered(run: Run, service: ScriptedAdministration) -> None:
    service.error = FailedPrecondition("consumers of group 'orders' are registered: 'worker-1'; stop them first")
    result = run("groups", "delete", "orders", "--yes", "--force")
    assert result.exit_code == 1
    assert "'worker-1'" in result.stderr


def test_groups_without_more_still_lists_them(run: Run) -> None:
    assert "orders" in run("groups").stdout
    assert json.loads(run("groups", "-o", "json").stdout)["groups"][0]["group"] == "orders"


# --- files that can't be written ---------------------------------------------------------------------------------


def test_a_file_that_can_not_be_written_is_an_error_and_no_traceback(run: Run, tmp_path: Path) -> None:
    result = run("plan", "orders", "--strategy", "sticky_balanced", "--save", str(tmp_path / "nowhere" / "x.json"))
    assert result.exit_code == 2
    assert "No such file or directory" in result.stderr
    assert "Traceback" not in result.output


def test_a_full_disk_is_an_error_and_no_traceback() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "assigner.cli", "config", "schema"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
