"""Translates the values of classic groups to messages of protobuf and back, for the server and for gateways.

A message has the fields of its value under the same names, so one rule does for all of them, led by the descriptors: a
field that may be null is absent where it is, and a pair is a message of two fields. The messages are those of
protobuf's C runtime, because an answer may hold hundreds of members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from assigner.errors import InvalidInput, LimitReached
from assigner.model import kafka_groups as values
from assigner.proto.runtime import message_class

V = TypeVar("V", bound=msgspec.Struct)

ORG = "kafka-org"
"""Metadata: the organization whose group a call is about."""
PRINCIPAL = "kafka-principal"
"""Metadata: the identity for which a gateway makes a call."""
SERVICE = "/kafka_assigner.v1.KafkaGroups/"


class GroupName(msgspec.Struct, frozen=True):
    """A request that names a group and no more."""

    group: str


class Listing(msgspec.Struct, frozen=True):
    """A request for all groups."""


class Outcome(msgspec.Struct, frozen=True):
    """An answer that is a code and no more."""

    error: values.KafkaError = values.KafkaError.NONE


class Method(msgspec.Struct, frozen=True):
    """A call: its messages, and the values that they stand for."""

    name: str
    request: str
    request_type: type[msgspec.Struct]
    answer: str
    answer_type: type[msgspec.Struct]

    @property
    def path(self) -> str:
        return SERVICE + self.name


JOIN = Method("JoinGroup", "ClassicJoinRequest", values.JoinRequest, "ClassicJoinAnswer", values.JoinAnswer)
SYNC = Method("SyncGroup", "ClassicSyncRequest", values.SyncRequest, "ClassicSyncAnswer", values.SyncAnswer)
HEARTBEAT = Method(
    "Heartbeat", "ClassicHeartbeatRequest", values.HeartbeatRequest, "ClassicHeartbeatAnswer", values.HeartbeatAnswer
)
LEAVE = Method("LeaveGroup", "ClassicLeaveRequest", values.LeaveRequest, "ClassicLeaveAnswer", values.LeaveAnswer)
COMMIT = Method(
    "OffsetCommit", "ClassicCommitRequest", values.ClassicCommit, "ClassicCommitAnswer", values.CommitAnswer
)
FETCH = Method("OffsetFetch", "ClassicFetchRequest", values.ClassicFetch, "ClassicFetchAnswer", values.FetchAnswer)
LIST = Method("ListGroups", "ClassicListRequest", Listing, "ClassicListAnswer", values.GroupListing)
DESCRIBE = Method(
    "DescribeGroups", "ClassicDescribeRequest", GroupName, "ClassicDescription", values.ClassicGroupDescription
)
DELETE = Method("DeleteGroups", "ClassicDeleteRequest", GroupName, "ClassicDeleteAnswer", Outcome)
DELETE_OFFSETS = Method(
    "OffsetDelete",
    "ClassicOffsetDeleteRequest",
    values.OffsetDeletion,
    "ClassicOffsetDeleteAnswer",
    values.OffsetDeletionAnswer,
)
METHODS = (JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, LIST, DESCRIBE, DELETE, DELETE_OFFSETS)
_PAIRS = frozenset({"ClassicProtocol", "ClassicAssignment", "ClassicPartition"})
"""Messages that are pairs in the values."""


# --- metadata ------------------------------------------------------------------------------------------------------


def carrier(org: str, principal: str) -> dict[str, str]:
    """The metadata of a call."""
    return {name: quote(text, safe="") for name, text in ((ORG, org), (PRINCIPAL, principal)) if text}


def carried(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """The organization and the principal that a call is made for."""
    return unquote(str(metadata.get(ORG, ""))), unquote(str(metadata.get(PRINCIPAL, "")))


# --- values to messages --------------------------------------------------------------------------------------------


def message_of(name: str, value: msgspec.Struct) -> Any:
    message = message_class(name)()
    _fill(message, value)
    return message


def encoded(name: str, value: msgspec.Struct) -> bytes:
    return bytes(message_of(name, value).SerializeToString())


def _fill(message: Any, value: msgspec.Struct) -> None:
    for name in value.__struct_fields__:
        content = getattr(value, name)
        if content is None:
            continue
        if isinstance(content, tuple):
            target = getattr(message, name)
            for element in content:
                _fill_element(target.add(), element)
        else:
            setattr(message, name, content)


def _fill_element(message: Any, element: Any) -> None:
    if isinstance(element, msgspec.Struct):
        _fill(message, element)
    else:
        for name, content in zip(_names(message.DESCRIPTOR), element, strict=True):
            setattr(message, name, content)


# --- messages to values --------------------------------------------------------------------------------------------


def parsed(name: str, kind: type[V], data: bytes, max_elements: int) -> V:
    """Parse a message. Raises `InvalidInput` if it is malformed, `LimitReached` if a list in it is too long."""
    try:
        message = message_class(name).FromString(data)
    except DecodeError:
        raise InvalidInput(f"this is not a valid {name} message") from None
    return value_of(message, kind, max_elements)


def value_of(message: Message, kind: type[V], max_elements: int) -> V:
    try:
        return msgspec.convert(_fields(message, max_elements), kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{message.DESCRIPTOR.name} has a field that can't be read: {error}") from None


def _fields(message: Message, max_elements: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        content = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = _elements(field, content, max_elements)
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = content
        else:
            found[field.name] = None
    return found


def _elements(field: FieldDescriptor, content: Sequence[Any], max_elements: int) -> list[Any]:
    if len(content) > max_elements:
        raise LimitReached(
            f"{field.name} has {len(content)} elements; at most {max_elements} fit in one call: make several calls"
        )
    if field.message_type.name in _PAIRS:
        names = _names(field.message_type)
        return [tuple(getattr(element, name) for name in names) for element in content]
    return [_fields(element, max_elements) for element in content]


@cache
def _names(descriptor: Any) -> tuple[str, ...]:
    return tuple(field.name for field in descriptor.fields)
