"""How grpclib gets messages from bytes here: the long ones by protobuf's C runtime.

The generated classes take 30 us per command, which would stop the loop for a third of a second when ten thousand
partitions move. The C runtime's classes come from the same descriptors, in a pool of their own, so that a program may
have its own stubs of the same protocol.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpclib.encoding.base import CodecBase

from assigner.errors import InvalidInput
from assigner.proto.kafka_assigner import v1

LONG = (v1.AssignmentCommand, v1.FetchOffsetsResponse)


@cache
def _pool() -> DescriptorPool:
    content = resources.files("assigner.proto").joinpath("descriptors.binpb").read_bytes()
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(content).file:
        pool.Add(file)
    return pool


@cache
def class_in_c(name: str) -> Any:
    """A message's class of the C runtime; typed loosely, because it exists only at run time."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"kafka_assigner.v1.{name}"))


def command_class() -> Any:
    return class_in_c("AssignmentCommand")


class Codec(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message.SerializeToString())

    def decode(self, data: bytes, message_type: Any) -> Any:
        try:
            if message_type in LONG:
                return class_in_c(message_type.__name__).FromString(data)
            return message_type.parse(data)
        except (DecodeError, ValueError, EOFError) as error:
            raise InvalidInput(f"the service sent what is not a {message_type.__name__}: {error}") from None
