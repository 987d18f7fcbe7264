"""The protocol's messages in protobuf's C runtime: the one descriptor pool of server and client.

The generated classes define the messages, but read and write them in Python: a request of 1 MiB would hold the event
loop for seconds. So the server parses requests in C, checks the length of their lists, and only then makes generated
messages of them; long messages are built and read in C on both sides. The pool is our own, so that a program that
embeds us may have its own stubs of the same protocol.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, TypeVar, cast

import betterproto2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from assigner.errors import InvalidInput, LimitReached
from assigner.proto.kafka_assigner import v1

PACKAGE = "kafka_assigner.v1"
_M = TypeVar("_M", bound=betterproto2.Message)


def _read() -> tuple[FileDescriptorProto, ...]:
    content = resources.files("assigner.proto").joinpath("descriptors.binpb").read_bytes()
    return tuple(FileDescriptorSet.FromString(content).file)


# Read on import: later there is a loop that must not wait for a disk.
DESCRIPTORS = _read()
"""Of our own .proto files."""


def own_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in DESCRIPTORS:
        pool.Add(file)
    return pool


_pool = own_pool()


@cache
def message_class(name: str) -> type[Any]:
    """The C runtime's class for one of our messages; typed loosely, because it exists only at run time."""
    return cast(type[Any], GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}")))


def parse(data: bytes, kind: type[_M], max_elements: int) -> _M:
    """A request. Raises `InvalidInput` for what is not one, `LimitReached` if a list in it is too long."""
    try:
        parsed = message_class(kind.__name__).FromString(data)
    except DecodeError:
        raise InvalidInput(f"the request is not a valid {PACKAGE}.{kind.__name__} message") from None
    return _generated(parsed, kind, max_elements)


def _generated(source: Message, kind: type[_M], max_elements: int) -> _M:
    values: dict[str, Any] = {}
    for field, value in source.ListFields():
        if field.is_repeated:
            values[field.name] = _elements(field, value, max_elements)
        else:
            values[field.name] = _value(field, value, max_elements)
    return kind(**values)


def _elements(field: FieldDescriptor, value: Any, max_elements: int) -> list[Any]:
    if len(value) > max_elements:
        raise LimitReached(
            f"{field.name} has {len(value)} elements; at most {max_elements} fit in one call: make several calls"
        )
    return [_value(field, element, max_elements) for element in value]


def _value(field: FieldDescriptor, value: Any, max_elements: int) -> Any:
    if field.message_type is None:
        return value
    return _generated(value, getattr(v1, field.message_type.name), max_elements)
