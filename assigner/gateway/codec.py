"""Decodes requests to kio's entities and encodes answers, and keeps what clients send from harming the process.

kio's parser is fast, but it trusts its input. So only what passed `checks` is given to it; the heartbeat that nearly
every request is goes past both.

Answers of brokers are decoded without that walk: whoever can forge them is trusted with every record anyway.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import struct
import sys
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta, i64Timedelta

from assigner.gateway.checks import Malformed, checked
from assigner.gateway.checks import Schema as Schema  # also for whoever uses kio's classes
from assigner.gateway.requests import Answer, Entity

API_VERSIONS = 18
CONSUMER_GROUP_HEARTBEAT = 68

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_FRAME = struct.Struct(">ii")
_HEARTBEAT_AFTER_MEMBER = struct.Struct(">iibb")
_ONE_ERROR = struct.Struct(">ih")


# --- entities ----------------------------------------------------------------------------------------------------


@cache
def request_class(api: int, version: int) -> Schema:
    return load_request_schema(api, version)


@cache
def response_class(api: int, version: int) -> Schema:
    return load_response_schema(api, version)


@cache
def nested(entity: Schema, name: str) -> Schema:
    """Return the class of that name which belongs to the entity's version: `nested(response, "Assignment")`."""
    return getattr(sys.modules[entity.__module__], name)


def make(entity: Schema, **fields: Any) -> Any:
    """Make an entity, without those of the fields that its version does not have."""
    known = _field_names(entity)
    return entity(**{name: value for name, value in fields.items() if name in known})


@cache
def _field_names(entity: Schema) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(entity))


@cache
def error_code(code: int) -> ErrorCode:
    """Return kio's member for Kafka's error code."""
    return ErrorCode(code)


def milliseconds(count: int) -> i32Timedelta:
    """Return kio's value for a time of 32 bits."""
    return i32Timedelta.parse(dt.timedelta(milliseconds=count))


def milliseconds64(count: int) -> i64Timedelta:
    return i64Timedelta.parse(dt.timedelta(milliseconds=count))


NO_TIME = milliseconds(0)


# --- decoding ----------------------------------------------------------------------------------------------------


def decode_request(api: int, version: int, body: bytes) -> Entity:
    """Decode a request's body, which begins after the header. Raises `Malformed`."""
    if api == CONSUMER_GROUP_HEARTBEAT and (found := _partial_heartbeat(version, body)) is not None:
        return found
    schema = request_class(api, version)
    try:
        entity, _ = entity_reader(schema)(checked(schema, body), 0)
    except Malformed:
        raise
    except Exception as error:
        # kio raises errors of many kinds.
        raise Malformed(f"{schema.__name__} v{version}: {type(error).__name__}: {error}") from error
    return entity


def decode_response(api: int, version: int, body: bytes) -> Entity:
    """Decode a broker's answer, which begins after the header. Raises `Malformed`."""
    schema = response_class(api, version)
    try:
        entity, _ = entity_reader(schema)(body, 0)
    except Exception as error:
        raise Malformed(f"{schema.__name__} v{version}: {type(error).__name__}: {error}") from error
    return entity


_PARTIAL_TAILS = {
    0: b"\0\0\xff\xff\xff\xff\0\0\0\0",
    1: b"\0\0\xff\xff\xff\xff\0\0\0\0\0",
}
"""Instance, rack, rebalance timeout, names, (regex,) assignor, partitions: unchanged; no tagged fields."""


def _partial_heartbeat(version: int, body: bytes) -> Entity | None:
    """Decode the heartbeat of a member with nothing to say, which is nearly every one, without the walk and kio."""
    tail = _PARTIAL_TAILS[version]
    end = len(body) - len(tail) - 4
    if end < 2 or not body.endswith(tail):
        return None
    # Lengths from 127 on take two bytes: that is left to kio.
    group_end = body[0]
    if not 0 < group_end < 0x80 or group_end >= end:
        return None
    member = body[group_end]
    if not 0 < member < 0x80 or group_end + member != end:
        return None
    try:
        return request_class(CONSUMER_GROUP_HEARTBEAT, version)(
            group_id=body[1:group_end].decode(),
            member_id=body[group_end + 1 : end].decode(),
            member_epoch=_INT32.unpack_from(body, end)[0],
            topic_partitions=None,
        )
    except UnicodeDecodeError as error:
        raise Malformed("ConsumerGroupHeartbeatRequest: a name is not UTF-8") from error


# --- encoding ------------------------------------------------------------------------------------------------------


def encode_answer(api: int, version: int, correlation: int, answer: Answer) -> bytes:
    """Encode an answer with its length and its header, ready to be sent."""
    body = answer if isinstance(answer, bytes) else encode(answer)
    if has_tagged_header(api, version):
        body = b"\0" + body
    return _FRAME.pack(len(body) + 4, correlation) + body


def encode(entity: Entity) -> bytes:
    """Encode the entity without a header."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@cache
def has_tagged_header(api: int, version: int) -> bool:
    """Whether answers have a header with tagged fields. That of ApiVersions never has, so that everybody reads it."""
    return api != API_VERSIONS and bool(response_class(api, version).__flexible__)


def heartbeat_answer(version: int, code: int) -> bytes:
    """Encode the body of an answer to a classic Heartbeat by hand."""
    if version == 0:
        return _INT16.pack(code)
    return _ONE_ERROR.pack(0, code) + (b"\0" if version >= 4 else b"")


def consumer_heartbeat_answer(member_id: str, member_epoch: int, interval: int) -> bytes:
    """Encode the body of an answer to a ConsumerGroupHeartbeat that has no news, by hand. `interval`: milliseconds."""
    member = member_id.encode()
    if len(member) > 126:
        kind = response_class(CONSUMER_GROUP_HEARTBEAT, 1)
        return encode(
            kind(
                throttle_time=NO_TIME,
                error_code=error_code(0),
                member_id=member_id,
                member_epoch=member_epoch,
                heartbeat_interval=milliseconds(interval),
            )
        )
    after = _HEARTBEAT_AFTER_MEMBER.pack(member_epoch, interval, -1, 0)
    return b"".join((b"\0\0\0\0\0\0\0", (len(member) + 1).to_bytes(1, "big"), member, after))
