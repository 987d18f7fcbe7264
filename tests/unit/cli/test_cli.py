"""The command line against a real gRPC server: what it asks, what it prints, how it fails."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from assigner.cli import main
from assigner.cli.app import COMMANDS
from assigner.cli.commands.group_view import SUMMARY_COLUMNS
from assigner.cli.output import ranges
from assigner.errors import FailedPrecondition, InvalidInput, NotRegistered, StoreUnavailable
from assigner.server.settings import ServerSettings
from tests.support.fakes.cli_service import ScriptedAdministration, serving

PAGE = Path(__file__).parents[3] / "docs/reference/cli.md"

Run = Callable[..., Result]


@pytest.fixture
def service() -> ScriptedAdministration:
    return ScriptedAdministration()


@pytest.fixture
def run(service: ScriptedAdministration) -> Iterator[Run]:
    """Run a command against the scripted service."""
    with serving(service) as address:

        def invoke(*arguments: str) -> Result:
            return invoke_with({"ASSIGNER_ADDRESS": address, "COLUMNS": "160"}, *arguments)

        yield invoke


def invoke_with(environment: dict[str, str], *arguments: str) -> Result:
    return CliRunner(env=environment).invoke(main, arguments)


def parsed(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# --- looking -----------------------------------------------------------------------------------------------------


def test_groups_are_listed_as_a_table(run: Run) -> None:
    result = run("groups")
    assert result.exit_code == 0
    header, row = result.stdout.splitlines()
    assert tuple(header.split()) == SUMMARY_COLUMNS
    assert row.split() == ["orders", "instance-1", "2", "1", "6", "1", "1", "7"]


def test_groups_are_listed_as_json_with_stable_fields(run: Run) -> None:
    assert parsed(run("groups", "-o", "json")) == {
        "groups": [
            {
                "group": "orders",
                "leader": "instance-1",
                "consumers": 2,
                "topics": 1,
                "partitions": 6,
                "unowned": 1,
                "handoffs": 1,
                "generation": 7,
                "paused": False,
                "kind": "assigner",
                "state": "",
            }
        ]
    }


def test_no_groups_is_said_and_not_an_error(run: Run, service: ScriptedAdministration) -> None:
    service.known = []
    result = run("groups")
    assert result.exit_code == 0
    assert "no groups yet" in result.stdout
    assert parsed(run("groups", "-o", "json")) == {"groups": []}


def test_a_description_shows_everything_worth_a_look(run: Run) -> None:
    text = run("describe", "orders").stdout
    assert re.search(r"t +a +3 +0-2", text)
    assert re.search(r"t +b +2 +4-5", text)
    assert re.search(r"t +nobody +1 +3", text)
    assert re.search(r"t/4 +b +a +warming +draining", text)
    assert "disk full" in text
    assert "/kafka-assigner/orders/consumers/c: not JSON" in text
    assert "2023-11-14 22:13:20Z" in text


def test_names_are_printed_as_they_are_and_never_as_markup(run: Run) -> None:
    assert "b [red]" in run("describe", "orders").stdout


def test_a_description_as_json_has_an_entry_per_partition(run: Run) -> None:
    plain = parsed(run("describe", "orders", "--output", "json"))
    assert plain["ownership"][0] == {"topic": "t", "partition": 0, "owner": "a", "epoch": 9}
    assert plain["summary"]["generation"] == 7
    assert plain["handoffs"][0]["step"] == "warming"
    assert plain["options"]["strategy_options"] == {"x": 1}
    assert plain["options"]["copartitioned"] == [["t", "u"]]
    assert {consumer["status"] for consumer in plain["consumers"]} == {"Ready", "Draining"}


def test_topics_are_listed(run: Run) -> None:
    assert re.search(r"t +6 +admin", run("topics", "list", "orders").stdout)
    assert parsed(run("topics", "list", "orders", "-o", "json"))["topics"][0]["partitions"] == 6


# --- changing ----------------------------------------------------------------------------------------------------


def test_a_topic_is_set(run: Run, service: ScriptedAdministration) -> None:
    assert parsed(run("topics", "set", "orders", "t.1", "12", "--force", "-o", "json"))["topic"]["name"] == "t.1"
    assert service.calls == [("set_topic", "orders", "t.1", 12, True)]


@pytest.mark.parametrize(
    ("command", "call"),
    [
        ("pause", ("set_options", "orders", {"paused": True})),
        ("resume", ("set_options", "orders", {"paused": False})),
        ("rebalance", ("rebalance", "orders")),
    ],
)
def test_a_group_is_steered(run: Run, service: ScriptedAdministration, command: str, call: tuple[Any, ...]) -> None:
    assert run(command, "orders").exit_code == 0
    assert service.calls == [call]
    assert parsed(run(command, "orders", "-o", "json"))["group"] == "orders"


def test_options_are_shown(run: Run) -> None:
    assert re.search(r"debounce +1", run("options", "orders").stdout)


def test_options_are_changed_by_key_and_value(run: Run, service: ScriptedAdministration) -> None:
    answer = parsed(
        run("options", "orders", "debounce=2.5", "paused=yes", "copartitioned=a,b;c,d", 'strategy_options={"k":1}',
            "warm_concurrency=3", "-o", "json")
    )  # fmt: skip
    (_, _, changes) = service.calls[0]
    assert changes["debounce"] == 2.5
    assert changes["paused"] is True
    assert changes["warm_concurrency"] == 3
    assert answer["options"]["copartitioned"] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("debunce=1", "no option 'debunce'; did you mean debounce?"),
        ("zzz=1", "options: strategy"),
        ("debounce", "'debounce' is not KEY=VALUE"),
        ("debounce=soon", "debounce='soon' is not seconds"),
        ("paused=maybe", "is not true or false"),
        ("warm_concurrency=-1", "is not a number"),
        ("strategy_options=[1]", "is not a JSON object"),
    ],
)
def test_a_wrong_option_is_a_usage_error(run: Run, service: ScriptedAdministration, text: str, said: str) -> None:
    result = run("options", "orders", text)
    assert result.exit_code == 2
    assert said in result.stderr
    assert service.calls == []


# --- draining ----------------------------------------------------------------------------------------------------


def test_a_drain_returns_at_once_without_wait(run: Run, service: ScriptedAdministration) -> None:
    service.remaining = [5]
    result = run("drain", "orders", "a")
    assert result.exit_code == 0
    assert "5 partitions to go; --wait follows it" in result.stdout
    assert service.calls == [("drain", "orders", "a")]


def test_waiting_ends_when_nothing_is_left(run: Run, service: ScriptedAdministration) -> None:
    service.remaining = [3, 2, 4, 0]
    result = run("drain", "orders", "a", "--wait")
    assert result.exit_code == 0
    assert "a is drained" in result.stdout
    service.remaining = [1, 0]
    answer = parsed(run("drain", "orders", "a", "--wait", "-o", "json"))
    assert answer == {"group": "orders", "consumer": "a", "remaining": 0, "done": True}


def test_waiting_in_vain_has_an_exit_code_of_its_own(run: Run, service: ScriptedAdministration) -> None:
    service.remaining = [3, 2]
    seconds = "0.3"
    result = run("drain", "orders", "a", "--wait", "--wait-timeout", seconds)
    if "still holds 2 partitions" not in result.stderr:
        # On a busy machine the figures may take longer than that.
        seconds = "10"
        result = run("drain", "orders", "a", "--wait", "--wait-timeout", seconds)
    assert result.exit_code == 4
    assert f"still holds 2 partitions after {seconds} s; the drain goes on" in result.stderr


def test_a_server_that_does_not_even_begin_to_drain_is_unreachable(run: Run, service: ScriptedAdministration) -> None:
    service.hang = True
    assert run("drain", "orders", "a", "--timeout", "0.3").exit_code == 3


# --- failing -----------------------------------------------------------------------------------------------------


def test_nobody_there_is_exit_code_3_with_the_remedy() -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else gets the port, and nobody answers on it.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = invoke_with({}, "groups", "--address", address)
    assert result.exit_code == 3
    expected = f"can't reach {address} (connection refused): is `assigner serve` running? pass --address"
    assert expected in result.stderr


def test_a_failure_is_json_too_when_json_was_asked_for() -> None:
    result = invoke_with({}, "groups", "--address", "127.0.0.1:1", "-o", "json")
    assert result.exit_code == 3
    assert json.loads(result.stderr)["error"]["kind"] == "unreachable"
    assert result.stdout == ""


def test_a_name_nobody_knows_is_unreachable() -> None:
    assert invoke_with({}, "groups", "--address", "nowhere.invalid:1").exit_code == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotRegistered("no consumer 'a'"), 1),
        (FailedPrecondition("not while paused"), 1),
        (InvalidInput("nonsense"), 1),
        (StoreUnavailable("etcd is gone"), 3),
    ],
)
def test_what_the_service_says_is_passed_on(
    run: Run, service: ScriptedAdministration, error: Exception, code: int
) -> None:
    service.error = error  # type: ignore[assignment]
    result = run("drain", "orders", "a")
    assert result.exit_code == code
    assert str(error) in result.stderr


def test_an_unknown_group_is_refused_with_the_remedy(run: Run) -> None:
    result = run("describe", "nothing")
    assert result.exit_code == 1
    assert "`assigner groups` lists what there is" in result.stderr


def test_a_server_that_does_not_answer_is_exit_code_3(run: Run, service: ScriptedAdministration) -> None:
    service.hang = True
    result = run("groups", "--timeout", "0.3")
    assert result.exit_code == 3
    assert "did not answer within 0.3 s" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["describe"],
        ["topics", "set", "g", "t", "0"],
        ["groups", "--address", "no-port"],
        ["groups", "--address", "h:99999"],
        ["groups", "--timeout", "0"],
        ["groups", "--output", "yaml"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert invoke_with({}, *arguments).exit_code == 2


# --- TLS ---------------------------------------------------------------------------------------------------------


def test_tls_and_a_client_certificate(service: ScriptedAdministration, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca")
    for name, made in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("me"))):
        made.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.cert")
        made.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    settings = ServerSettings(
        port=0,
        tls_certificate=str(tmp_path / "server.cert"),
        tls_key=str(tmp_path / "server.key"),
        tls_client_ca=str(tmp_path / "ca"),
    )
    with serving(service, settings) as address:
        there = {"ASSIGNER_ADDRESS": address}
        trust = ["--tls-ca", str(tmp_path / "ca")]
        mine = ["--tls-cert", str(tmp_path / "client.cert"), "--tls-key", str(tmp_path / "client.key")]
        assert invoke_with(there, "groups", *trust, *mine).exit_code == 0
        uncertified = invoke_with(there, "groups", *trust)
        assert uncertified.exit_code == 3
        assert "wants a certificate" in uncertified.stderr
        assert "pass --tls-cert and --tls-key" in uncertified.stderr
        assert "does it want TLS" not in uncertified.stderr
        assert invoke_with(there, "groups", "--tls").exit_code == 3
        without = invoke_with(there, "groups")
        assert without.exit_code == 3
        assert "pass --tls" in without.stderr


def test_tls_files_that_are_not_there_are_a_usage_error() -> None:
    result = invoke_with({}, "groups", "--tls-ca", "/nowhere")
    assert result.exit_code == 2
    assert "check the --tls options" in result.stderr


# --- small things ------------------------------------------------------------------------------------------------


def test_partitions_are_shown_as_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([7]) == "7"
    assert ranges([3, 1, 2, 9, 8, 5]) == "1-3,5,8-9"


def test_every_command_has_help_and_is_in_the_reference() -> None:
    page = PAGE.read_text()
    for name in COMMANDS:
        assert invoke_with({}, name, "--help").exit_code == 0
        assert f"assigner {name}" in page, name


def test_the_version_is_printed() -> None:
    assert invoke_with({}, "--version").stdout.startswith("assigner, version ")
