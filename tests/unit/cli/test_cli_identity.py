"""Commands that show a token, and what they say when the service does not take it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from assigner.cli import main
from assigner.server.settings import AuthSettings
from tests.support.fakes.cli_service import ScriptedAdministration, serving
from tests.support.signed_tokens import Signer


class Guarded(msgspec.Struct, frozen=True):
    address: str
    signer: Signer
    folder: Path

    def token_file(self, **claims: Any) -> str:
        path = self.folder / "token"
        path.write_text(self.signer.token(time.time(), **{"roles": ["operator"], "groups": ["*"]} | claims))
        return str(path)

    def run(self, *arguments: str, **environment: str) -> Result:
        return CliRunner(env={"ASSIGNER_ADDRESS": self.address, **environment}).invoke(main, arguments)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    signer = Signer()
    auth = AuthSettings(required=True, keys=(signer.publish(tmp_path / "key.pem"),))
    with serving(ScriptedAdministration(), auth=auth) as address:
        yield Guarded(address, signer, tmp_path)


def test_a_command_shows_the_token_of_its_option_or_of_the_environment(guarded: Guarded) -> None:
    file = guarded.token_file()
    assert guarded.run("groups", "--token-file", file).exit_code == 0
    assert guarded.run("groups", ASSIGNER_TOKEN_FILE=file).exit_code == 0


def test_without_a_token_the_error_names_the_option(guarded: Guarded) -> None:
    result = guarded.run("groups")
    assert result.exit_code == 1
    assert "needs an identity" in result.stderr
    assert "--token-file" in result.stderr


def test_a_consumer_without_a_token_names_the_option_too(guarded: Guarded) -> None:
    result = guarded.run("consume", "orders")
    assert result.exit_code == 1
    assert "needs an identity" in result.stderr
    assert "--token-file" in result.stderr


@pytest.mark.parametrize("command", [("groups",), ("consume", "orders")])
def test_with_a_token_that_is_not_taken_the_error_does_not_ask_for_one(
    guarded: Guarded, command: tuple[str, ...]
) -> None:
    result = guarded.run(*command, "--token-file", guarded.token_file(exp=time.time() - 100))
    assert result.exit_code == 1
    assert "expired" in result.stderr
    assert "pass --token-file" not in result.stderr


def test_a_token_of_too_few_rights_is_refused_by_the_claim(guarded: Guarded) -> None:
    result = guarded.run("groups", "-o", "json", "--token-file", guarded.token_file(roles=["consumer"]))
    assert result.exit_code == 1
    assert '"kind": "permission_denied"' in result.stderr
    assert "`roles`" in result.stderr


def test_a_consumer_that_is_refused_says_why_and_ends(guarded: Guarded) -> None:
    result = guarded.run("consume", "orders", "--token-file", guarded.token_file())
    assert result.exit_code == 1
    assert "`roles`" in result.stderr


@pytest.mark.parametrize("command", [("groups",), ("consume", "orders")])
def test_a_token_file_that_is_not_there_is_a_usage_error(guarded: Guarded, command: tuple[str, ...]) -> None:
    result = guarded.run(*command, "--token-file", str(guarded.folder / "none"))
    assert result.exit_code == 2
    assert "check --token-file" in result.stderr


def test_no_command_prints_the_token(guarded: Guarded) -> None:
    file = guarded.token_file(roles=["consumer"])
    payload = Path(file).read_text().split(".")[1]
    for command in (("groups",), ("describe", "orders"), ("consume", "orders")):
        result = guarded.run(*command, "--token-file", file)
        assert payload not in result.stdout + result.stderr
