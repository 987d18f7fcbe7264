"""What a failed request means: refused for a reason of its own, without effect, or nobody knows.

etcd puts many things under one status code, so its messages are read as well. Whatever is not recognised counts as
unknown: a write must never be repeated on a guess.
"""

from __future__ import annotations

from typing import Any

import msgspec

from assigner.backends.etcd.rpc import CHANNEL_CLOSED, Code
from assigner.errors import (
    AssignerError,
    Compacted,
    InvalidInput,
    LeaseNotFound,
    StoreReadOnly,
    StoreRefused,
    TransactionTooLarge,
)


class Final(msgspec.Struct, frozen=True):
    """The member has answered; asking again brings the same."""

    error: AssignerError


class TokenStale(msgspec.Struct, frozen=True):
    """The login is over, or none was made yet. Log in again and repeat: nothing was done."""

    reason: str


class NoEffect(msgspec.Struct, frozen=True):
    """Nothing was done. `blame` says that this member can't serve and another should be asked."""

    reason: str
    blame: bool


class Unknown(msgspec.Struct, frozen=True):
    """The answer was lost: the request may or may not have been applied."""

    reason: str
    blame: bool


class TooMuchToRead(msgspec.Struct, frozen=True):
    """The answer is larger than what this client takes."""

    reason: str


Verdict = Final | TokenStale | NoEffect | Unknown | TooMuchToRead

_NO_SPACE = "etcd is out of space and takes no writes ({}); compact and defragment it, or raise its quota, then disarm"
_CORRUPT = "etcd has found its data corrupt and takes no writes ({}); repair the member that it names"
_DENIED = "etcd denies this ({}); grant the user's role read and write on the store's root"
_LOGIN = "etcd refuses the login ({}); check user and password"
_NOT_ETCD = "the endpoint does not speak etcd's v3 API ({}); check the address"
_TOO_LARGE = "etcd refuses the request as too large ({}); split it"

_BY_MESSAGE: tuple[tuple[str, type[AssignerError], str], ...] = (
    ("requested lease not found", LeaseNotFound, "the lease has ended ({}); grant a new one"),
    ("too many operations", TransactionTooLarge, _TOO_LARGE),
    ("request is too large", TransactionTooLarge, _TOO_LARGE),
    ("received message larger than max", TransactionTooLarge, _TOO_LARGE),
    ("duplicate key given", InvalidInput, "a transaction may write a key once ({}); merge the writes"),
    ("future revision", InvalidInput, "the revision has not happened yet ({}); ask for one that the store answered"),
    ("too large lease TTL", InvalidInput, "the lease's TTL is too long ({}); choose a shorter one"),
    ("database space exceeded", StoreReadOnly, _NO_SPACE),
    ("corrupt cluster", StoreReadOnly, _CORRUPT),
    ("invalid user ID or password", StoreRefused, _LOGIN),
    ("permission denied", StoreRefused, _DENIED),
    ("permission not granted", StoreRefused, _DENIED),
)
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")
# Said before the request is handed to the members, so nothing was done.
_UNUSABLE_MEMBER = ("no leader", "not capable", "not supported for learner", "unhealthy cluster")
_NEVER_SENT = (
    "failed to connect",
    "connections to all backends failing",
    "DNS resolution",
    "resolution failed",
    CHANNEL_CLOSED,
)
_BUSY = ("too many requests",)
# An election is under way; the member itself is as good as any other.
_ELECTION = ("leader changed", "previous leader failure")


def judge(error: Any, *, answered_meanwhile: bool) -> Verdict:
    """`answered_meanwhile`: the connection has answered other requests since this one was sent."""
    code, reason = error.code(), str(error.details() or error.code().name)
    # Core's own limit, told by the capital: etcd speaks of messages that it received in lower case.
    if code is Code.RESOURCE_EXHAUSTED and "Received message larger" in reason:
        return TooMuchToRead(reason)
    if _has(reason, _STALE_TOKEN) or code is Code.UNAUTHENTICATED:
        return TokenStale(reason)
    if "required revision has been compacted" in reason:
        return Final(Compacted(0))
    for words, kind, text in _BY_MESSAGE:
        if words in reason:
            return Final(kind(text.format(reason)))
    return _by_code(code, reason, answered_meanwhile)


def _by_code(code: Any, reason: str, answered_meanwhile: bool) -> Verdict:
    if code is Code.UNIMPLEMENTED:
        return Final(StoreRefused(_NOT_ETCD.format(reason)))
    if code is Code.PERMISSION_DENIED:
        return Final(StoreRefused(_DENIED.format(reason)))
    if code is Code.INVALID_ARGUMENT or code is Code.OUT_OF_RANGE:
        return Final(InvalidInput(f"etcd refuses the request: {reason}"))
    if _has(reason, _BUSY):
        return NoEffect(reason, blame=False)
    if code is Code.UNAVAILABLE and _has(reason, _UNUSABLE_MEMBER + _NEVER_SENT):
        return NoEffect(reason, blame=True)
    if code is Code.DEADLINE_EXCEEDED:
        return Unknown("no answer in time", blame=not answered_meanwhile)
    return Unknown(f"{code.name}: {reason}", blame=not _has(reason, _ELECTION))


def _has(reason: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in reason for phrase in phrases)
