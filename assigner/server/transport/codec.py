"""The server's grpclib codec: parses requests with bounded lists, and passes encoded replies through.

A request is parsed by protobuf's C runtime, the length of its lists is checked, and only then it becomes a generated
message: the generated classes would parse in Python, and a request of 1 MiB would hold the event loop for seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import betterproto2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from grpclib.encoding.base import CodecBase

from assigner.errors import InvalidInput, LimitReached
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import PACKAGE, message_class


class ReadyBytesCodec(CodecBase):
    """Encodes and parses the messages of our services and of the health and reflection services."""

    __content_subtype__ = "proto"

    def __init__(self, max_elements: int, on_too_many: Callable[[], None] = lambda: None) -> None:
        self._max_elements = max_elements
        self._on_too_many = on_too_many

    def encode(self, message: Any, message_type: Any) -> bytes:
        if isinstance(message, bytes):
            return message
        if not isinstance(message, message_type):
            raise TypeError(f"expected {message_type.__name__} or bytes, got {type(message).__name__}")
        return bytes(message.SerializeToString())

    def decode(self, data: bytes, message_type: Any) -> Any:
        if issubclass(message_type, betterproto2.Message):
            return self._parse(data, message_type)
        try:
            return message_type.FromString(data)
        except DecodeError:
            raise InvalidInput(f"the request is not a valid {message_type.__name__} message") from None

    def _parse(self, data: bytes, message_type: type[betterproto2.Message]) -> betterproto2.Message:
        try:
            return _parse(data, message_type, self._max_elements)
        except LimitReached:
            self._on_too_many()
            raise


def _parse(data: bytes, kind: type[betterproto2.Message], max_elements: int) -> betterproto2.Message:
    """Parse a request. Raises `InvalidInput` if it is malformed, `LimitReached` if a list in it is too long."""
    try:
        parsed = message_class(kind.__name__).FromString(data)
    except DecodeError:
        raise InvalidInput(f"the request is not a valid {PACKAGE}.{kind.__name__} message") from None
    return _generated(parsed, kind, max_elements)


def _generated(source: Message, kind: type[betterproto2.Message], max_elements: int) -> betterproto2.Message:
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
