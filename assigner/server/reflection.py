"""Server reflection with descriptors, so that command-line clients need no .proto file.

The descriptors live in a pool of their own: the process-wide one would clash with stubs that an embedding program, or
a test, made from the same protocol.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpclib._typing import IServable
from grpclib.health.v1 import health_pb2
from grpclib.reflection.service import ServerReflection
from grpclib.reflection.v1 import reflection_pb2
from grpclib.reflection.v1alpha import reflection_pb2 as reflection_v1alpha_pb2

from assigner.server.messages import own_pool


def with_reflection(services: list[IServable]) -> list[IServable]:
    return list(ServerReflection.extend(services, pool=_pool()))


def _pool() -> DescriptorPool:
    pool = own_pool()
    for module in (health_pb2, reflection_pb2, reflection_v1alpha_pb2):
        pool.Add(FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    return pool
