"""Starts, drains and closes the gateway's wire: ports, connections to brokers, logins, and time limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from assigner.aio.shutdown import background
from assigner.aio.supervision import Supervisor
from assigner.auth.authenticator import Authenticator
from assigner.auth.reload import ReloadedFiles
from assigner.clock import Clock, SystemClock
from assigner.errors import InvalidInput
from assigner.gateway.login.access import ClientAccess
from assigner.gateway.login.credentials import Credentials, read_credentials
from assigner.gateway.login.sasl import Logins
from assigner.gateway.requests import FetchConnections, Handlers, Interruption
from assigner.gateway.settings import GatewaySettings, SaslMechanism
from assigner.gateway.topics import KafkaTopic
from assigner.gateway.upstream.brokers import Brokers
from assigner.gateway.upstream.security import BrokerSecurityFile
from assigner.gateway.upstream.topics import list_topics
from assigner.gateway.wire.ports import Ports, advertised_host
from assigner.gateway.wire.shared import Wire
from assigner.gateway.wire.traffic import GatewayStatistics
from assigner.logs import get_logger
from assigner.server.settings import ServerSettings, is_loopback
from assigner.server.transport.open_files import limit, room_for
from assigner.server.transport.tls import TlsFiles
from assigner.server.transport.traffic import Traffic

_KAFKA_PORT = 9092
_LOOK_EVERY = 1.0
"""Seconds between looks at all connections."""
_LOOK_AT_ONCE = 200
"""Connections that are looked at before others get their turn on the loop."""
_LOOK_AT_LOGINS_EVERY = 5
"""In how many of them logins are looked at too."""
_OPEN_AGAIN_AFTER = 1.0
_CLOSE_WITHIN = 2.0
_DRAIN_STEP = 0.02

_log = get_logger(__name__)


class GatewayServer:
    """The wire of one gateway. What groups are is the handlers' business, which may be made after it."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        clock: Clock | None = None,
        supervisor: Supervisor | None = None,
        authenticator: Authenticator | None = None,
        identity_required: bool = True,
    ) -> None:
        """`settings.upstream` and its properties are those in force, with what `kafka` says filled in. `authenticator`:
        for certificates and tokens; whoever made it loads and watches it. `identity_required`: clients must show a
        certificate that it knows, where certificates are what they are known by. Raises `InvalidInput`."""
        check_openness(settings)
        if not settings.upstream:
            raise InvalidInput("gateway.upstream names no broker; set it, or kafka.bootstrap_servers, to host:port")
        self._settings = settings
        self._clock = clock or SystemClock()
        self._supervisor = supervisor or Supervisor()
        self._brokers = Brokers(
            parse_servers(settings.upstream),
            BrokerSecurityFile(settings.upstream_properties, settings.upstream_properties_file),
            connect_timeout=settings.connect_timeout,
            answer_timeout=settings.upstream_timeout,
            supervisor=self._supervisor,
        )
        self._credentials: ReloadedFiles[Credentials] | None = None
        if settings.sasl_credentials:
            path = settings.sasl_credentials
            self._credentials = ReloadedFiles("credentials", [path], lambda: read_credentials(path), self._clock)
        self._logins = Logins(
            settings.sasl_mechanisms, self._clock, credentials=self._credentials, authenticator=authenticator
        )
        by_certificate = bool(settings.tls_client_ca and authenticator is not None and identity_required)
        self.access = ClientAccess(self._clock, required=bool(settings.sasl_mechanisms) or by_certificate)
        if SaslMechanism.OAUTHBEARER in settings.sasl_mechanisms and authenticator is None:
            raise InvalidInput("gateway.sasl_mechanisms has OAUTHBEARER, which needs keys: set auth.keys")
        self._wire = Wire(settings, {}, self._brokers, self.access, self._logins, self._clock)
        listening = ServerSettings(
            host=settings.host,
            tls_certificate=settings.tls_certificate,
            tls_key=settings.tls_key,
            tls_client_ca=settings.tls_client_ca,
            tls_reload_interval=settings.tls_reload_interval,
            max_connections=settings.max_connections,
            max_connections_per_address=settings.max_connections_per_address,
            handshake_timeout=settings.handshake_timeout,
        )
        self._admission = Traffic(listening, self._clock)
        self._tls = TlsFiles(listening, self._clock, protocols=()) if settings.tls_certificate else None
        self._ports = Ports(self._wire, self._admission, self._tls.context if self._tls else None)

    # --- for handlers ------------------------------------------------------------------------------------------------

    @property
    def fetchers(self) -> FetchConnections:
        return self._wire.traffic

    @property
    def brokers(self) -> Brokers:
        return self._brokers

    async def list_topics(self) -> list[KafkaTopic]:
        """Return every topic of the brokers. Raises `SourceUnavailable`."""
        return await list_topics(self._brokers)

    # --- life --------------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The bootstrap port, also if the settings say 0."""
        return self._ports.bootstrap

    @property
    def ports(self) -> Mapping[int, int]:
        """The ports of brokers by node id, also of those that are away."""
        return self._wire.ports

    @property
    def is_ready(self) -> bool:
        """Whether clients are served: a broker is up and has its port."""
        return not self._wire.traffic.draining and any(one.node_id in self._wire.ports for one in self._brokers.up)

    async def until_ready(self) -> None:
        """Wait until clients are served."""
        await self._wire.changed.until(lambda: self.is_ready)

    @asynccontextmanager
    async def serving(self, handlers: Handlers) -> AsyncIterator[GatewayServer]:
        """Serve clients until left; then connections are closed at once: `drain` before. Raises `OSError` if the
        bootstrap port can't be opened, `InvalidInput` for files that can't be used."""
        self._wire.handlers = handlers
        self._wire.advertised_host = advertised_host(self._settings.host, self._settings.advertised_host)
        self._fit_into_files()
        if self._tls is not None:
            await self._tls.files.load()
        if self._credentials is not None:
            await self._credentials.load()
        # Before the tasks, whose group would wrap the error.
        await self._ports.open_bootstrap()
        async with background() as tasks, self._brokers.running():

            def keep(name: str, work: Callable[[], Awaitable[None]]) -> None:
                tasks.start_soon(self._supervisor.keep, name, work, name=name)

            if self._tls is not None:
                keep("kafka certificates", self._tls.files.watch)
            if self._credentials is not None:
                keep("kafka credentials", self._credentials.watch)
            keep("kafka ports", self._keep_ports)
            keep("kafka connections", self._look)
            _log.info(
                "kafka_listening",
                host=self._settings.host,
                port=self.port,
                advertised=self._wire.advertised_host,
                tls=self._tls is not None,
                sasl=[one.value for one in self._settings.sasl_mechanisms],
            )
            try:
                yield self
            finally:
                with anyio.CancelScope(shield=True):
                    await self._close()

    def _fit_into_files(self) -> None:
        """Lower the limit of connections to the number of files that the process may open. Each connection may need
        another one, to a broker."""
        wanted = self._settings.max_connections
        fitting = max(16, room_for(wanted * 2) // 2)
        if fitting < wanted:
            self._admission.admission.most = fitting
            _log.warning(
                "kafka_max_connections_lowered",
                max_connections=fitting,
                wanted=wanted,
                open_files=limit(),
                remedy="allow the process more open files (ulimit -n), or set gateway.max_connections lower",
            )

    async def _keep_ports(self) -> None:
        while True:
            mark = self._brokers.changed.mark()
            complete = await self._ports.match()
            self._wire.changed.notify()
            with anyio.move_on_after(float("inf") if complete else _OPEN_AGAIN_AFTER):
                await self._brokers.changed.since(mark)

    async def _look(self) -> None:
        """Close the connections that take too long for something, or whose credentials were withdrawn."""
        turn = 0
        while True:
            await anyio.sleep(_LOOK_EVERY)
            turn += 1
            connections = list(self._wire.traffic.connections)
            for first in range(0, len(connections), _LOOK_AT_ONCE):
                now = self._clock.now()
                for connection in connections[first : first + _LOOK_AT_ONCE]:
                    connection.look(now)
                    if turn % _LOOK_AT_LOGINS_EVERY == 0:
                        connection.look_at_login()
                await anyio.lowlevel.checkpoint()

    async def drain(self, timeout: float) -> None:
        """Accept no more clients, have held answers sent, and close each connection once nothing is owed on it. After
        the timeout close the rest."""
        traffic = self._wire.traffic
        traffic.draining = True
        self._ports.close()
        traffic.interrupt(Interruption.DRAINING)
        with anyio.move_on_after(timeout):
            while traffic.connections:
                for connection in list(traffic.connections):
                    if connection.is_idle:
                        connection.close_for("draining", "the gateway is draining")
                await anyio.sleep(_DRAIN_STEP)
        for connection in list(traffic.connections):
            connection.close_for("draining", "the gateway is draining")

    async def _close(self) -> None:
        traffic = self._wire.traffic
        traffic.draining = True
        self._ports.close()
        for connection in list(traffic.connections):
            connection.abort()
        empty = asyncio.Event()
        traffic.when_empty(empty.set)
        with anyio.move_on_after(_CLOSE_WITHIN):
            await empty.wait()
        traffic.cancel_orphans()
        for pipe in list(traffic.pipes):
            pipe.abort()
        await self._ports.wait_closed()

    def statistics(self) -> GatewayStatistics:
        traffic = self._wire.traffic
        admitted = self._admission.statistics()
        refused = {reason: count for reason, count in admitted.refused.items() if count}
        for reason, count in traffic.refused.items():
            refused[reason] = refused.get(reason, 0) + count
        return GatewayStatistics(
            connections=admitted.connections,
            parked=traffic.parked,
            buffered_bytes=traffic.buffered,
            received_bytes=traffic.received,
            sent_bytes=traffic.sent,
            upstream_connections=len(traffic.pipes),
            upstream_failures=traffic.upstream_failures + self._brokers.failures,
            brokers_up=len(self._brokers.up),
            requests=dict(traffic.requests),
            refused=refused,
            logins=dict(self._logins.outcomes),
        )


def check_openness(settings: GatewaySettings) -> None:
    """Raise `InvalidInput` for settings that serve other machines without TLS or without knowing who they are, unless
    `insecure` is set."""
    if settings.insecure or is_loopback(settings.host):
        return
    if not settings.tls_certificate:
        raise InvalidInput(
            f"gateway.host {settings.host!r} can be reached from outside and TLS is not set up; set "
            "gateway.tls_certificate and gateway.tls_key, or bind 127.0.0.1, or set gateway.insecure if the network "
            "is trusted"
        )
    if not settings.sasl_mechanisms and not settings.tls_client_ca:
        raise InvalidInput(
            f"gateway.host {settings.host!r} can be reached from outside and clients are nobody; set "
            "gateway.sasl_mechanisms or gateway.tls_client_ca, or set gateway.insecure if the network is trusted"
        )


def parse_servers(servers: str) -> list[tuple[str, int]]:
    """Parse bootstrap servers, as Kafka's clients take them. Raises `InvalidInput`."""
    found = []
    for server in filter(None, (one.strip() for one in servers.split(","))):
        # librdkafka takes a protocol before the host.
        host, colon, port = server.rpartition("://")[2].rpartition(":")
        if not colon:
            host, port = port, str(_KAFKA_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise InvalidInput(f"bootstrap server {server!r} is wrong; write host:port")
        found.append((host, int(port)))
    return found
