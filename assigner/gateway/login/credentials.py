"""Reads the users of SASL PLAIN and SCRAM from a file in TOML, with what each may do.

```toml
[[user]]
name = "billing"
org = "acme"
role = "consumer"
groups = ["billing", "billing-*"]
names = "*"
scram-sha-256 = "4096:c2FsdA==:STORED KEY:SERVER KEY"
```

A line of keys holds the iterations, the salt and the two keys of RFC 5802 in base64, as `credential_line` makes it. The
password is not in the file and does not follow from it. PLAIN is checked with the same keys, so one line serves all
mechanisms but the other SCRAM.

Whoever has the line can't log in with it, but can act as this gateway towards that user: keep the file from others.
"""

from __future__ import annotations

import base64
import hmac
import secrets

import msgspec

from assigner.auth.identity import Principal, Source, principal
from assigner.errors import AssignerError, InvalidInput
from assigner.gateway.login.scram import (
    HASHES,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    ScramKeys,
    make_keys,
)
from assigner.secret_files import read_start, why_unread

MAX_BYTES = 4 * 1024 * 1024
MOST_USERS = 10_000
_SALT_BYTES = 18

_OneOrMore = str | tuple[str, ...]


class _User(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"sha256": "scram-sha-256", "sha512": "scram-sha-512"},
):
    name: str
    role: _OneOrMore
    groups: _OneOrMore
    names: _OneOrMore = ()
    org: str = ""
    sha256: str = ""
    sha512: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: tuple[_User, ...] = ()


class Credential(msgspec.Struct, frozen=True):
    """One user: who it is, and its keys by mechanism."""

    principal: Principal
    keys: dict[str, ScramKeys]

    def keys_for_plain(self) -> ScramKeys:
        return next(iter(self.keys.values()))


class Credentials:
    """The users of one file."""

    def __init__(self, users: dict[str, Credential], secret: bytes | None = None) -> None:
        self._users = users
        self._secret = secret or secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._users)

    def get(self, name: str) -> Credential | None:
        return self._users.get(name)

    def keys_of_nobody(self, mechanism: str, name: str) -> ScramKeys:
        """Return keys that no password has, the same for each try with the name, so that a login with an unknown name
        goes on like one with a wrong password."""
        salt = hmac.digest(self._secret, name.encode(), "sha256")[:_SALT_BYTES]
        size = 32 if mechanism == "SCRAM-SHA-256" else 64
        return ScramKeys(mechanism, LEAST_ITERATIONS, salt, secrets.token_bytes(size), secrets.token_bytes(size))

    def still_counts(self, name: str, before: Credential) -> bool:
        """Whether a user that logged in with these keys may stay: it is still there, with the same keys and rights."""
        return self._users.get(name) == before


def credential_line(password: str, mechanism: str, *, iterations: int = LEAST_ITERATIONS) -> str:
    """Make the line of keys for a password. Raises `InvalidInput`."""
    if mechanism not in HASHES:
        raise InvalidInput(f"mechanism {mechanism!r} is unknown; use one of: {', '.join(HASHES)}")
    if not password:
        raise InvalidInput("the password is empty; choose one")
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise InvalidInput(f"iterations is {iterations}; it must be {LEAST_ITERATIONS} to {MOST_ITERATIONS}")
    keys = make_keys(mechanism, password, secrets.token_bytes(_SALT_BYTES), iterations)
    parts = (keys.salt, keys.stored_key, keys.server_key)
    return ":".join((str(iterations), *(base64.b64encode(one).decode() for one in parts)))


def read_credentials(path: str) -> Credentials:
    """Read the users of the file. Raises `InvalidInput` if one can't be used: none of them counts then."""
    try:
        content = read_start(path, MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"can't read the credentials in {path}: {why_unread(error)}") from error
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"the credentials in {path} are longer than {MAX_BYTES} bytes; is it the right file?")
    try:
        found = msgspec.toml.decode(content, type=_File)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the credentials in {path} are wrong: {error}; see [[user]]") from error
    if len(found.user) > MOST_USERS:
        raise InvalidInput(f"there are more than {MOST_USERS} users in {path}")
    users: dict[str, Credential] = {}
    for user in found.user:
        if user.name in users:
            raise InvalidInput(f"the credentials in {path} name user {user.name!r} twice; remove one")
        try:
            users[user.name] = _credential(user)
        except AssignerError as error:
            raise InvalidInput(f"the credentials in {path} are wrong: user {user.name!r}: {error}") from error
    return Credentials(users)


def _credential(user: _User) -> Credential:
    who = principal(
        user.name,
        organization=user.org,
        groups=_several(user.groups),
        names=_several(user.names),
        roles=_several(user.role),
        source=Source.PASSWORD,
    )
    lines = {"SCRAM-SHA-256": user.sha256, "SCRAM-SHA-512": user.sha512}
    keys = {mechanism: _keys(mechanism, line) for mechanism, line in lines.items() if line}
    if not keys:
        raise InvalidInput("it has no keys; add a line scram-sha-256 = ...")
    return Credential(who, keys)


def _keys(mechanism: str, line: str) -> ScramKeys:
    wrong = f"its {mechanism.lower()} is wrong; write ITERATIONS:SALT:STORED KEY:SERVER KEY, the last three in base64"
    iterations, *parts = line.split(":")
    try:
        salt, stored, server = (base64.b64decode(part, validate=True) for part in parts)
        count = int(iterations)
    except ValueError:
        # The line is a secret of sorts, so it is not shown.
        raise InvalidInput(wrong) from None
    size = 32 if mechanism == "SCRAM-SHA-256" else 64
    if not salt or len(stored) != size or len(server) != size:
        raise InvalidInput(wrong)
    if not LEAST_ITERATIONS <= count <= MOST_ITERATIONS:
        raise InvalidInput(f"it has {count} iterations; {LEAST_ITERATIONS} to {MOST_ITERATIONS} do")
    return ScramKeys(mechanism, count, salt, stored, server)


def _several(value: _OneOrMore) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
