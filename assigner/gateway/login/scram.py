"""Computes SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) for both sides, without I/O.

A server keeps no password: of a user it has a salt, a number of iterations, and two keys from which neither the
password nor the other key follows. Neither side sends what would let the other one act as it does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from binascii import Error as Base64Error

import msgspec

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
LEAST_ITERATIONS = 4_096
MOST_ITERATIONS = 100_000
"""More would let a broker, or a line of the file, take the processor for seconds."""
_LONGEST_NONCE = 512


class ScramError(Exception):
    """The exchange failed. The message holds no secret and is not sent to the peer."""


class ScramKeys(msgspec.Struct, frozen=True):
    """What a server keeps of a password."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramKeys({self.mechanism!r})"


def make_keys(mechanism: str, password: str, salt: bytes, iterations: int = LEAST_ITERATIONS) -> ScramKeys:
    """Compute the keys of a password: 4,096 iterations take some milliseconds."""
    hash_name = HASHES[mechanism]
    salted = _salted(hash_name, password, salt, iterations)
    client_key = _hmac(hash_name, salted, b"Client Key")
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramKeys(mechanism, iterations, salt, stored_key, _hmac(hash_name, salted, b"Server Key"))


def has_password(keys: ScramKeys, password: str) -> bool:
    """Whether the keys are those of the password: as expensive as making them."""
    made = make_keys(keys.mechanism, password, keys.salt, keys.iterations)
    return hmac.compare_digest(made.stored_key, keys.stored_key)


def _salted(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def _hmac(hash_name: str, key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, hash_name)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


# --- the server's side -----------------------------------------------------------------------------------------------


class ClientFirst(msgspec.Struct, frozen=True):
    """A client's first message."""

    user: str
    nonce: str
    bare: str
    """The message without what concerns channel binding."""
    header: str
    """That part."""


def read_client_first(message: bytes) -> ClientFirst:
    """Read a client's first message. Raises `ScramError`."""
    text = _decoded(message)
    binding, _, rest = text.partition(",")
    authzid, _, bare = rest.partition(",")
    if binding not in ("n", "y"):
        raise ScramError("channel binding is not supported")
    fields = _fields(bare)
    if "m" in fields or "n" not in fields or not fields.get("r"):
        raise ScramError("the first message has no user or no nonce, or an extension that nobody knows")
    if fields.get("tokenauth") == "true":
        raise ScramError("delegation tokens are not supported")
    if len(fields["r"]) > _LONGEST_NONCE:
        raise ScramError("the nonce is too long")
    user = _unescaped(fields["n"])
    if authzid and _unescaped(authzid.removeprefix("a=")) != user:
        raise ScramError("a client can't act as another user")
    return ClientFirst(user, fields["r"], bare, f"{binding},{authzid},")


class ScramServer:
    """The server's side of one exchange, after the client's first message."""

    def __init__(self, first: ClientFirst, keys: ScramKeys, nonce: str) -> None:
        """`nonce`: random, without a comma."""
        self._first = first
        self._keys = keys
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(keys.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={keys.iterations}"

    def challenge(self) -> bytes:
        """The server's first message."""
        return self._challenge.encode()

    def finish(self, message: bytes) -> bytes:
        """Take the client's last message and return the server's. Raises `ScramError` if the password is wrong."""
        text = _decoded(message)
        without_proof, mark, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        if not mark or fields.get("r") != self._nonce:
            raise ScramError("the last message has no proof, or another nonce")
        if _unbased(fields.get("c", "")) != self._first.header.encode():
            raise ScramError("the channel binding changed during the exchange")
        signed = f"{self._first.bare},{self._challenge},{without_proof}".encode()
        hash_name, keys = HASHES[self._keys.mechanism], self._keys
        signature = _hmac(hash_name, keys.stored_key, signed)
        proof = _unbased(proof_text)
        if len(proof) != len(signature):
            raise ScramError("the proof has the wrong length")
        client_key = _xor(proof, signature)
        if not hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), keys.stored_key):
            raise ScramError("the password is wrong")
        return b"v=" + base64.b64encode(_hmac(hash_name, keys.server_key, signed))


# --- the client's side -----------------------------------------------------------------------------------------------


class ScramClient:
    """The client's side of one exchange."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._verifier = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Answer the server's challenge. Raises `ScramError` for one that no honest server sends."""
        text = _decoded(challenge)
        fields = _fields(text)
        nonce, salt, iterations = fields.get("r", ""), _unbased(fields.get("s", "")), fields.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not salt or not iterations.isdecimal():
            raise ScramError("the server's challenge is wrong")
        if not LEAST_ITERATIONS <= int(iterations) <= MOST_ITERATIONS:
            raise ScramError(f"the server asks for {iterations} iterations; {LEAST_ITERATIONS} to {MOST_ITERATIONS} do")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        salted = _salted(self._hash, self._password, salt, int(iterations))
        client_key = _hmac(self._hash, salted, b"Client Key")
        signature = _hmac(self._hash, hashlib.new(self._hash, client_key).digest(), signed)
        self._verifier = _hmac(self._hash, _hmac(self._hash, salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(_xor(client_key, signature)).decode()}".encode()

    def check(self, final: bytes) -> None:
        """Check that the server knows the password's keys too. Raises `ScramError`."""
        if not hmac.compare_digest(_unbased(_fields(_decoded(final)).get("v", "")), self._verifier):
            raise ScramError("the server does not know this user's keys, so it may be another server")


# --- texts -----------------------------------------------------------------------------------------------------------


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}


def _unbased(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise ScramError("a value is not base64") from None


def _unescaped(name: str) -> str:
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise ScramError("a user's name is escaped wrongly")
    return name.replace("=2C", ",").replace("=3D", "=")
