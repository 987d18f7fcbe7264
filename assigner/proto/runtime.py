"""The protocol's messages in protobuf's C runtime: the one descriptor pool of server and client.

The generated classes define the messages, but read and write them in Python: a request of 1 MiB would hold the event
loop for seconds. So both sides build and read long messages in C, and consumers all messages, for which they need not
import the generated classes. The pool is our own, so that a program that embeds us may have its own stubs of the same
protocol.
"""

from __future__ import annotations

from functools import cache
from pkgutil import get_data
from typing import Any, cast

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "kafka_assigner.v1"


def _read() -> tuple[FileDescriptorProto, ...]:
    # Not importlib.resources, which imports archivers and more: a consumer needs none of them.
    content = get_data("assigner.proto", "descriptors.binpb")
    assert content is not None, "whatever imported this module can read its package's files too"
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


def enum_number(enum: str, value: str) -> int:
    """The number that stands for an enum's value in messages of the C runtime; both named as in the .proto file."""
    return int(_pool.FindEnumTypeByName(f"{PACKAGE}.{enum}").values_by_name[value].number)
