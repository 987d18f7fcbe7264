"""Puts a gateway together on an instance: the wire, the handlers of groups of both kinds, spans, and what it tells of
itself.

An instance is what it serves members through, whether it leads groups too (`assigner serve --gateway`) or not
(`assigner gateway`). The gateway keeps nothing that the store does not have: it may end at any time, and its clients go
on at another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from assigner.auth.authenticator import Authenticator
from assigner.client.channel import Dialer
from assigner.client.tls import tls_context_from_files
from assigner.client.token import token_source
from assigner.core.group import GroupState
from assigner.errors import InvalidInput
from assigner.gateway.classic.connections import LeaderConnections
from assigner.gateway.classic.forwarding import ForwardingGroups
from assigner.gateway.classic.handlers import ClassicHandlers
from assigner.gateway.classic.leaders import Leaders
from assigner.gateway.classic.shared import ClassicShared
from assigner.gateway.groups import KafkaGroups, SharedCalls
from assigner.gateway.modern.handlers import ModernGroups
from assigner.gateway.modern.parts import InstanceParts, ServingInstance
from assigner.gateway.requests import Handlers
from assigner.gateway.server import GatewayServer
from assigner.gateway.settings import GatewaySettings
from assigner.gateway.spans import traced
from assigner.gateway.topics import KafkaTopics
from assigner.kafka_groups.spans import LeadingGroups, TracedClassicGroups
from assigner.observability.gateway_metrics import GatewaySnapshot
from assigner.storage.kinds import ASSIGNER, CLASSIC
from assigner.store import Store

PING, ANSWER_PING_WITHIN = 5.0, 5.0
"""Seconds between pings to leaders of classic groups, and for the answer to one."""


class GatewayInstance(ServingInstance, Protocol):
    """An instance, as far as members of any kind are concerned."""

    store: Store

    @property
    def kafka_groups(self) -> LeadingGroups: ...


class Gateway:
    def __init__(
        self,
        settings: GatewaySettings,
        instance: GatewayInstance,
        *,
        ttl: float,
        strategy: str,
        authenticator: Authenticator | None = None,
        identity_required: bool = True,
    ) -> None:
        """`settings`: with the upstream in force. `ttl`: of consumers' sessions. `strategy`: of groups without options.
        The rest as for `GatewayServer`. Raises `InvalidInput`."""
        self._settings = settings
        self._directory = instance.directory
        self._mirrors = instance.mirrors
        self.server = GatewayServer(
            settings,
            clock=instance.clock,
            supervisor=instance.supervisor,
            authenticator=authenticator,
            identity_required=identity_required,
        )
        self.topics = KafkaTopics(instance.clock, self.server.list_topics)
        self._modern = ModernGroups(
            InstanceParts.of(instance, settings, self.topics, ttl=ttl, strategy=strategy, fetchers=self.server.fetchers)
        )

        self._leaders = LeaderConnections(_dialer(settings))
        self._classic = ForwardingGroups(
            TracedClassicGroups(instance.kafka_groups),
            Leaders(instance.store, instance.keys),
            self._leaders,
            instance.clock,
        )

    def _handlers(self) -> Handlers:
        classic = ClassicShared(self._classic, self.topics)
        kinds: dict[str, KafkaGroups] = {ASSIGNER: self._modern, CLASSIC: classic}
        # A commit to a group that does not exist is that of a consumer without a group, which Kafka has, too.
        shared = SharedCalls(kinds, classic, self._kind, self.topics, self._state)
        own = {**self._modern.handlers(), **ClassicHandlers(self._classic).handlers()}
        return traced({**shared.handlers(), **own})

    async def _kind(self, group: str) -> str:
        return self._directory.mirrored_kind(group) or await self._directory.kind(group)

    def _state(self, group: str) -> GroupState | None:
        mirror = self._mirrors.get(group)
        return mirror.state if mirror is not None else None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Gateway]:
        """Serve Kafka clients until left; `drain` before. Raises `InvalidInput`: a port is taken, or a file can't be
        used."""
        failed: OSError | InvalidInput | None = None
        async with self._modern.running(), AsyncExitStack() as stack:
            stack.push_async_callback(self._leaders.close)
            try:
                await stack.enter_async_context(self.server.serving(self._handlers()))
            except (OSError, InvalidInput) as error:
                failed = error
            else:
                yield self
        # Raised after the group, which would wrap it.
        if isinstance(failed, OSError):
            raise InvalidInput(
                f"can't serve Kafka clients on {self._settings.host}:{self._settings.port}: "
                f"{failed.strerror or failed}; choose another --gateway-port or --gateway-host"
            ) from failed
        if failed is not None:
            raise failed

    @property
    def port(self) -> int:
        """The bootstrap port, also if the settings say 0."""
        return self.server.port

    def problems(self) -> list[str]:
        """Why Kafka clients can't be served now."""
        if self.server.is_ready:
            return []
        return [f"no Kafka broker can be reached: check gateway.upstream ({self._settings.upstream})"]

    async def drain(self, timeout: float) -> None:
        """Let the clients go elsewhere in good order, for so many seconds at most."""
        await self.server.drain(timeout)

    def snapshot(self) -> GatewaySnapshot:
        figures = self.server.statistics()
        return GatewaySnapshot(
            connections=figures.connections,
            members=self._modern.members,
            parked=figures.parked,
            buffered_bytes=figures.buffered_bytes,
            received_bytes=figures.received_bytes,
            sent_bytes=figures.sent_bytes,
            upstream_connections=figures.upstream_connections,
            upstream_failures=figures.upstream_failures,
            brokers_up=figures.brokers_up,
            requests=figures.requests,
            refused=figures.refused,
            logins=figures.logins,
            denied=dict(self.server.access.denials),
        )


def _dialer(settings: GatewaySettings) -> Dialer:
    """How the instances that lead classic groups are called. Raises `InvalidInput`."""
    tls = None
    if settings.leaders_use_tls:
        tls = tls_context_from_files(settings.leader_tls_ca, settings.leader_tls_certificate, settings.leader_tls_key)
    token = token_source(Path(settings.leader_token_file)) if settings.leader_token_file else None
    return Dialer(tls, PING, ANSWER_PING_WITHIN, token)
