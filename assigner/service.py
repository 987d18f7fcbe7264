"""Runs an instance with gRPC for consumers and operators, HTTP for probes and metrics, and a gateway for Kafka clients
where one is wanted, on one event loop; or a gateway in a process of its own.

At the start probes are answered first, then consumers are served, then groups are led. Shutdown is in reverse: the
instance resigns from its groups, streams end with a status, then everything is closed.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import msgspec

from assigner.aio.shutdown import background, shielded
from assigner.backend import Backend
from assigner.clock import Clock
from assigner.errors import AssignerError, InvalidInput, how_to_install
from assigner.instance import Instance
from assigner.kafka_groups.spans import TracedClassicGroups
from assigner.leader.leadership import LeadershipSettings
from assigner.logs import get_logger
from assigner.observability.identity_metrics import IdentityFiles, IdentitySnapshot
from assigner.observability.metrics import GroupSnapshot
from assigner.server import GrpcServer, ServerSettings
from assigner.server.access import Access, access_by, is_required
from assigner.settings import Settings
from assigner.web import ProcessLiveness, WebServer

_CLOSE_WITHIN = 10.0
_IN_ONE_PROCESS = "memory"

if TYPE_CHECKING:
    from assigner.gateway.process import Gateway

log = get_logger("assigner.service")


class Process:
    """An instance with HTTP for probes and metrics, and an orderly end. Its subclasses say what it serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        backend: Backend | None = None,
        leadership: LeadershipSettings | None = None,
    ) -> None:
        self.settings = settings
        self.instance = Instance(settings, clock=clock, backend=backend, leadership=leadership)
        self.liveness = ProcessLiveness(self.instance.clock, stall=settings.http.stall, failures=self.instance.failures)
        self._stop = anyio.Event()
        self._stack = AsyncExitStack()
        self._failure: AssignerError | None = None
        self._drained = False
        self.gateway: Gateway | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._answer_probes(stack)
            await stack.enter_async_context(self.instance)
            await self._serve(stack)
            tasks = await stack.enter_async_context(background())
            tasks.start_soon(self._run_instance, name="leading")
            self._stack = stack.pop_all()
        return self

    async def _answer_probes(self, stack: AsyncExitStack) -> None:
        instance = self.instance
        self.web = WebServer(
            self.settings.http,
            self._problems,
            self.liveness,
            instance.metrics,
            instance.clock,
            warnings=self._warnings,
        )
        await self.web.start()
        stack.push_async_callback(shielded, self.web.close, _CLOSE_WITHIN)

    async def _serve(self, stack: AsyncExitStack) -> None:
        """Start to serve what this process is for, and push its end on the stack."""
        raise NotImplementedError

    async def _work(self) -> None:
        """Do the instance's part until it is drained. Raises the error that ends the process."""
        raise NotImplementedError

    async def _end_service(self) -> None:
        """End what `_serve` started in order: whoever is served goes elsewhere."""
        raise NotImplementedError

    async def _serve_kafka(self, stack: AsyncExitStack, access: Access) -> None:
        """Start the gateway for Kafka clients. `access`: knows by what they may show who they are."""
        settings = self.settings.gateway_in_force()
        self.gateway = gateway = _gateway_class()(
            settings,
            self.instance,
            ttl=self.settings.consumer_ttl,
            strategy=self.settings.group.strategy,
            authenticator=access.authenticator,
            identity_required=is_required(self.settings.auth, self._at_gateway()),
        )
        await stack.enter_async_context(gateway.serving())
        self.instance.metrics.gateway = gateway.snapshot
        if problems := gateway.problems():
            log.info("gateway_waits_for_kafka", upstream=settings.upstream, reason=problems[0])

    def _at_gateway(self) -> ServerSettings:
        """Whoever can reach the gateway's port has to show an identity under the same rule as at that of gRPC."""
        return msgspec.structs.replace(self.settings.grpc, host=self.settings.gateway.host)

    def _problems(self) -> list[str]:
        return self.instance.problems()

    def _warnings(self) -> list[str]:
        return self.instance.warnings()

    async def _run_instance(self) -> None:
        with self.liveness.essential("leadership"):
            try:
                await self._work()
            except AssignerError as error:
                # Another process took this instance's name, or the store lost its data: it can't go on, and serving
                # would only confuse.
                log.error("service_failed", error=str(error))
                self._failure = error
                self.stop()

    async def wait_ready(self) -> None:
        await self.instance.wait_ready()

    def stop(self) -> None:
        """Make `run_until_stopped` shut the service down and return."""
        self._stop.set()

    async def run_until_stopped(self) -> None:
        """Serve until `stop` is called, then drain. Raises an error that ended the service."""
        await self._stop.wait()
        await self.drain()
        if self._failure:
            raise self._failure

    async def drain(self) -> None:
        """Resign from the groups, then end the streams."""
        if self._drained:
            return
        self._drained = True
        await self.instance.stop_leading()
        await self._end_service()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await shielded(self.drain, 2 * self.settings.shutdown_timeout)
        await self._stack.aclose()
        log.info("service_stopped", instance=self.instance.name)


class Service(Process):
    """The whole service: `async with Service(settings) as service: await service.run_until_stopped()`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        backend: Backend | None = None,
        leadership: LeadershipSettings | None = None,
    ) -> None:
        super().__init__(settings, clock=clock, backend=backend, leadership=leadership)
        self._refused: dict[str, int] = {}

    async def _serve(self, stack: AsyncExitStack) -> None:
        instance = self.instance
        self.server = GrpcServer(
            _pinging_in_time(self.settings),
            instance.members,
            instance.operations,
            instance.offsets,
            instance.routers,
            default_group=self.settings.default_group,
            clock=instance.clock,
            ready=lambda: not instance.problems(),
            check_group=instance.keys.check_group,
            incarnation=instance.incarnation.id,
            supervisor=instance.supervisor,
            auth=self.settings.auth,
            kafka_groups=TracedClassicGroups(instance.kafka_groups),
        )
        await self.server.start()
        stack.push_async_callback(shielded, self.server.close, _CLOSE_WITHIN)
        instance.metrics.snapshots = self._snapshots
        instance.metrics.identity = self._identity
        if self.settings.gateway.enabled:
            await self._serve_kafka(stack, self.server.access)

    def _snapshots(self) -> list[GroupSnapshot]:
        """Take the snapshots of a scrape: the groups, and what the server counted since the last one."""
        served = self.server.statistics()
        self.instance.metrics.connections(served.connections)
        for reason, count in served.refused.items():
            self.instance.metrics.refused(reason, count - self._refused.get(reason, 0))
        self._refused = dict(served.refused)
        return self.instance.snapshots()

    def _identity(self) -> IdentitySnapshot:
        access = self.server.access
        if access.authenticator is None:
            return IdentitySnapshot(denied=dict(access.denials))
        found = access.authenticator.statistics()
        states = {"keys": found.keys, "certificates": found.certificates}
        tokens = found.tokens
        return IdentitySnapshot(
            denied=dict(access.denials),
            files={
                what: IdentityFiles(state.age, state.reloads, state.failures) for what, state in states.items() if state
            },
            tokens={"verified": tokens.verified, "forged": tokens.forged, "limited": tokens.limited} if tokens else {},
        )

    async def _work(self) -> None:
        await self.instance.lead(self.address)

    async def _end_service(self) -> None:
        async with anyio.create_task_group() as tasks:
            if self.gateway is not None:
                tasks.start_soon(self.gateway.drain, self.settings.shutdown_timeout)
            tasks.start_soon(self.server.drain, self.settings.shutdown_timeout)

    def _warnings(self) -> list[str]:
        # An instance whose gateway has no broker still serves its other consumers.
        return super()._warnings() + (self.gateway.problems() if self.gateway is not None else [])

    @property
    def address(self) -> str:
        """The gRPC address that is advertised to others."""
        return self.settings.advertised_address(self.server.port)


class GatewayProcess(Process):
    """A gateway for Kafka clients in a process of its own: it uses the service's store, and leads no group."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, backend: Backend | None = None) -> None:
        """The settings are those of the service. Raises `InvalidInput` for a store that is in one process only."""
        if settings.store.backend == _IN_ONE_PROCESS and backend is None:
            raise InvalidInput(
                "a gateway in a process of its own shares the service's store, and store.backend 'memory' is within "
                "one process: choose another --store, or run the gateway in the service: assigner serve --gateway"
            )
        enabled = msgspec.structs.replace(settings.gateway, enabled=True)
        super().__init__(msgspec.structs.replace(settings, gateway=enabled), clock=clock, backend=backend)
        _gateway_class()

    async def _serve(self, stack: AsyncExitStack) -> None:
        access = access_by(self.settings.auth, self._at_gateway(), self.instance.clock)
        if access.authenticator is not None:
            await access.authenticator.load()
            watching = await stack.enter_async_context(background())
            keep = partial(self.instance.supervisor.keep, "keys and certificate rules", access.authenticator.watch)
            watching.start_soon(keep, name="keys and certificate rules")
        await self._serve_kafka(stack, access)

    async def _work(self) -> None:
        await self.instance.attach()

    async def _end_service(self) -> None:
        if self.gateway is not None:
            await self.gateway.drain(self.settings.shutdown_timeout)

    def _problems(self) -> list[str]:
        return super()._problems() + (self.gateway.problems() if self.gateway is not None else [])


def _gateway_class() -> type[Gateway]:
    """Import what serves Kafka clients. Raises `InvalidInput` where the libraries are missing."""
    try:
        from assigner.gateway.process import Gateway
    except ImportError as error:
        raise InvalidInput(f"the gateway needs libraries of its own ({error}); {how_to_install('gateway')}") from error
    return Gateway


def _pinging_in_time(settings: Settings) -> ServerSettings:
    """Shorten the ping interval so that several pings fit into the TTL: their answers renew clients that do not
    renew."""
    often = min(settings.grpc.ping_interval, settings.consumer_ttl / 5)
    return msgspec.structs.replace(settings.grpc, ping_interval=often)
