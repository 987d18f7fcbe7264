"""Knows which brokers there are and which of them answer, by a connection of the gateway's own to each.

A broker is up while that connection lives; it is lost in the moment in which the broker's process ends. Then one more
connection is tried at once, and if that fails the broker is away until one succeeds. Each connection asks for the
cluster's brokers every few seconds, which shows that the broker still answers, and what changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import anyio
import anyio.abc
import msgspec

from assigner.aio.backoff import Backoff
from assigner.aio.shutdown import background
from assigner.aio.supervision import Supervisor
from assigner.aio.wakeup import Wakeup
from assigner.errors import InvalidInput, SourceUnavailable
from assigner.gateway.codec import make, request_class
from assigner.gateway.requests import Entity
from assigner.gateway.upstream.connection import BrokerConnection
from assigner.gateway.upstream.security import BrokerSecurityFile
from assigner.logs import get_logger

METADATA = 3
NEWEST_METADATA = 12
MOST_BROKERS = 1_000
_INTERVAL = 5.0
"""Seconds between questions to each broker."""
_LONGEST_PAUSE = 2.0
_STEADY = 0.5
"""Seconds after which a connection that is lost is replaced at once."""

_log = get_logger(__name__)


class BrokerApis(msgspec.Struct, frozen=True):
    """What a broker says of itself in ApiVersions."""

    ranges: Mapping[int, tuple[int, int]]
    """The lowest and the highest version, by API key."""
    features: Entity = None
    """The answer, with the cluster's features; None: the broker is too old for them."""


class Broker:
    """One broker, and what is known of it."""

    def __init__(self, node_id: int, host: str, port: int) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.apis: BrokerApis | None = None
        """Set while it is up."""
        self.connection: BrokerConnection | None = None
        """The gateway's own."""
        self.listed = True
        """Whether the cluster still names it."""
        self.scope: anyio.CancelScope | None = None

    @property
    def is_up(self) -> bool:
        return self.apis is not None


class Brokers:
    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        security: BrokerSecurityFile,
        *,
        connect_timeout: float,
        answer_timeout: float,
        supervisor: Supervisor | None = None,
        interval: float = _INTERVAL,
    ) -> None:
        """`bootstrap`: hosts and ports that are asked while no broker is known to be up. `interval`: seconds between
        questions to each broker."""
        self._bootstrap = tuple(bootstrap)
        self._security = security
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout
        self._supervisor = supervisor or Supervisor()
        self._interval = interval
        self._by_id: dict[int, Broker] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._turn = 0
        self._common: BrokerApis | None = None
        self._looked_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.changed = Wakeup()
        """Notified when a broker has come up, is away, or is gone."""
        self.failures = 0
        """Connections to brokers, of the gateway's own, that could not be opened."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Brokers]:
        async with background() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._supervisor.keep, "kafka brokers", self._find, name="kafka brokers")
            try:
                yield self
            finally:
                self._tasks = None

    # --- what is known ---

    def __iter__(self) -> Iterator[Broker]:
        return iter(self._by_id.values())

    def get(self, node_id: int) -> Broker | None:
        return self._by_id.get(node_id)

    @property
    def up(self) -> list[Broker]:
        return [broker for broker in self._by_id.values() if broker.is_up]

    def next_up(self) -> Broker | None:
        """Return one of the brokers that are up, another one each time; None: none is."""
        up = self.up
        self._turn += 1
        return up[self._turn % len(up)] if up else None

    def coordinator_of(self, group: str) -> Broker | None:
        """Return the broker under whose address the group's coordinator is found: any would do, and the same one is
        returned for as long as it is up."""
        return max(self.up, key=lambda broker: crc32(f"{broker.node_id}/{group}".encode()), default=None)

    def common_apis(self) -> BrokerApis | None:
        """Return what all brokers that are up have in common, the same object until one changes; None: none is."""
        if self._common is None:
            self._common = self._find_common()
        return self._common

    def _find_common(self) -> BrokerApis | None:
        found = [broker.apis for broker in self.up if broker.apis is not None]
        if not found:
            return None
        ranges = dict(found[0].ranges)
        for apis in found[1:]:
            for api in list(ranges):
                low, high = apis.ranges.get(api, (1, 0))
                ranges[api] = (max(ranges[api][0], low), min(ranges[api][1], high))
        return BrokerApis({api: both for api, both in ranges.items() if both[0] <= both[1]}, found[0].features)

    # --- connections ---

    async def connect(self, broker: Broker) -> BrokerConnection:
        """Open a connection to the broker for one client. Raises `SourceUnavailable`."""
        return await self._open(broker.host, broker.port)

    async def ask_bytes(self, api: int, newest: int, body: Callable[[int], bytes]) -> tuple[int, bytes]:
        """Ask any broker that is up, and return the version that was asked for and the answer's body. `body` makes
        that of the request for a version up to `newest`. Raises `SourceUnavailable`."""
        broker = self.next_up()
        if broker is None or broker.apis is None or broker.connection is None:
            raise SourceUnavailable("no Kafka broker can be reached; check gateway.upstream")
        low, high = broker.apis.ranges.get(api, (1, 0))
        version = min(high, newest)
        if version < low:
            raise SourceUnavailable(f"broker {broker.node_id} has no version of API {api} that is known here")
        return version, await broker.connection.ask_within(self._answer_timeout, api, version, body(version))

    def look(self) -> None:
        """Ask for the list of brokers soon: somebody has heard of one that is not known here."""
        looked_for, self._looked_for = self._looked_for, asyncio.get_running_loop().create_future()
        looked_for.set_result(None)

    async def _open(self, host: str, port: int) -> BrokerConnection:
        try:
            security = await self._security.current()
        except (InvalidInput, OSError) as error:
            raise SourceUnavailable(f"TLS or SASL towards the brokers: {error}") from error
        return await BrokerConnection.open(host, port, security, self._connect_timeout)

    # --- looking for brokers ---

    async def _find(self) -> None:
        """Ask the bootstrap servers whenever no broker is up."""
        backoff = Backoff("kafka brokers", first=0.2, most=_LONGEST_PAUSE)
        while True:
            if self.up:
                backoff.reset()
                await self.changed.next()
                continue
            for host, port in self._bootstrap:
                await self._ask_bootstrap(host, port)
            with anyio.move_on_after(backoff.next()):
                await self.changed.until(lambda: bool(self.up))

    async def _ask_bootstrap(self, host: str, port: int) -> None:
        try:
            connection = await self._open(host, port)
        except SourceUnavailable as error:
            self._failed(error)
            return
        try:
            apis = await self._apis(connection)
            self._learn(await self._metadata(connection, apis))
        except SourceUnavailable as error:
            self._failed(error)
        finally:
            connection.close()

    def _failed(self, error: SourceUnavailable) -> None:
        self.failures += 1
        _log.warning("kafka_broker_unreachable", reason=str(error))

    async def _apis(self, connection: BrokerConnection) -> BrokerApis:
        answer = await connection.ask_versions(timeout=self._connect_timeout)
        if int(answer.error_code):
            raise SourceUnavailable(f"a broker answers ApiVersions with error {int(answer.error_code)}")
        ranges = {int(one.api_key): (int(one.min_version), int(one.max_version)) for one in answer.api_keys}
        return BrokerApis(ranges, answer if hasattr(answer, "finalized_features") else None)

    async def _metadata(self, connection: BrokerConnection, apis: BrokerApis) -> Entity:
        low, high = apis.ranges.get(METADATA, (1, 0))
        version = min(high, NEWEST_METADATA)
        if version < max(low, 1):
            raise SourceUnavailable("a broker has no version of Metadata that is known here")
        request = make(
            request_class(METADATA, version),
            topics=(),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        return await connection.ask(METADATA, version, request, timeout=self._connect_timeout)

    def _learn(self, metadata: Any) -> None:
        found = {int(one.node_id): (str(one.host), int(one.port)) for one in metadata.brokers[:MOST_BROKERS]}
        for node_id, (host, port) in found.items():
            broker = self._by_id.get(node_id)
            if broker is None:
                self._add(Broker(node_id, host, port))
            elif (broker.host, broker.port) != (host, port):
                broker.host, broker.port = host, port
                if broker.connection is not None:
                    broker.connection.abort()
        if not found:
            return
        for broker in list(self._by_id.values()):
            broker.listed = broker.node_id in found
            if not broker.listed and not broker.is_up:
                self._remove(broker)

    def _add(self, broker: Broker) -> None:
        if self._tasks is None:
            return
        self._by_id[broker.node_id] = broker
        name = f"kafka broker {broker.node_id}"

        async def watch() -> None:
            with anyio.CancelScope() as broker.scope:
                await self._supervisor.keep("kafka broker", lambda: self._watch(broker))

        self._tasks.start_soon(watch, name=name)

    def _remove(self, broker: Broker) -> None:
        del self._by_id[broker.node_id]
        self._common = None
        if broker.scope is not None:
            broker.scope.cancel()
        _log.info("kafka_broker_gone", node=broker.node_id)
        self.changed.notify()

    async def _watch(self, broker: Broker) -> None:
        """Keep the gateway's own connection to the broker."""
        backoff = Backoff(f"kafka broker {broker.node_id}", first=0.1, most=_LONGEST_PAUSE)
        while True:
            try:
                connection = await self._open(broker.host, broker.port)
            except SourceUnavailable as error:
                self._went_away(broker, error)
                await backoff.pause()
                continue
            opened = anyio.current_time()
            try:
                apis = await self._apis(connection)
                await self._stay(broker, connection, apis)
            except SourceUnavailable as error:
                # One that hung up may only have tidied up: the next try shows.
                if broker.is_up and connection.lost.done() and anyio.current_time() - opened > _STEADY:
                    backoff.reset()
                    continue
                self._went_away(broker, error)
                await backoff.pause()
            finally:
                broker.connection = None
                connection.abort()

    async def _stay(self, broker: Broker, connection: BrokerConnection, apis: BrokerApis) -> None:
        """Ask for the brokers again and again. Raises `SourceUnavailable` when the connection is lost."""
        while True:
            metadata = await self._metadata(connection, apis)
            if broker.connection is None:
                broker.connection = connection
                self._came_up(broker, apis)
            self._learn(metadata)
            await asyncio.wait(
                (connection.lost, self._looked_for), timeout=self._interval, return_when=asyncio.FIRST_COMPLETED
            )

    def _came_up(self, broker: Broker, apis: BrokerApis) -> None:
        was_up, broker.apis = broker.is_up, apis
        self._common = None
        if not was_up:
            _log.info("kafka_broker_up", node=broker.node_id, host=broker.host, port=broker.port)
            self.changed.notify()

    def _went_away(self, broker: Broker, error: SourceUnavailable) -> None:
        self.failures += 1
        if not broker.is_up:
            return
        broker.apis = self._common = None
        _log.warning("kafka_broker_away", node=broker.node_id, reason=str(error))
        self.changed.notify()
