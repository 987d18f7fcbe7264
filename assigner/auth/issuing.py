"""Signs tokens with a private key, and keeps private keys and tokens in files that nobody else can read.

A private key signs for everybody, so it belongs to who issues tokens and to no instance of the service. A file with one
that others may read is refused, as ssh does; files are made with mode 0600 and replaced only when that is asked for.

Not promised: a list of the tokens that were issued, nor taking one back. What ends a token early is the removal of its
key, which ends all tokens of that key.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from assigner.auth.actions import REQUIREMENTS
from assigner.auth.identity import principal
from assigner.auth.keys import thumbprint
from assigner.auth.tokens import ALGORITHM, AUDIENCE, LONGEST, MAX_BYTES, Claims
from assigner.errors import InvalidInput
from assigner.secret_files import why_unread

_KEY_BYTES = 64 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NAMED = frozenset(role for needs in REQUIREMENTS.values() if needs.name for role in needs.roles)


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a token shall say. The fields are those of a principal."""

    name: str
    organization: str = ""
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    lifetime: float
    """Seconds from now."""


def issue(key: Ed25519PrivateKey, request: TokenRequest, now: float) -> str:
    """Sign a token. Raises `InvalidInput` or `InvalidName` for one that would be refused or allow nothing."""
    _check(request)
    claims = Claims(
        sub=request.name,
        aud=AUDIENCE,
        exp=int(now + request.lifetime),
        org=request.organization,
        groups=request.groups,
        names=request.names,
        roles=request.roles,
        iat=int(now),
        jti=secrets.token_hex(16),
    )
    kid = thumbprint(key.public_key())
    token = jwt.encode(msgspec.to_builtins(claims), key, algorithm=ALGORITHM, headers={"kid": kid})
    if len(token) > MAX_BYTES:
        raise InvalidInput(f"the token would be {len(token)} bytes long; at most {MAX_BYTES} are read: use `*`")
    return token


def _check(request: TokenRequest) -> None:
    made = principal(
        request.name,
        organization=request.organization,
        groups=request.groups,
        names=request.names,
        roles=request.roles,
    )
    if not made.roles:
        raise InvalidInput(f"a token of {request.name!r} without a role allows nothing; give it one")
    if not made.groups:
        raise InvalidInput(f"a token of {request.name!r} without groups allows nothing; give a pattern, such as '*'")
    if made.roles & _NAMED and not made.names:
        roles = " and ".join(sorted(role.value for role in made.roles & _NAMED))
        raise InvalidInput(f"a {roles} needs `names` that it may register as; give a pattern, such as 'worker-*'")
    if not 0 < request.lifetime <= LONGEST:
        raise InvalidInput(
            f"a lifetime of {request.lifetime:g} s is out of range; tokens can't be taken back, so they count for at "
            f"most {LONGEST / 86_400:g} days"
        )


# --- keys ----------------------------------------------------------------------------------------------------------


def generate_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def private_pem(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_pem(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def read_private_key(path: str) -> Ed25519PrivateKey:
    """Read the private key. Raises `InvalidInput`, also if others than the file's owner may read it."""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_KEY_BYTES)
    except OSError as error:
        reason = f"{why_unread(error)}, or make one: assigner token keygen"
        raise InvalidInput(f"can't read the private key in {path}: {reason}") from error
    if mode & _OTHERS:
        raise InvalidInput(f"others may read the private key in {path} (mode {mode:04o}); run: chmod 600 {path}")
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # The reason may repeat what the file holds.
        raise InvalidInput(
            f"{path} holds no private key in PEM without a password; make one: assigner token keygen"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"the private key in {path} is not Ed25519; make one: assigner token keygen")
    return key


# --- files ---------------------------------------------------------------------------------------------------------


def write_new(path: str, text: str, *, mode: int = 0o600, replace: bool = False) -> None:
    """Write a file that only its owner can read, unless `mode` says otherwise.

    Raises `InvalidInput` if the file exists and shall not be replaced. It is written as a whole or not at all.
    """
    with new_file(path, text, mode=mode, replace=replace):
        pass


@contextmanager
def new_file(path: str, text: str, *, mode: int = 0o600, replace: bool = False) -> Iterator[None]:
    """Write a file as `write_new` does, if the block does not raise, as where a file is of no use without another."""
    written = f"{path}.{secrets.token_hex(4)}" if replace else path
    _create(path, written, text, mode)
    try:
        yield
        if replace:
            _move(written, path)
    except BaseException:
        Path(written).unlink(missing_ok=True)
        raise


def _create(wanted: str, path: str, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InvalidInput(f"{wanted} exists; choose another file, or replace it with --force") from None
    except FileNotFoundError as error:
        raise InvalidInput(f"can't write {wanted}: there is no such folder; make its folder first") from error
    except OSError as error:
        raise InvalidInput(f"can't write {wanted}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except OSError as error:
        Path(path).unlink(missing_ok=True)
        raise InvalidInput(f"can't write {wanted}: {error.strerror}") from error


def _move(written: str, path: str) -> None:
    try:
        Path(written).replace(path)
    except OSError as error:
        raise InvalidInput(f"can't replace {path}: {error.strerror}") from error
