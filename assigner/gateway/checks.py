"""Walks through a request by its schema before kio decodes it, and finds what would harm the process.

kio reserves memory for as many elements as an array claims to have, and the process is aborted if there is not so much
(kio 0.6.5). It refuses tagged fields that it does not know, which the protocol tells every reader to skip. So each
length is compared with what is there, elements are counted, and tagged fields are cut out.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

Schema = Any
"""One of kio's classes of entities."""

MOST_ELEMENTS = 50_000
"""Elements of all arrays of a request together, but for arrays of numbers."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
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
