"""Makes entities of every API and version of Kafka's protocol, with values of a seeded random generator."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterator
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta, i64Timedelta

_INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16, "uint32": 32}


def versions_of(kind: EntityType) -> Iterator[tuple[int, int]]:
    """Every API key and version of which kio has a request or a response."""
    for api, name in api_key_map.items():
        for version, entities in sorted(schema_name_map[name].items()):
            if kind in entities:
                yield api, version


def make_entity(schema: type[Any], random: Random) -> Any:
    return schema(**{field.name: _value(field, field.type, random) for field in dataclasses.fields(schema)})


def _value(field: dataclasses.Field[Any], kind: Any, random: Random) -> Any:
    if get_origin(kind) in (UnionType, Union) and NoneType in get_args(kind):
        if "tag" not in field.metadata and random.random() < 0.3:
            return None
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple(_value(field, inner, random) for _ in range(random.randrange(3)))
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return make_entity(kind, random)
    return _primitive(field.metadata["kafka_type"], random)


def _primitive(kind: str, random: Random) -> Any:
    if kind in _INTEGERS:
        return random.randrange(2 ** _INTEGERS[kind])
    match kind:
        case "string":
            return "".join(random.choices("abcä/+", k=random.choice((0, 1, 5, 200))))
        case "bytes" | "records":
            return random.randbytes(random.choice((0, 3, 300)))
        case "bool":
            return random.random() < 0.5
        case "uuid":
            return uuid.UUID(int=random.randrange(1, 2**128))
        case "error_code":
            return random.choice(list(ErrorCode))
        case "timedelta_i32":
            return i32Timedelta.parse(dt.timedelta(milliseconds=random.randrange(-1, 10**6)))
        case "timedelta_i64":
            return i64Timedelta.parse(dt.timedelta(milliseconds=random.randrange(-1, 10**9)))
        case "datetime_i64":
            return dt.datetime.fromtimestamp(random.randrange(10**9), dt.UTC)
        case "float64":
            return random.random()
    raise AssertionError(f"no values for {kind}")
