"""How grpclib gets bytes from messages and back: ready bytes pass as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import betterproto2
from google.protobuf.message import DecodeError
from grpclib.encoding.base import CodecBase

from assigner.errors import InvalidInput, LimitReached
from assigner.proto.runtime import parse


class ReadyBytesCodec(CodecBase):
    """For our own messages and for those of the health and reflection services."""

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
            return parse(data, message_type, self._max_elements)
        except LimitReached:
            self._on_too_many()
            raise
