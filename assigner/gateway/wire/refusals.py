"""Makes the answer to a request that is not passed on because its client may not make it.

A client that is cut off connects again and asks again, for minutes; one that is told gives up at once. Answers of Kafka
have one error for all, or one for each thing that was asked for: a topic, a partition, a resource. Which it is follows
from kio's schemas, so there is nothing here about single APIs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from assigner.gateway.codec import NO_TIME, Schema, error_code, milliseconds64, response_class
from assigner.gateway.requests import Entity
from assigner.gateway.wire.versions import CHANGES, WRITES

TOPIC_AUTHORIZATION_FAILED = 29
CLUSTER_AUTHORIZATION_FAILED = 31
_PRODUCE = 0
_NAMES = ("name", "topic_name", "topic", "user")
"""What answers call that which requests call by its name."""
_EMPTY: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "float64": 0.0,
    "uuid": UUID(int=0),
    "error_code": error_code(0),
    "timedelta_i32": NO_TIME,
    "timedelta_i64": milliseconds64(0),
}


def refusal(api: int, version: int, request: Entity) -> Entity | None:
    """Return the answer that says that the client may not do this; None: there is none, so the connection is closed."""
    if api not in WRITES | CHANGES:
        return None
    code = TOPIC_AUTHORIZATION_FAILED if api == _PRODUCE else CLUSTER_AUTHORIZATION_FAILED
    return _refused(response_class(api, version), request, code)


def _refused(schema: Schema, request: Any, code: int) -> Any:
    """Make an answer, or a part of one, with the error where the schema has a place for it: there, or in its parts."""
    values: dict[str, Any] = {}
    fields = dataclasses.fields(schema)
    has_place = any(_kind(field) == "error_code" for field in fields)
    for field in fields:
        part = _part(field)
        same = getattr(request, field.name, getattr(request, "name", None) if field.name in _NAMES else None)
        if _kind(field) == "error_code":
            values[field.name] = error_code(code)
        elif part is not None and (not has_place or isinstance(same, tuple)):
            wanted = same if isinstance(same, tuple) and same else _asked_for(request)
            values[field.name] = tuple(_refused(part, one, code) for one in wanted)
            # What was asked for is in the first array; others stay empty.
            has_place = True
        elif part is None and same is not None and not isinstance(same, tuple):
            values[field.name] = same
        elif isinstance(request, str | int) and (field.name in _NAMES or field.name == "partition_index"):
            values[field.name] = request
        elif field.default is dataclasses.MISSING:
            values[field.name] = _empty(field)
    return schema(**values)


def _asked_for(request: Any) -> Iterator[Any]:
    """All things that a request, or a part of it, names: those of all its arrays."""
    if not dataclasses.is_dataclass(request):
        return
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if isinstance(value, tuple):
            yield from value


def _kind(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("kafka_type", ""))


def _inner(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    """The field's type without None, and whether it may be None."""
    kind: Any = field.type
    if get_origin(kind) in (UnionType, Union) and NoneType in get_args(kind):
        return next(one for one in get_args(kind) if one is not NoneType), True
    return kind, False


def _part(field: dataclasses.Field[Any]) -> Schema | None:
    """The schema of the elements of an array of entities."""
    kind, _ = _inner(field)
    if get_origin(kind) is not tuple:
        return None
    element = get_args(kind)[0]
    return element if dataclasses.is_dataclass(element) else None


def _empty(field: dataclasses.Field[Any]) -> Any:
    kind, nullable = _inner(field)
    if nullable:
        return None
    if get_origin(kind) is tuple:
        return ()
    if dataclasses.is_dataclass(kind):
        return _refused(kind, None, 0)
    # Numbers that mean "none" are negative in Kafka: offsets, epochs, node ids.
    return _EMPTY.get(_kind(field), -1)
