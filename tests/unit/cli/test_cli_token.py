"""`assigner token`: makes keys, issues tokens, and shows what they say."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

from assigner.auth.identity import Principal
from assigner.auth.keys import read_keys
from assigner.auth.tokens import TokenVerifier
from assigner.cli import main
from assigner.cli.exit_codes import USAGE
from assigner.gateway.login.credentials import read_credentials
from assigner.gateway.login.scram import has_password
from tests.support.signed_tokens import Signer

WORKER = (
    "--name", "worker-1", "--org", "acme", "--group", "billing-*", "--names", "worker-*", "--role", "consumer",
)  # fmt: skip


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(main, ["token", *map(str, arguments)], input=stdin)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return tmp_path / "private.pem"


@pytest.fixture
def public(tmp_path: Path, private: Path) -> Path:
    path = tmp_path / "public.pem"
    result = run("keygen", "--private", private, "--public", path)
    assert result.exit_code == 0, result.output
    return path


def issued(private: Path, *more: str, expires: str = "30d") -> str:
    result = run("issue", "--key", private, *WORKER, "--expires", expires, *more)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def shown(token: str, *more: str | Path) -> dict[str, Any]:
    result = run("show", "-o", "json", *more, stdin=token)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# --- keygen ------------------------------------------------------------------------------------------------------


def test_a_key_pair_is_two_files_of_which_one_is_secret(private: Path, public: Path) -> None:
    assert (mode(private), mode(public)) == (0o600, 0o644)
    assert len(read_keys([str(public)])) == 1
    assert "PRIVATE" not in public.read_text()


def test_keys_are_replaced_only_by_force(private: Path, public: Path) -> None:
    before = private.read_text(), public.read_text()
    result = run("keygen", "--private", private, "--public", public)
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert (private.read_text(), public.read_text()) == before
    assert run("keygen", "--private", private, "--public", public, "--force").exit_code == 0
    assert private.read_text() != before[0]
    assert mode(private) == 0o600


def test_no_half_of_a_pair_is_written_beside_an_old_one(tmp_path: Path, public: Path) -> None:
    assert run("keygen", "--private", tmp_path / "new.pem", "--public", public).exit_code == 2
    assert not (tmp_path / "new.pem").exists()


def test_one_file_can_not_hold_both_keys(tmp_path: Path) -> None:
    result = run("keygen", "--private", tmp_path / "key", "--public", tmp_path / "key", "--force")
    assert result.exit_code == 2
    assert "both keys" in result.stderr
    assert not (tmp_path / "key").exists()


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["new", "forced"])
@pytest.mark.parametrize("missing", ["private", "public"])
def test_no_half_of_a_pair_is_written_where_the_other_has_no_place(
    tmp_path: Path, private: Path, public: Path, missing: str, force: tuple[str, ...]
) -> None:
    before = private.read_text(), public.read_text()
    places = {"private": private, "public": public} if force else {"private": tmp_path / "a", "public": tmp_path / "b"}
    files = sorted(tmp_path.iterdir())
    places[missing] = tmp_path / "nowhere" / "key"
    result = run("keygen", "--private", places["private"], "--public", places["public"], *force)
    assert result.exit_code == 2
    assert "make its folder first" in result.stderr
    assert (private.read_text(), public.read_text()) == before
    assert sorted(tmp_path.iterdir()) == files


def test_a_full_disk_is_an_error_and_leaves_no_half_of_a_key(
    tmp_path: Path, private: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = private.read_text(), public.read_text()
    files = sorted(tmp_path.iterdir())

    def full(descriptor: int, mode: str) -> IO[str]:
        os.close(descriptor)
        return Path("/dev/full").open(mode)

    monkeypatch.setattr(os, "fdopen", full)
    for where in ((tmp_path / "a", tmp_path / "b"), (private, public, "--force")):
        result = run("keygen", "--private", where[0], "--public", where[1], *where[2:])
        assert result.exit_code == 2
        assert "No space left" in result.stderr
    assert (private.read_text(), public.read_text()) == before
    assert sorted(tmp_path.iterdir()) == files


# --- issue -------------------------------------------------------------------------------------------------------


def test_an_issued_token_is_accepted_by_the_service(private: Path, public: Path) -> None:
    live = read_keys([str(public)])
    found = TokenVerifier(lambda: live).verify(issued(private), "", time.time())
    assert isinstance(found, Principal)
    assert found.identity == "acme/worker-1"


def test_a_token_goes_into_a_file_that_nobody_else_reads_and_not_to_the_terminal(private: Path, public: Path) -> None:
    out = private.with_name("token")
    result = run("issue", "--key", private, *WORKER, "--expires", "12h", "--out", out)
    assert result.exit_code == 0
    assert mode(out) == 0o600
    assert result.stdout == ""
    assert out.read_text().strip() not in result.stderr
    assert run("show", out, "--keys", public).exit_code == 0


def test_a_token_file_is_replaced_only_by_force(private: Path, public: Path) -> None:
    out = private.with_name("token")
    issue = ("issue", "--key", private, *WORKER, "--expires", "12h", "--out", out)
    assert run(*issue).exit_code == 0
    before = out.read_text()
    refused = run(*issue)
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert out.read_text() == before
    assert run(*issue, "--force").exit_code == 0
    assert out.read_text() != before


def test_options_may_be_given_repeatedly(private: Path, public: Path) -> None:
    found = shown(issued(private, "--group", "orders", "--names", "boss", "--role", "reader"))
    assert found["groups"] == ["billing-*", "orders"]
    assert found["names"] == ["worker-*", "boss"]
    assert found["roles"] == ["consumer", "reader"]


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90m", 5400), ("12h", 43_200), ("30d", 2_592_000)])
def test_a_duration_has_a_unit(private: Path, public: Path, text: str, seconds: int) -> None:
    found = shown(issued(private, expires=text))
    assert found["expires_at"] - found["issued_at"] == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1.5h", "30 d", "1y", "", "٣d", "9999999999d"])
def test_another_duration_is_refused_with_examples(private: Path, public: Path, text: str) -> None:
    result = run("issue", "--key", private, *WORKER, "--expires", text)
    assert result.exit_code == 2
    assert "30d, 12h" in result.stderr


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--expires": "0s"}, "out of range"),
        ({"--expires": "401d"}, "at most 400 days"),
        ({"--names": ""}, "empty"),
        ({"--org": "a/b"}, "slash"),
        ({"--role": "root"}, "'consumer'"),
        ({"--key": "missing.pem"}, "can't read the private key"),
    ],
    ids=str,
)
def test_what_can_not_be_issued_is_told_with_the_remedy(
    private: Path, public: Path, changed: dict[str, str], said: str
) -> None:
    options = dict(zip(WORKER[::2], WORKER[1::2], strict=True)) | {"--key": str(private), "--expires": "1d"} | changed
    result = run("issue", *(word for pair in options.items() for word in pair))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_consumer_without_names_is_told_so(private: Path, public: Path) -> None:
    result = run("issue", "--key", private, "--name", "w", "--group", "g", "--role", "consumer", "--expires", "1d")
    assert result.exit_code == 2
    assert "a consumer needs `names`" in result.stderr


def test_a_key_that_others_may_read_signs_nothing(private: Path, public: Path) -> None:
    private.chmod(0o640)
    result = run("issue", "--key", private, *WORKER, "--expires", "1d")
    assert result.exit_code == 2
    assert f"chmod 600 {private}" in result.stderr


# --- show --------------------------------------------------------------------------------------------------------


def test_a_token_is_shown_with_what_it_says_and_how_long_it_counts(private: Path, public: Path) -> None:
    result = run("show", stdin=issued(private))
    assert result.exit_code == 0
    rows = {line[:14].strip(): line[14:].strip() for line in result.stdout.splitlines()}
    assert rows["name"] == "worker-1"
    assert rows["groups"] == "billing-*"
    assert rows["valid"] == "for 29 d 23 h"
    assert rows["signature"] == "not looked at; give --keys"


def test_a_token_as_json_with_stable_fields(private: Path, public: Path) -> None:
    found = shown(issued(private), "--keys", public)
    assert found["verified"] is True
    assert found["kid"] in read_keys([str(public)])
    assert list(found) == [
        "name", "organization", "roles", "groups", "names", "audience", "issued_at", "not_before", "expires_at",
        "valid_for", "id", "kid", "verified",
    ]  # fmt: skip


def test_with_keys_a_token_of_another_key_is_refused(private: Path, public: Path) -> None:
    result = run("show", "--keys", public, stdin=Signer().token(time.time()))
    assert result.exit_code == 1
    assert "no live key" in result.stderr
    assert "not accepted" in result.stdout


def test_a_forged_token_is_refused(private: Path, public: Path) -> None:
    (kid,) = read_keys([str(public)])
    forged = Signer().token(time.time(), header={"kid": kid})
    assert shown(forged, "--keys", public)["verified"] is False
    assert (
        json.loads(run("show", "-o", "json", "--keys", public, stdin=forged).stderr)["error"]["kind"] == "refused_token"
    )


def test_an_expired_token_says_since_when(tmp_path: Path) -> None:
    signer = Signer()
    expired = signer.token(time.time() - 3600 - 2 * 86_400 - 3600)
    result = run("show", stdin=expired)
    assert result.exit_code == 0
    assert "no more, since 2 d 1 h" in result.stdout
    refused = run("show", "--keys", signer.publish(tmp_path / "key"), stdin=expired)
    assert refused.exit_code == 1
    assert "get a new one" in refused.stderr


def test_a_token_of_the_future_says_from_when() -> None:
    assert "not yet, in 1 h" in run("show", stdin=Signer().token(time.time(), nbf=time.time() + 3605)).stdout


def test_a_token_on_the_command_line_is_refused_and_not_repeated(private: Path, public: Path) -> None:
    token = issued(private)
    result = run("show", token)
    assert result.exit_code == 2
    assert "process list" in result.stderr
    assert token not in result.stderr


@pytest.mark.parametrize("content", ["", "\n", "nonsense", "a.b.c", "x" * 100_000])
def test_what_is_no_token_is_refused(content: str) -> None:
    result = run("show", stdin=content)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert json.loads(run("show", "-o", "json", stdin=content).stderr)["error"]["kind"] == "invalid_input"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "can't read a token" in run("show", tmp_path / "missing").stderr
    assert "no such file" in run("show", "--keys", tmp_path / "missing", stdin=Signer().token(time.time())).stderr


def test_claims_of_strangers_can_not_write_on_the_terminal() -> None:
    result = run("show", stdin=Signer().token(time.time(), sub="\x1b[2J[red]x", exp=1e300))
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "[red]x" in result.stdout


@pytest.mark.parametrize("what", ["key", "token"])
def test_a_file_that_is_not_there_is_named_with_the_remedy(tmp_path: Path, what: str) -> None:
    missing = tmp_path / "missing"
    arguments = ("show", missing) if what == "token" else ("issue", "--key", missing, *WORKER, "--expires", "1h")
    result = run(*arguments)
    assert result.exit_code == 2
    assert f"{missing}: there is no such file; check the path" in result.stderr
    assert "assigner token" in result.stderr


def test_a_token_that_counts_for_too_long_is_shown_as_one_that_is_never_taken() -> None:
    token = Signer().token(time.time(), exp=1e300)
    result = run("show", stdin=token)
    assert result.exit_code == 0
    assert "never: it ends in more than 400 days" in result.stdout
    assert len(max(result.stdout.splitlines(), key=len)) < 160


def test_a_kafka_user_is_printed_as_the_gateway_reads_it_and_without_the_password(tmp_path: Path) -> None:
    arguments = ["token", "user", "--name", "billing", "--org", "acme", "--group", "billing-*", "--role", "consumer"]
    result = CliRunner().invoke(main, [*arguments, "--names", "*"], input="open sesame\n")
    assert result.exit_code == 0, result.output
    assert "sesame" not in result.output
    file = tmp_path / "users.toml"
    file.write_text(result.output)
    found = read_credentials(str(file)).get("billing")
    assert found is not None
    assert found.principal.identity == "acme/billing"
    assert found.principal.groups == ("billing-*",)
    assert has_password(found.keys["SCRAM-SHA-256"], "open sesame")


def test_a_kafka_user_without_a_password_is_refused() -> None:
    arguments = ["token", "user", "--name", "billing", "--group", "*", "--role", "consumer"]
    result = CliRunner().invoke(main, arguments, input="\n")
    assert result.exit_code == USAGE
    assert "the password is empty; choose one" in result.output
