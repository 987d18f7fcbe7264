"""How grpclib gets bytes from messages and back: ready bytes pass as they are."""

from __future__ import annotations

from typing import Any

import betterproto2
from google.protobuf.message import DecodeError
from grpclib.encoding.base import CodecBase

from assigner.errors import InvalidInput
from assigner.server.messages import parse


class ReadyBytesCodec(CodecBase):
    """For our own messages and for those of the health and reflection services."""

    __content_subtype__ = "proto"

    def __init__(self, max_elements: int) -> None:
        self._max_elements = max_elements

    def encode(self, message: Any, message_type: Any) -> bytes:
        if isinstance(message, bytes):
            return message
        if not isinstance(message, message_type):
            raise TypeError(f"expected {message_type.__name__} or bytes, got {type(message).__name__}")
        return bytes(message.SerializeToString())

    def decode(self, data: bytes, message_type: Any) -> Any:
        if issubclass(message_type, betterproto2.Message):
            return parse(data, message_type, self._max_elements)
        try:
            return message_type.FromString(data)
        except DecodeError:
            raise InvalidInput(f"the request is not a valid {message_type.__name__} message") from None
