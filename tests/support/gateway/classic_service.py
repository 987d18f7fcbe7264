"""Two services that may lead and a gateway that leads nothing, on a thread of the test: clients connect by sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from assigner.backends.memory import MemoryBackend, MemoryState
from assigner.clock import SystemClock
from assigner.gateway.process import Gateway
from assigner.gateway.settings import GatewaySettings
from assigner.instance import Instance
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, InstanceSection, KafkaSection, Settings

_START_WITHIN = 60.0


class ClassicServices:
    """What the test may do with them, from its own thread."""

    def __init__(self, upstream: str, initial_delay: float) -> None:
        clock = SystemClock()
        self._backend = MemoryBackend.shared(MemoryState(clock))
        self._upstream = upstream
        self._gateway_settings = GatewaySettings(
            port=0, upstream=upstream, initial_rebalance_delay=initial_delay, min_session_timeout=1.0
        )
        self._services: dict[str, Service] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.started: Future[int] = Future()
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def _settings(self, name: str) -> Settings:
        return Settings(
            instance=InstanceSection(name=name),
            grpc=ServerSettings(port=0),
            http=HttpSettings(port=0),
            kafka=KafkaSection(bootstrap_servers=self._upstream),
            gateway=self._gateway_settings,
            leader_ttl=5.0,
        )

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in ("s1", "s2"):
            await self._start(name)
        settings = self._settings("gateway")
        async with Instance(settings, backend=self._backend) as instance:
            gateway = Gateway(self._gateway_settings, instance, ttl=30.0, strategy="sticky_balanced")
            async with gateway.serving():
                await gateway.server.until_ready()
                self.started.set_result(gateway.port)
                await self._over.wait()
                await gateway.drain(5)
        for name in list(self._services):
            await self._stop(name)

    async def _start(self, name: str) -> None:
        ready = asyncio.Event()
        self._running[name] = asyncio.create_task(self._serve(name, ready))
        await ready.wait()

    async def _serve(self, name: str, ready: asyncio.Event) -> None:
        async with Service(self._settings(name), backend=self._backend) as service:
            await service.wait_ready()
            self._services[name] = service
            ready.set()
            await service.run_until_stopped()

    async def _stop(self, name: str) -> None:
        self._services.pop(name).stop()
        await self._running.pop(name)

    # --- for the test ----------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Where Kafka clients connect."""
        return f"127.0.0.1:{self.started.result(_START_WITHIN)}"

    def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        assert self._loop is not None

        async def run() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_START_WITHIN)

    def leader(self, group: str) -> str:
        """The service that leads a group; empty: none."""
        leads = [name for name, one in self._services.items() if one.instance.kafka_groups.leads("", group)]
        return next(iter(leads), "")

    def stop_leader(self, group: str) -> str:
        """Stop the service that leads a group, as on SIGTERM, and return its name."""
        name = self.leader(group)
        self.call(lambda: self._stop(name))
        return name

    def start(self, name: str) -> None:
        self.call(lambda: self._start(name))

    def describe(self, group: str) -> Any:
        service = self._services[self.leader(group)]
        return self.call(lambda: service.instance.kafka_groups.describe("", group))

    def set_options(self, group: str, options: dict[str, Any]) -> None:
        """As an operator does."""
        service = next(iter(self._services.values()))
        self.call(lambda: service.instance.operations.set_options(group, options))

    def end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)


@contextmanager
def classic_services(upstream: str, *, initial_delay: float = 0.5) -> Iterator[ClassicServices]:
    services = ClassicServices(upstream, initial_delay)

    def run() -> None:
        try:
            asyncio.run(services.run())
        except BaseException as error:
            if not services.started.done():
                services.started.set_exception(error)
            raise

    thread = threading.Thread(target=run, name="classic services")
    thread.start()
    try:
        assert services.bootstrap
        yield services
    finally:
        services.end()
        thread.join(_START_WITHIN)
