"""Classifies failed requests: final error, no effect, stale token, or outcome unknown.

etcd uses one status code for many errors, so its messages are read as well. An error that is not recognised counts as
unknown: a write must never be retried on a guess.
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
    """The member has answered; a retry would fail in the same way."""

    error: AssignerError


class TokenStale(msgspec.Struct, frozen=True):
    """The token has expired, or there is none yet. The request had no effect: log in and retry."""

    reason: str


class NoEffect(msgspec.Struct, frozen=True):
    """The request had no effect. `member_failed`: this member can't serve, and another one should be used."""

    reason: str
    member_failed: bool


class Unknown(msgspec.Struct, frozen=True):
    """The answer was lost: the request may or may not have been applied."""

    reason: str
    member_failed: bool


class TooMuchToRead(msgspec.Struct, frozen=True):
    """The answer is larger than this client accepts."""

    reason: str


Failure = Final | TokenStale | NoEffect | Unknown | TooMuchToRead

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
# Sent before the request is proposed to the cluster, so it had no effect.
_UNUSABLE_MEMBER = ("no leader", "not capable", "not supported for learner", "unhealthy cluster")
_NEVER_SENT = (
    "failed to connect",
    "connections to all backends failing",
    "DNS resolution",
    "resolution failed",
    CHANNEL_CLOSED,
)
_BUSY = ("too many requests",)
# An election is in progress; the member itself is healthy.
_ELECTION = ("leader changed", "previous leader failure")


def classify(error: Any, *, answered_meanwhile: bool) -> Failure:
    """Classify a grpc error. `answered_meanwhile`: the connection has answered other requests since this one was
    sent."""
    code, reason = error.code(), str(error.details() or error.code().name)
    # grpc's own limit has a capital letter; etcd's message about what it received is in lower case.
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


def _by_code(code: Any, reason: str, answered_meanwhile: bool) -> Failure:
    if code is Code.UNIMPLEMENTED:
        return Final(StoreRefused(_NOT_ETCD.format(reason)))
    if code is Code.PERMISSION_DENIED:
        return Final(StoreRefused(_DENIED.format(reason)))
    if code is Code.INVALID_ARGUMENT or code is Code.OUT_OF_RANGE:
        return Final(InvalidInput(f"etcd refuses the request: {reason}"))
    if _has(reason, _BUSY):
        return NoEffect(reason, member_failed=False)
    if code is Code.UNAVAILABLE and _has(reason, _UNUSABLE_MEMBER + _NEVER_SENT):
        return NoEffect(reason, member_failed=True)
    if code is Code.DEADLINE_EXCEEDED:
        return Unknown("no answer in time", member_failed=not answered_meanwhile)
    return Unknown(f"{code.name}: {reason}", member_failed=not _has(reason, _ELECTION))


def _has(reason: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in reason for phrase in phrases)
