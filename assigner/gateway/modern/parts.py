"""What the members of Kafka 4's protocol need of the instance that serves them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from assigner.aio.supervision import Supervisor
from assigner.api import Administration, Membership, Offsets
from assigner.clock import Clock
from assigner.gateway.requests import FetchConnections
from assigner.gateway.settings import GatewaySettings
from assigner.gateway.topics import KafkaTopics
from assigner.model.keys import Keys
from assigner.storage.groups import GroupDirectory
from assigner.storage.mirror import Mirrors

EnsureTopics = Callable[[str, Sequence[str]], Awaitable[None]]
"""(group, topics): have the group know these topics. Raises `UnknownTopic`."""


class NoFetchConnections:
    """Where nobody can tell which connections are a client's."""

    def close_fetchers(self, principal: str, client_id: str, host: str) -> int:
        return 0


class EnsuresTopics(Protocol):
    async def ensure(self, group: str, topics: Sequence[str]) -> None: ...


class CountsRefusals(Protocol):
    def refused(self, reason: str, count: int = 1) -> None: ...


class ServingInstance(Protocol):
    """An instance of the service, as far as members are concerned."""

    name: str
    keys: Keys
    clock: Clock
    supervisor: Supervisor
    directory: GroupDirectory
    mirrors: Mirrors

    @property
    def members(self) -> Membership: ...

    @property
    def offsets(self) -> Offsets: ...

    @property
    def operations(self) -> Administration: ...

    @property
    def topics(self) -> EnsuresTopics: ...

    @property
    def metrics(self) -> CountsRefusals: ...


@dataclass(frozen=True, kw_only=True)
class InstanceParts:
    name: str
    """Of the instance, as registrations name it."""
    membership: Membership
    offsets: Offsets
    administration: Administration
    directory: GroupDirectory
    mirrors: Mirrors
    ensure_topics: EnsureTopics
    clock: Clock
    ttl: float
    """Of consumers' sessions."""
    interval: float
    """Of heartbeats."""
    strategy: str
    """Of groups that have no options of their own."""
    max_group_size: int = 2_000
    topics: KafkaTopics
    supervisor: Supervisor
    refused: Callable[[str], None] = lambda _: None
    """Counts a refusal by its reason."""
    fetchers: FetchConnections = field(default_factory=NoFetchConnections)

    @classmethod
    def of(
        cls,
        instance: ServingInstance,
        settings: GatewaySettings,
        topics: KafkaTopics,
        *,
        ttl: float,
        strategy: str,
        fetchers: FetchConnections | None = None,
    ) -> Self:
        """`ttl`: of consumers' sessions. `strategy`: of groups without options of their own."""
        return cls(
            name=instance.name,
            membership=instance.members,
            offsets=instance.offsets,
            administration=instance.operations,
            directory=instance.directory,
            mirrors=instance.mirrors,
            ensure_topics=instance.topics.ensure,
            clock=instance.clock,
            ttl=ttl,
            interval=settings.interval(ttl),
            strategy=strategy,
            max_group_size=settings.max_group_size,
            topics=topics,
            supervisor=instance.supervisor,
            refused=instance.metrics.refused,
            fetchers=fetchers or NoFetchConnections(),
        )
