"""Decodes requests to kio's entities and encodes answers, and keeps what clients send from harming the process.

kio's parser is fast, but it trusts its input: it reserves memory for as many elements as an array claims to have, and
the process is aborted if there is not so much (kio 0.6.5). It also refuses tagged fields that it does not know, which
the protocol tells every reader to skip. So each request is walked through by its schema first: every length is compared
with what is there, elements are counted, and tagged fields are cut out. Only what passed is given to kio.

Answers of brokers are decoded without that walk: whoever can forge them is trusted with every record anyway.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import struct
import sys
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta, i64Timedelta

from assigner.gateway.requests import Answer, Entity

MOST_ELEMENTS = 50_000
"""Elements of all arrays of a request together, but for arrays of numbers."""
API_VERSIONS = 18
CONSUMER_GROUP_HEARTBEAT = 68

Schema = Any
"""One of kio's classes of entities."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_FRAME = struct.Struct(">ii")
_HEARTBEAT_AFTER_MEMBER = struct.Struct(">iibb")
_ONE_ERROR = struct.Struct(">ih")
_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


class Malformed(Exception):
    """The bytes are not a request of that API and version."""


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


def checked(schema: Schema, body: bytes) -> bytes:
    """Return the request's body without tagged fields that its schema does not have. Raises `Malformed` if a length in
    it is more than there is, or an array has too many elements."""
    walk = _Walk(body)
    try:
        at = _entity(schema).step(walk, 0)
    except (IndexError, struct.error) as error:
        raise Malformed(f"{schema.__name__}: it ends too early") from error
    if at > len(body):
        raise Malformed(f"{schema.__name__}: it ends too early")
    return walk.rest(at)


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


# --- the walk through a request ------------------------------------------------------------------------------------


class _Walk:
    """One pass over a request's body."""

    __slots__ = ("body", "cuts", "left")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.left = MOST_ELEMENTS
        self.cuts: list[tuple[int, int]] = []
        """Sections of tagged fields that are replaced by empty ones."""

    def rest(self, end: int) -> bytes:
        if not self.cuts:
            return self.body
        parts, at = [], 0
        for first, after in self.cuts:
            parts += [self.body[at:first], b"\0"]
            at = after
        return b"".join((*parts, self.body[at:end]))


_Step = Callable[[_Walk, int], int]
"""Returns where the next field begins."""


class _Shape:
    """How to walk over a value, and how many bytes it has at least."""

    __slots__ = ("least", "step")

    def __init__(self, step: _Step, least: int) -> None:
        self.step = step
        self.least = least


@cache
def _entity(schema: Schema) -> _Shape:
    flexible: bool = schema.__flexible__
    fields = dataclasses.fields(schema)
    steps: list[_Step] = []
    fixed = least = 0
    for field in fields:
        if "tag" in field.metadata:
            continue
        shape = _field(field, flexible)
        least += shape.least
        if shape.step is _fixed:
            fixed += shape.least
            continue
        if fixed:
            steps.append(_skip(fixed))
            fixed = 0
        steps.append(shape.step)
    if fixed:
        steps.append(_skip(fixed))
    if flexible:
        steps.append(_tags(any("tag" in field.metadata for field in fields)))
        least += 1
    return _Shape(_all(tuple(steps)), least)


def _field(field: dataclasses.Field[Any], flexible: bool) -> _Shape:
    kind: Any = field.type
    nullable = get_origin(kind) in (UnionType, Union) and NoneType in get_args(kind)
    if nullable:
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        element = _entity(inner) if _is_entity(inner) else _value(field, flexible, nullable=False)
        return _Shape(_array(element, flexible, nullable), 1 if flexible else 4)
    if _is_entity(kind):
        return _Shape(_nullable(_entity(kind)), 1) if nullable else _entity(kind)
    return _value(field, flexible, nullable=nullable)


def _is_entity(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _value(field: dataclasses.Field[Any], flexible: bool, *, nullable: bool) -> _Shape:
    kind = field.metadata["kafka_type"]
    if kind in _SIZES:
        return _Shape(_fixed, _SIZES[kind])
    if flexible:
        return _Shape(_compact(nullable), 1)
    return _Shape(_text(nullable), 2) if kind == "string" else _Shape(_bytes(nullable), 4)


def _fixed(walk: _Walk, at: int) -> int:
    """Stands for values of a fixed size, which are skipped together."""
    raise AssertionError("fixed sizes are added up by whoever has them")


def _skip(size: int) -> _Step:
    return lambda _, at: at + size


def _all(steps: tuple[_Step, ...]) -> _Step:
    def step(walk: _Walk, at: int) -> int:
        for one in steps:
            at = one(walk, at)
        return at

    return step


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return the number at that place, and where the next field begins."""
    value = body[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        more = body[at]
        at += 1
        value |= (more & 0x7F) << shift
        if more < 0x80:
            return value, at
    raise Malformed("a number has too many bytes")


def _after(size: int, null: int, nullable: bool, walk: _Walk, at: int) -> int:
    if size <= null:
        if size < null or not nullable:
            raise Malformed("a text or an array is null or has a negative length")
        return at
    if size > len(walk.body) - at:
        raise Malformed("a text is longer than the request")
    return at + size


def _compact(nullable: bool) -> _Step:
    def step(walk: _Walk, at: int) -> int:
        size, at = read_varint(walk.body, at)
        return _after(size - 1, -1, nullable, walk, at)

    return step


def _text(nullable: bool) -> _Step:
    return lambda walk, at: _after(_INT16.unpack_from(walk.body, at)[0], -1, nullable, walk, at + 2)


def _bytes(nullable: bool) -> _Step:
    return lambda walk, at: _after(_INT32.unpack_from(walk.body, at)[0], -1, nullable, walk, at + 4)


def _array(element: _Shape, flexible: bool, nullable: bool) -> _Step:
    least = max(1, element.least)

    def step(walk: _Walk, at: int) -> int:
        if flexible:
            count, at = read_varint(walk.body, at)
            count -= 1
        else:
            count = _INT32.unpack_from(walk.body, at)[0]
            at += 4
        _after(count, -1, nullable, walk, at)
        if count * least > len(walk.body) - at:
            raise Malformed("an array is longer than the request")
        if element.step is _fixed:
            return at + max(0, count) * element.least
        walk.left -= max(0, count)
        if walk.left < 0:
            raise Malformed(f"it has more than {MOST_ELEMENTS} elements")
        for _ in range(count):
            at = element.step(walk, at)
        return at

    return step


def _nullable(entity: _Shape) -> _Step:
    def step(walk: _Walk, at: int) -> int:
        return at + 1 if walk.body[at] >= 0x80 else entity.step(walk, at + 1)

    return step


def _tags(has_known: bool) -> _Step:
    """Walk over tagged fields. They are cut out, unless the schema has some: then kio decides."""

    def step(walk: _Walk, at: int) -> int:
        first = at
        count, at = read_varint(walk.body, at)
        if not count:
            return at
        walk.left -= count
        if walk.left < 0:
            raise Malformed(f"it has more than {MOST_ELEMENTS} elements")
        for _ in range(count):
            _, at = read_varint(walk.body, at)
            size, at = read_varint(walk.body, at)
            at = _after(size, -1, False, walk, at)
        if not has_known:
            walk.cuts.append((first, at))
        return at

    return step


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
