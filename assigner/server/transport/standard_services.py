"""Provides gRPC's standard services: health, which reports whether this instance is ready, and reflection.

Reflection serves descriptors, so that command-line clients need no .proto file. They are in a pool of their own: in
the process-wide one they would clash with stubs that an embedding program, or a test, made from the same protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpclib._typing import ICheckable, IServable
from grpclib.health.check import CheckBase
from grpclib.health.service import Health
from grpclib.health.v1 import health_pb2
from grpclib.reflection.service import ServerReflection
from grpclib.reflection.v1 import reflection_pb2
from grpclib.reflection.v1alpha import reflection_pb2 as reflection_v1alpha_pb2

from assigner.proto.runtime import own_pool


class Readiness(CheckBase):
    """A health check that asks `ready` each time; `refresh` notifies watchers if the result has changed."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._last: bool | None = None
        self._watchers: set[asyncio.Event] = set()

    def refresh(self) -> None:
        now = self._ready()
        if now != self._last:
            self._last = now
            for watcher in self._watchers:
                watcher.set()

    def __status__(self) -> bool:
        return self._ready()

    async def __check__(self) -> bool:
        return self._ready()

    async def __subscribe__(self) -> asyncio.Event:
        watcher = asyncio.Event()
        self._watchers.add(watcher)
        return watcher

    async def __unsubscribe__(self, event: asyncio.Event) -> None:
        self._watchers.discard(event)


def health_service(readiness: Readiness, services: list[ICheckable]) -> Health:
    """Make the health service, with an entry for each service and, under the empty name, one for the whole server."""
    return Health({service: [readiness] for service in services})


def with_reflection(services: list[IServable]) -> list[IServable]:
    """Add reflection to the services."""
    return list(ServerReflection.extend(services, pool=_pool()))


def _pool() -> DescriptorPool:
    pool = own_pool()
    for module in (health_pb2, reflection_pb2, reflection_v1alpha_pb2):
        pool.Add(FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    return pool
