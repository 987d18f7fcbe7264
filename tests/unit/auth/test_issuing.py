"""Issued tokens are those that the service accepts, and the files of secrets are nobody else's."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from assigner.auth.identity import principal
from assigner.auth.issuing import TokenRequest, issue, read_private_key, write_new
from assigner.auth.tokens import LEEWAY, LONGEST, TokenVerifier
from assigner.errors import AssignerError, InvalidInput
from tests.support.signed_tokens import NOW, Signer

SIGNER = Signer()


def request(**changed: Any) -> TokenRequest:
    of: dict[str, Any] = {
        "name": "worker-1",
        "organization": "acme",
        "groups": ("billing-*",),
        "names": ("worker-*",),
        "roles": ("consumer",),
        "lifetime": 3600.0,
    }
    return TokenRequest(**(of | changed))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- tokens ------------------------------------------------------------------------------------------------------


def test_an_issued_token_is_accepted_and_says_what_was_asked_for() -> None:
    verifier = TokenVerifier(lambda: {SIGNER.kid: SIGNER.public})
    asked_for = principal(
        "worker-1",
        organization="acme",
        groups=["billing-*"],
        names=["worker-*"],
        roles=["consumer"],
        expires=NOW + 3600 + LEEWAY,
    )
    found = verifier.verify(issue(SIGNER.key, request(), NOW), "", NOW)
    assert found == msgspec.structs.replace(asked_for, key=SIGNER.kid)


def test_another_library_reads_an_issued_token() -> None:
    token = issue(SIGNER.key, request(), NOW)
    claims = jwt.decode(
        token,
        SIGNER.key.public_key(),
        algorithms=["EdDSA"],
        audience="kafka-assigner",
        options={"verify_exp": False, "verify_iat": False},
    )
    assert (claims["sub"], claims["exp"], claims["iat"]) == ("worker-1", NOW + 3600, NOW)
    assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "kid": SIGNER.kid, "typ": "JWT"}


def test_no_two_tokens_have_one_id() -> None:
    tokens = {issue(SIGNER.key, request(), NOW) for _ in range(10)}
    assert len(tokens) == 10


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"roles": ()}, "without a role"),
        ({"groups": ()}, "without groups"),
        ({"names": ()}, "a consumer needs `names`"),
        ({"names": (), "roles": ("router",)}, "a router needs `names`"),
        ({"lifetime": 0.0}, "out of range"),
        ({"lifetime": -5.0}, "out of range"),
        ({"lifetime": LONGEST + 1}, "at most 400 days"),
        ({"lifetime": float("nan")}, "out of range"),
        ({"roles": ("root",)}, "'root' is unknown"),
        ({"name": ""}, "empty"),
        ({"organization": "a/b"}, "slash"),
        ({"groups": tuple(f"{number:0200}" for number in range(50))}, "use `*`"),
    ],
    ids=str,
)
def test_a_token_that_would_be_refused_or_allow_nothing_is_not_issued(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(AssignerError, match=re.escape(said)):
        issue(SIGNER.key, request(**changed), NOW)


def test_an_operator_needs_no_names() -> None:
    assert issue(SIGNER.key, request(names=(), roles=("operator",)), NOW)


# --- private keys ------------------------------------------------------------------------------------------------


def test_a_private_key_comes_back_from_its_file(tmp_path: Path) -> None:
    found = read_private_key(SIGNER.keep(tmp_path / "key.pem"))
    assert found.private_bytes_raw() == SIGNER.key.private_bytes_raw()


@pytest.mark.parametrize("wrong", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_a_private_key_that_others_may_read_or_write_is_refused(tmp_path: Path, wrong: int) -> None:
    path = SIGNER.keep(tmp_path / "key.pem", wrong)
    with pytest.raises(InvalidInput, match=f"{wrong:04o}.*chmod 600 {path}"):
        read_private_key(path)


def rsa_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def locked_key() -> bytes:
    return SIGNER.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hunter2", "no private key in PEM"),
        (b"", "no private key"),
        (rsa_key(), "Ed25519"),
        (locked_key(), "password"),
    ],
    ids=["text", "empty", "RSA", "password"],
)
def test_what_is_no_private_key_of_ours_is_refused_without_showing_it(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidInput, match=said) as refused:
        read_private_key(str(path))
    assert "hunter2" not in str(refused.value)


def test_a_missing_private_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"key\.pem: there is no such file.*keygen"):
        read_private_key(str(tmp_path / "key.pem"))


# --- files -------------------------------------------------------------------------------------------------------


def test_a_secret_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_new(str(path), "secret")
    assert mode(path) == 0o600
    write_new(str(path), "newer", replace=True)
    assert (path.read_text(), mode(path)) == ("newer", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_replaced_only_when_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    with pytest.raises(InvalidInput, match=r"exists.*--force"):
        write_new(str(path), "new")
    assert path.read_text() == "old"


def test_replacing_a_file_that_others_could_read_leaves_none_that_they_can(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    write_new(str(path), "new", replace=True)
    assert mode(path) == 0o600


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("untouched")
    link.symlink_to(target)
    with pytest.raises(InvalidInput, match="exists"):
        write_new(str(link), "secret")
    write_new(str(link), "secret", replace=True)
    assert (target.read_text(), link.read_text()) == ("untouched", "secret")


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_that_can_not_be_written_is_an_error_and_leaves_nothing(tmp_path: Path, replace: bool) -> None:
    with pytest.raises(InvalidInput, match="can't write"):
        write_new(str(tmp_path / "none" / "token"), "secret", replace=replace)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match=r"exists|can't replace"):
        write_new(str(tmp_path / "folder"), "secret", replace=replace)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
