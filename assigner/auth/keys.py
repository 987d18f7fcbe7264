"""Reads the public keys that tokens are verified with, from files or folders of PEM or JWKS.

Several keys are live at once, so that a new one is known everywhere before it is used. A token names its key by `kid`:
the key's RFC 7638 thumbprint, which no two keys share and nobody has to hand out, or the `kid` that a JWKS gives it.
Only Ed25519 counts. Keys of other kinds in a JWKS are left out, as its standard asks; a PEM file with one is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from assigner.auth.reload import MOST_ENTRIES, files_of
from assigner.errors import InvalidInput
from assigner.secret_files import read_start, why_unread

MAX_BYTES = 64 * 1024
MOST_KEYS = 64
"""Live keys: each costs memory only, but so many are a mistake."""

_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


class PublicKey(msgspec.Struct, frozen=True):
    kid: str
    thumbprint: str
    """The same for the same key, whatever its `kid` is."""
    key: Ed25519PublicKey


KeySet = Mapping[str, PublicKey]
"""The live keys, by `kid`."""


def read_keys(paths: Sequence[str]) -> KeySet:
    """Read the keys of all files and of all files of all folders. Raises `InvalidInput` if one can't be used."""
    found: dict[str, PublicKey] = {}
    for file in _files(paths):
        for key in _keys_of(file):
            if found.setdefault(key.kid, key).thumbprint != key.thumbprint:
                raise InvalidInput(f"{file}: another key is called {key.kid!r} too; give one of them another `kid`")
    if not found:
        raise InvalidInput(
            f"there is no public key in {', '.join(paths) or 'no file'}; make one: assigner token keygen --private "
            "FILE --public FILE"
        )
    if len(found) > MOST_KEYS:
        raise InvalidInput(f"{len(found)} public keys are live; at most {MOST_KEYS} may be: remove those that ended")
    return found


def public_key(key: Ed25519PublicKey, kid: str = "") -> PublicKey:
    """Name the key by its thumbprint, or by the `kid` if there is one."""
    found = thumbprint(key)
    return PublicKey(kid or found, found, key)


def thumbprint(key: Ed25519PublicKey) -> str:
    """Compute the key's RFC 7638 thumbprint."""
    x = _base64url(key.public_bytes_raw())
    # The members in this order and nothing else, as RFC 8037 says.
    return _base64url(hashlib.sha256(f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'.encode()).digest())


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in paths:
        try:
            files = files_of(path)
        except OSError as error:
            raise InvalidInput(f"can't list the public keys in {path}: {why_unread(error)}") from error
        if len(files) > MOST_ENTRIES:
            raise InvalidInput(f"{path} has {len(files)} files; at most {MOST_ENTRIES} may be there: is it the folder?")
        yield from files


def _keys_of(file: Path) -> Iterable[PublicKey]:
    try:
        content = read_start(file, MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"can't read public keys from {file}: {why_unread(error)}") from error
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"{file} is longer than {MAX_BYTES} bytes; is it the right file?")
    return list(_from_jwks(file, content) if content.lstrip().startswith(b"{") else _from_pem(file, content))


# --- PEM -----------------------------------------------------------------------------------------------------------


def _from_pem(file: Path, content: bytes) -> Iterator[PublicKey]:
    blocks = list(_PEM.finditer(content))
    if not blocks:
        raise InvalidInput(f"{file} holds no PEM and no JWKS; put public keys there: BEGIN PUBLIC KEY")
    if b"-----" in _PEM.sub(b"", content):
        # Nor are the keys before it read: the tokens of the others would end with a file that is just being written.
        raise InvalidInput(f"{file} ends within a key, or has a `-----` that is of none; write it again as a whole")
    for block in blocks:
        label = block[1].decode()
        if "PRIVATE" in label:
            raise _private(file)
        if label != "PUBLIC KEY":
            raise InvalidInput(f"{file} holds a {label}; put public keys there: BEGIN PUBLIC KEY")
        try:
            key = load_pem_public_key(block[0])
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InvalidInput(f"{file} holds a public key that can't be read ({error}); write it again") from error
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidInput(f"{file} holds a key that is not Ed25519; make one: assigner token keygen")
        yield public_key(key)


def _private(file: Path) -> InvalidInput:
    return InvalidInput(f"{file} holds a private key; put only its public half there, and keep the private one secret")


# --- JWKS ----------------------------------------------------------------------------------------------------------


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    crv: str = ""
    x: str = ""
    kid: str = ""
    use: str = "sig"
    d: Any = None
    k: Any = None


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[_Jwk]


def _from_jwks(file: Path, content: bytes) -> Iterator[PublicKey]:
    try:
        keys = msgspec.json.decode(content, type=_Jwks).keys
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f'{file} is no JWKS ({error}); write {{"keys": [...]}}') from error
    for jwk in keys:
        if jwk.d is not None or jwk.k is not None:
            raise _private(file)
        if (jwk.kty, jwk.crv, jwk.use) == ("OKP", "Ed25519", "sig"):
            yield public_key(_from_x(file, jwk.x), jwk.kid)


def _from_x(file: Path, x: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(x + "=" * (-len(x) % 4)))
    except (ValueError, binascii.Error) as error:
        raise InvalidInput(f"{file}: `x` of an Ed25519 key is not 32 bytes in base64url; write it again") from error
