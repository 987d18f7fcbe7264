"""Converts between our types and etcd's messages: keys, ranges, compares, operations, entries, events.

Keys are text for us and bytes for etcd. Bytes that are not UTF-8 (a foreign key under our root) survive a round trip,
so that they can be reported and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from assigner.backends.etcd import rpc
from assigner.errors import InvalidInput
from assigner.store import (
    Absent,
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    Entry,
    Event,
    Exists,
    Found,
    GetResult,
    Missing,
    ModRevisionIs,
    Operation,
    Put,
    PutEvent,
    ValueIs,
    VersionIs,
)

_EQUAL, _GREATER = rpc.Compare.EQUAL, rpc.Compare.GREATER
_DELETE = rpc.Event.DELETE
_EVERYTHING = b"\0"
"""As the end of a range: all keys from its start on."""


def to_key(key: str) -> bytes:
    if not key:
        raise InvalidInput("the key is empty; etcd stores only keys of one byte or more")
    return key.encode("utf-8", "surrogateescape")


def from_key(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys with `prefix`: its last byte below 0xff incremented, the rest dropped."""
    shortened = prefix.rstrip(b"\xff")
    if not shortened:
        return _EVERYTHING
    return shortened[:-1] + bytes([shortened[-1] + 1])


def prefix_range(prefix: str, after: str = "") -> tuple[bytes, bytes]:
    """(start, end) of the keys under `prefix` that come after the key `after`."""
    first = prefix.encode("utf-8", "surrogateescape")
    past = after.encode("utf-8", "surrogateescape") + b"\0" if after else b""
    return max(first, past) or b"\0", prefix_end(first)


def to_entry(item: Any) -> Entry:
    return Entry(from_key(item.key), item.value, item.create_revision, item.mod_revision, item.version, item.lease)


def to_get_result(revision: int, items: Any) -> GetResult:
    return Found(revision, to_entry(items[0])) if items else Missing(revision)


def to_event(event: Any) -> Event:
    item = event.kv
    if event.type == _DELETE:
        return DeleteEvent(from_key(item.key), item.mod_revision)
    return PutEvent(to_entry(item))


def to_events(events: Iterable[Any]) -> tuple[Event, ...]:
    return tuple([to_event(event) for event in events])


def to_compare(compare: Compare) -> Any:
    match compare:
        case Exists(key):
            return rpc.Compare(key=to_key(key), target=rpc.Compare.VERSION, result=_GREATER, version=0)
        case Absent(key):
            return rpc.Compare(key=to_key(key), target=rpc.Compare.VERSION, result=_EQUAL, version=0)
        case VersionIs(key, version):
            return rpc.Compare(key=to_key(key), target=rpc.Compare.VERSION, result=_EQUAL, version=version)
        case ModRevisionIs(key, revision):
            return rpc.Compare(key=to_key(key), target=rpc.Compare.MOD, result=_EQUAL, mod_revision=revision)
        case CreateRevisionIs(key, revision):
            return rpc.Compare(key=to_key(key), target=rpc.Compare.CREATE, result=_EQUAL, create_revision=revision)
        case ValueIs(key, value):
            return rpc.Compare(key=to_key(key), target=rpc.Compare.VALUE, result=_EQUAL, value=value)
        case _:
            assert_never(compare)


def to_operation(operation: Operation) -> Any:
    match operation:
        case Put(key, value, lease):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=to_key(key), value=value, lease=lease))
        case Delete(key):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=to_key(key)))
        case _:
            assert_never(operation)


def to_read(key: str) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=to_key(key)))
