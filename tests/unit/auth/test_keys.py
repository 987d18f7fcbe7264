"""Public keys from files and folders, in PEM and JWKS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from assigner.auth.issuing import private_pem, public_pem
from assigner.auth.keys import MAX_BYTES, MOST_KEYS, read_keys, thumbprint
from assigner.errors import InvalidInput
from tests.support.signed_tokens import Signer, base64url

FIRST, SECOND = Signer(), Signer()


def refusal(*paths: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        read_keys([str(path) for path in paths])
    return str(refused.value)


def a_file(folder: Path, content: str | bytes | dict[str, Any], name: str = "keys") -> Path:
    path = folder / name
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jwks(*keys: dict[str, Any]) -> dict[str, Any]:
    return {"keys": list(keys)}


def rsa_pem() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_the_thumbprint_is_that_of_the_standard() -> None:
    # RFC 8037, appendix A.3.
    x = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert thumbprint(Ed25519PublicKey.from_public_bytes(x)) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_a_pem_file_may_hold_several_keys_and_text_between_them(tmp_path: Path) -> None:
    text = f"the old one\n{public_pem(FIRST.key)}\nthe new one\n{public_pem(SECOND.key)}"
    assert read_keys([str(a_file(tmp_path, text))]).keys() == {FIRST.kid, SECOND.kid}


def test_a_pem_file_that_ends_within_a_key_is_refused_and_not_read_in_part(tmp_path: Path) -> None:
    """It is being written, or was cut off: with the keys that are left out, their tokens would end."""
    whole = public_pem(FIRST.key) + public_pem(SECOND.key)
    first = len(public_pem(FIRST.key))
    for end in range(first + len("-----"), len(whole) - 1):
        assert "ends within a key" in refusal(a_file(tmp_path, whole[:end])), end
    assert len(read_keys([str(a_file(tmp_path, whole[:-1]))])) == 2


def test_a_jwks_key_is_called_as_it_says_or_by_its_thumbprint(tmp_path: Path) -> None:
    found = read_keys([str(a_file(tmp_path, jwks(FIRST.jwk | {"kid": "2026-11"}, SECOND.jwk)))])
    assert found.keys() == {"2026-11", SECOND.kid}
    assert found["2026-11"].thumbprint == FIRST.kid


def test_keys_for_others_in_a_jwks_are_left_out(tmp_path: Path) -> None:
    others = ({"kty": "RSA", "n": "AQAB", "e": "AQAB"}, {"kty": "OKP", "crv": "X25519", "x": "AA"})
    content = jwks(*others, FIRST.jwk | {"use": "enc"}, SECOND.jwk | {"use": "sig", "alg": "EdDSA"})
    assert read_keys([str(a_file(tmp_path, content))]).keys() == {SECOND.kid}


def test_the_files_of_a_folder_count_without_the_hidden_ones(tmp_path: Path) -> None:
    """As Kubernetes mounts them: the names are links into a hidden folder, which is swapped as a whole."""
    version = tmp_path / "..2026_11_19"
    version.mkdir()
    FIRST.publish(version / "first.pem")
    SECOND.publish(version / "second.pem")
    (tmp_path / "..data").symlink_to(version.name)
    for name in ("first.pem", "second.pem"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    assert read_keys([str(tmp_path)]).keys() == {FIRST.kid, SECOND.kid}


def test_the_same_key_in_two_files_is_one(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert len(read_keys([FIRST.publish(one), FIRST.publish(other)])) == 1


def test_two_keys_of_one_name_are_refused(tmp_path: Path) -> None:
    content = jwks(FIRST.jwk | {"kid": "a"}, SECOND.jwk | {"kid": "a"})
    assert "another key is called 'a'" in refusal(a_file(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (private_pem(FIRST.key), "holds a private key"),
        (jwks(FIRST.jwk | {"d": "AA"}), "holds a private key"),
        (jwks({"kty": "oct", "k": "AA"}), "holds a private key"),
        (rsa_pem(), "not Ed25519"),
        (public_pem(FIRST.key).replace("PUBLIC KEY", "CERTIFICATE"), "holds a CERTIFICATE"),
        (public_pem(FIRST.key).replace("MC", "AA"), "can't be read"),
        (public_pem(FIRST.key)[:60], "no PEM"),
        ("", "no PEM"),
        ("hello", "no PEM"),
        (b"\xff\x00", "no PEM"),
        ("{", "no JWKS"),
        ("{}", "no JWKS"),
        ('{"keys": [1]}', "no JWKS"),
        ('{"keys": []}', "no public key"),
        ('{"keys": ' + "[" * 5000, "no JWKS"),
        (jwks(FIRST.jwk | {"x": "AAAA"}), "32 bytes"),
        (jwks(FIRST.jwk | {"x": "é"}), "32 bytes"),
        (jwks(FIRST.jwk | {"x": base64url(b"x" * 33)}), "32 bytes"),
        ("x" * (MAX_BYTES + 1), "longer than"),
    ],
    # Not the content, which is of a new key in each process.
    ids=range(19),
)
def test_a_file_that_can_not_be_used_is_refused_with_its_name(tmp_path: Path, content: Any, said: str) -> None:
    path = a_file(tmp_path, content)
    found = refusal(path)
    assert said in found
    assert str(path) in found


def test_a_missing_file_an_empty_folder_and_none_at_all_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "missing")
    assert "keygen" in refusal(tmp_path)
    assert "keygen" in refusal()


def test_one_bad_file_spoils_the_set(tmp_path: Path) -> None:
    FIRST.publish(tmp_path / "a.pem")
    a_file(tmp_path, "oops", "b.pem")
    assert "b.pem" in refusal(tmp_path)


def test_too_many_keys_are_refused(tmp_path: Path) -> None:
    content = jwks(*(Signer().jwk for _ in range(MOST_KEYS + 1)))
    assert f"at most {MOST_KEYS}" in refusal(a_file(tmp_path, content))


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    for number in range(100):
        FIRST.publish(tmp_path / f"{number}.pem")
    assert "is it the folder?" in refusal(tmp_path)
