"""The file of users: what is read from it, and what makes all of it not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from assigner.auth.identity import Role, Source
from assigner.errors import InvalidInput
from assigner.gateway.login.credentials import credential_line, read_credentials
from assigner.gateway.login.scram import has_password

LINE = credential_line("pencil", "SCRAM-SHA-256")


def written(folder: Path, text: str) -> str:
    path = folder / "users.toml"
    path.write_text(text)
    return str(path)


def user(name: str = "billing", line: str = LINE, more: str = "") -> str:
    return f'[[user]]\nname = "{name}"\nrole = "consumer"\ngroups = ["b-*"]\nscram-sha-256 = "{line}"\n{more}\n'


def test_a_user_is_read_with_its_rights_and_keys(tmp_path: Path) -> None:
    more = f'org = "acme"\nnames = "*"\nscram-sha-512 = "{credential_line("pencil", "SCRAM-SHA-512")}"'
    found = read_credentials(written(tmp_path, user(more=more) + user("other")))
    assert len(found) == 2
    billing = found.get("billing")
    assert billing is not None
    who = billing.principal
    assert (who.identity, who.groups, who.names, who.source) == ("acme/billing", ("b-*",), ("*",), Source.PASSWORD)
    assert who.roles == {Role.CONSUMER}
    assert who.expires is None
    assert [has_password(keys, "pencil") for keys in billing.keys.values()] == [True, True]
    assert found.get("nobody") is None


def test_a_line_is_new_each_time_and_holds_no_password() -> None:
    assert credential_line("pencil", "SCRAM-SHA-256") != LINE
    assert "pencil" not in LINE
    assert LINE.startswith("4096:")


def test_a_user_counts_for_as_long_as_its_keys_and_rights_are_the_same(tmp_path: Path) -> None:
    before = read_credentials(written(tmp_path, user() + user("other")))
    billing = before.get("billing")
    assert billing is not None
    assert read_credentials(written(tmp_path, user())).still_counts("billing", billing)
    assert not read_credentials(written(tmp_path, user("other"))).still_counts("billing", billing)
    changed = credential_line("pencil", "SCRAM-SHA-256")
    assert not read_credentials(written(tmp_path, user(line=changed))).still_counts("billing", billing)
    fewer = user().replace("b-*", "b-1")
    assert not read_credentials(written(tmp_path, fewer)).still_counts("billing", billing)


def test_nobody_has_keys_that_stay_the_same_to_look_at(tmp_path: Path) -> None:
    found = read_credentials(written(tmp_path, user()))
    one, other = (found.keys_of_nobody("SCRAM-SHA-256", "who") for _ in range(2))
    assert (one.salt, one.iterations) == (other.salt, other.iterations)
    assert found.keys_of_nobody("SCRAM-SHA-256", "else").salt != one.salt
    assert not has_password(one, "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[user]]", "name"),
        ("what", "wrong"),
        (user(more='surname = "x"'), "surname"),
        (user() + user(), "twice"),
        (user(line="4096:AAAA:BBBB"), "ITERATIONS"),
        (user(line="many:AAAA:BBBB:CCCC"), "ITERATIONS"),
        (user(line="4096:AAAA:BBBB:CCCC"), "ITERATIONS"),
        (user(line="1:" + LINE.partition(":")[2]), "iterations"),
        (user(line=""), "no keys"),
        (user(more='org = "a/b"'), "slash"),
        (user().replace('"consumer"', '"king"'), "king"),
    ],
    ids=[
        "no name",
        "no TOML",
        "unknown field",
        "named twice",
        "too few parts",
        "no number",
        "no keys of that size",
        "too few iterations",
        "empty",
        "slash",
        "unknown role",
    ],
)
def test_a_file_with_a_wrong_user_does_not_count_and_says_why(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        read_credentials(written(tmp_path, text))
    assert LINE.split(":")[2] not in str(refused.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        read_credentials(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("password", "mechanism", "iterations"),
    [("", "SCRAM-SHA-256", 4_096), ("x", "PLAIN", 4_096), ("x", "SCRAM-SHA-256", 4_095), ("x", "SCRAM-SHA-256", 10**6)],
)
def test_a_line_that_would_not_be_taken_is_not_made(password: str, mechanism: str, iterations: int) -> None:
    with pytest.raises(InvalidInput):
        credential_line(password, mechanism, iterations=iterations)
