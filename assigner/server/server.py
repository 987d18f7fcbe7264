"""Starts, drains and closes the gRPC server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import msgspec
from grpclib._typing import IServable
from grpclib.const import Handler

from assigner.aio.supervision import Supervisor
from assigner.api import Administration, ClassicGroups, Membership, Offsets, Routers
from assigner.clock import Clock
from assigner.errors import InvalidInput
from assigner.logs import get_logger
from assigner.model.names import check_name
from assigner.server.access import Access, access_by, check_identity, current_call
from assigner.server.services.admin import AdminService
from assigner.server.services.consumers import ConsumerService
from assigner.server.services.kafka_groups import KafkaGroupCalls
from assigner.server.services.offsets import OffsetCalls
from assigner.server.services.requests import Requests
from assigner.server.services.routers import RouterCalls
from assigner.server.services.streams import Incarnation, StreamCleanup, no_incarnation
from assigner.server.settings import AuthSettings, ServerSettings
from assigner.server.transport.calls import Work, guarded
from assigner.server.transport.codec import ReadyBytesCodec
from assigner.server.transport.connection import PeerProtocol
from assigner.server.transport.listener import Listener
from assigner.server.transport.open_files import limit, room_for
from assigner.server.transport.standard_services import Readiness, health_service, with_reflection
from assigner.server.transport.tls import TlsFiles, check_exposure, reflects
from assigner.server.transport.traffic import SHUTTING_DOWN, RefusalReason, ServerStatistics, Traffic

_HEALTH_INTERVAL = 1.0
_STATUS_TIMEOUT = 2.0
"""Seconds for sending the statuses of calls that are ended at the deadline, and again for peers to close."""

_log = get_logger(__name__)


class GrpcServer:
    """Serves consumers and operators on one port, on the event loop it is started on."""

    def __init__(
        self,
        settings: ServerSettings,
        members: Membership,
        administration: Administration,
        offsets: Offsets,
        routers: Routers,
        *,
        default_group: str,
        clock: Clock,
        ready: Callable[[], bool],
        check_group: Callable[[str], str] = lambda name: check_name("group", name),
        incarnation: Incarnation = no_incarnation,
        supervisor: Supervisor | None = None,
        auth: AuthSettings = AuthSettings(required=False),  # noqa: B008  (frozen)
        kafka_groups: ClassicGroups | None = None,
    ) -> None:
        """`incarnation`: of the store, sent to consumers; empty: the store has none. `auth`: how callers are
        recognized; by default they are not, and may make every call. `kafka_groups`: None: they are not served."""
        _check_openness(settings, auth)
        self._settings = settings
        self._access = access_by(auth, settings, clock)
        self._traffic = Traffic(settings, clock, self._access)
        self._readiness = Readiness(lambda: ready() and not self._traffic.draining)
        requests = Requests(default_group, check_group, current_call)
        self._cleanup = StreamCleanup()
        offset_calls = OffsetCalls(offsets, requests)
        self._consumers = ConsumerService(members, requests, offset_calls, self._cleanup, incarnation)
        self._routers = RouterCalls(routers, requests, self._cleanup, incarnation)
        self._admin = AdminService(administration, requests)
        self._kafka_groups = KafkaGroupCalls(kafka_groups, requests, settings.max_batch) if kafka_groups else None
        self._tls = TlsFiles(settings, clock) if settings.tls_certificate else None
        self._supervisor = supervisor or Supervisor()
        self._background: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._port = settings.port

    @property
    def port(self) -> int:
        """The port listened on, also if the settings say 0."""
        return self._port

    async def start(self) -> None:
        settings, traffic = self._settings, self._traffic
        methods = self._methods()
        codec = ReadyBytesCodec(settings.max_batch, lambda: traffic.refuse(RefusalReason.BATCH_SIZE))
        if self._tls is not None:
            await self._tls.files.load()
            self._run("grpc certificates", self._tls.files.watch)
        if self._access.authenticator is not None:
            await self._access.authenticator.load()
            self._run("keys and certificate rules", self._access.authenticator.watch)
        self._run("grpc readiness", self._watch_readiness)
        self._fit_into_files()
        listener = Listener(
            traffic,
            lambda slot: PeerProtocol(traffic, methods, codec, slot),
            tls=self._tls.context if self._tls else None,
        )
        await listener.start(settings.host, settings.port, settings.backlog)
        self._listener = listener
        self._port = listener.port
        _log.info(
            "grpc_listening",
            host=settings.host,
            port=self._port,
            tls=self._tls is not None,
            identity=self._access.mode,
        )

    def _fit_into_files(self) -> None:
        """Lower the limit of connections to the number of files that the process may open."""
        wanted = self._settings.max_connections
        fitting = room_for(wanted)
        if fitting < wanted:
            self._traffic.admission.most = fitting
            _log.warning(
                "grpc_max_connections_lowered",
                max_connections=fitting,
                wanted=wanted,
                open_files=limit(),
                remedy="allow the process more open files (ulimit -n), or set grpc.max_connections lower",
            )

    def _methods(self) -> dict[str, Handler]:
        services: list[IServable] = [self._consumers, self._routers, self._admin]
        if self._kafka_groups is not None:
            services.append(self._kafka_groups)
        services.append(health_service(self._readiness, services))
        if reflects(self._settings):
            services = with_reflection(services)
        found = {path: handler for service in services for path, handler in service.__mapping__().items()}
        return {path: handler._replace(func=_guarded(path, handler)) for path, handler in found.items()}

    def _run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._background.add(asyncio.create_task(self._supervisor.keep(name, work), name=name))

    async def _watch_readiness(self) -> None:
        while True:
            self._readiness.refresh()
            await anyio.sleep(_HEALTH_INTERVAL)

    async def drain(self, timeout: float) -> None:
        """Refuse new calls, end the streams with a status, let other calls finish until the timeout, then send GOAWAY.

        In that order, because grpclib's clients drop what is in flight when they receive a GOAWAY.
        """
        if self._listener is None:
            return
        traffic = self._traffic
        traffic.draining = True
        self._readiness.refresh()
        self._listener.close()
        for peer in list(traffic.peers):
            peer.end_calls(SHUTTING_DOWN, streaming_only=True)
            peer.leave_when_done()
        with anyio.move_on_after(timeout):
            await traffic.until(lambda: not traffic.in_progress)
        for peer in list(traffic.peers):
            peer.end_calls(SHUTTING_DOWN, streaming_only=False)
        with anyio.move_on_after(_STATUS_TIMEOUT):
            await traffic.until(lambda: not traffic.in_progress)
        with anyio.move_on_after(_STATUS_TIMEOUT):
            await traffic.until(lambda: not traffic.peers)
        with anyio.move_on_after(_STATUS_TIMEOUT):
            await self._cleanup.finished()

    async def close(self) -> None:
        """Drain without waiting for calls, then abort the connections that are left."""
        if self._listener is None:
            return
        if not self._traffic.draining:
            await self.drain(0)
        for peer in list(self._traffic.peers):
            peer.abort()
        await self._traffic.until(lambda: not self._traffic.peers and not self._traffic.in_progress)
        await self._cleanup.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        await self._listener.wait_closed()
        self._listener = None

    @property
    def access(self) -> Access:
        return self._access

    @property
    def open_connections(self) -> int:
        return len(self._traffic.admission)

    @property
    def closed_connections(self) -> int:
        return self._traffic.closed

    def statistics(self) -> ServerStatistics:
        counted = self._traffic.statistics()
        if self._tls is None:
            return counted
        files = self._tls.files
        return msgspec.structs.replace(counted, tls_reloads=files.reloads, tls_reload_failures=files.failures)


def _check_openness(settings: ServerSettings, auth: AuthSettings) -> None:
    """Raise `InvalidInput` with all that keeps the server from being open to others."""
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_exposure(settings),
        lambda: check_identity(auth, settings),
    )
    problems = []
    for check in checks:
        try:
            check()
        except InvalidInput as error:
            problems.append(str(error))
    if problems:
        raise InvalidInput("; also, ".join(problems))


def _guarded(path: str, handler: Handler) -> Work:
    return guarded(path, handler.func, streaming=handler.cardinality.server_streaming)
