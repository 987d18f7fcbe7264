"""`assigner credential`: what it prints is an entry that the gateway takes, and holds no password."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from assigner.cli.app import main
from assigner.gateway.login.credentials import read_credentials
from assigner.gateway.login.scram import has_password

USER = ("--name", "bïlling 😀", "--org", "acme", "--group", "b-*", "--group", "c", "--role", "consumer")


def run(*arguments: str, stdin: str = "pencil\n") -> Result:
    return CliRunner().invoke(main, ["credential", *arguments], input=stdin)


def test_an_entry_is_taken_by_the_gateway_with_its_rights_and_its_password(tmp_path: Path) -> None:
    done = run(*USER, "--names", "w-*")
    assert done.exit_code == 0, done.output
    assert "pencil" not in done.output
    (tmp_path / "users.toml").write_text(done.output)
    found = read_credentials(str(tmp_path / "users.toml")).get("bïlling 😀")
    assert found is not None
    who = found.principal
    assert (who.organization, who.groups, who.names) == ("acme", ("b-*", "c"), ("w-*",))
    assert {mechanism: has_password(keys, "pencil") for mechanism, keys in found.keys.items()} == {
        "SCRAM-SHA-256": True,
        "SCRAM-SHA-512": True,
    }


def test_a_password_may_be_in_a_file_and_the_mechanism_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pencil\n")
    chosen = ("--mechanism", "SCRAM-SHA-512", "--password-file", str(tmp_path / "password"), "--iterations", "5000")
    done = run(*USER, *chosen, stdin="")
    assert "scram-sha-256" not in done.output
    assert 'scram-sha-512 = "5000:' in done.output


@pytest.mark.parametrize(
    ("more", "stdin", "why"),
    [
        ((), "", "no password"),
        ((), "\n", "no password"),
        (("--org", "a/b"), "pencil\n", "slash"),
        (("--iterations", "1"), "pencil\n", "4096"),
        (("--password-file", "/missing"), "", "no such file"),
    ],
)
def test_what_would_not_be_taken_is_not_printed(more: tuple[str, ...], stdin: str, why: str) -> None:
    done = run(*USER, *more, stdin=stdin)
    assert done.exit_code == 2
    assert why in done.output
    assert "[[user]]" not in done.output
