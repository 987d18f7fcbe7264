"""How grpclib reads and writes messages in the client: long replies by protobuf's C runtime.

The generated classes take 30 us per command, which would hold the event loop for a third of a second when ten thousand
partitions move.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from grpclib.encoding.base import CodecBase

from assigner.errors import InvalidInput
from assigner.proto.kafka_assigner import v1
from assigner.proto.runtime import message_class

LONG = (v1.AssignmentCommand, v1.FetchOffsetsResponse)
"""Decoded to classes of the C runtime."""


class Codec(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message.SerializeToString())

    def decode(self, data: bytes, message_type: Any) -> Any:
        try:
            if message_type in LONG:
                return message_class(message_type.__name__).FromString(data)
            return message_type.parse(data)
        except (DecodeError, ValueError, EOFError) as error:
            raise InvalidInput(f"the service sent what is not a {message_type.__name__}: {error}") from None
