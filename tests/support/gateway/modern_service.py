"""A service with a gateway for Kafka 4's members, on a thread of the test: clients connect to it over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import msgspec

from assigner.core.group import GroupState
from assigner.embedded import EmbeddedAssigner
from assigner.gateway.groups import SharedCalls
from assigner.gateway.modern.handlers import ModernGroups
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.server import GatewayServer
from assigner.gateway.settings import GatewaySettings
from assigner.gateway.topics import KafkaTopics
from assigner.model.records import GroupOptions, HandoffMode
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, KafkaSection, Settings
from assigner.storage.kinds import ASSIGNER


class ModernService(msgspec.Struct, frozen=True):
    assigner: EmbeddedAssigner
    bootstrap: str
    """Where Kafka clients connect."""


@contextmanager
def modern_service(upstream: str, *, ttl: float, interval: float = 0.0) -> Iterator[ModernService]:
    """Serve exclusive groups in front of the brokers at `upstream`."""
    settings = Settings(
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        kafka=KafkaSection(bootstrap_servers=upstream),
        consumer_ttl=ttl,
        group=GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE, debounce=0.2),
    )
    gateway = GatewaySettings(port=0, upstream=upstream, heartbeat_interval=interval)
    with EmbeddedAssigner(settings) as assigner:
        loop = assigner.call(_loop)
        started: Future[int] = Future()
        over = assigner.call(_event)
        serving = asyncio.run_coroutine_threadsafe(_serve(assigner.service, gateway, started, over), loop)
        try:
            yield ModernService(assigner, f"127.0.0.1:{started.result(30)}")
        finally:
            loop.call_soon_threadsafe(over.set)
            serving.result(30)


async def _loop(_: Service) -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def _event(_: Service) -> asyncio.Event:
    return asyncio.Event()


async def _serve(service: Service, settings: GatewaySettings, started: Future[int], over: asyncio.Event) -> None:
    instance = service.instance
    server = GatewayServer(settings, clock=instance.clock, supervisor=instance.supervisor)
    topics = KafkaTopics(instance.clock, server.list_topics)
    parts = InstanceParts.of(
        instance,
        settings,
        topics,
        ttl=service.settings.consumer_ttl,
        strategy=service.settings.group.strategy,
        fetchers=server.fetchers,
    )
    groups = ModernGroups(parts)

    async def kind_of(group: str) -> str:
        return instance.directory.mirrored_kind(group) or await instance.directory.kind(group)

    def state_of(group: str) -> GroupState | None:
        mirror = instance.mirrors.get(group)
        return mirror.state if mirror else None

    shared = SharedCalls({ASSIGNER: groups}, groups, kind_of, topics, state_of)
    async with groups.running(), server.serving({**shared.handlers(), **groups.handlers()}):
        await server.until_ready()
        started.set_result(server.port)
        await over.wait()
        await server.drain(5)
