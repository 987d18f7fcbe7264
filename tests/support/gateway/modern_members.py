"""Kafka 4 members for scenarios: hand-made requests to the gateway's handlers, without a wire.

`ModernGateway` is the part of a gateway that serves them, on an instance of a cluster. `KafkaMember` is a client: it
can be stepped call by call, or follow what it is told as clients do (`run`).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from assigner.auth.actions import Action
from assigner.auth.identity import Principal
from assigner.core.kafka_groups.modern.requests import member_name
from assigner.gateway.codec import decode_response, make, milliseconds, nested, request_class
from assigner.gateway.groups import SharedCalls
from assigner.gateway.modern.handlers import ModernGroups
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.requests import Client, Handlers, Request
from assigner.gateway.settings import GatewaySettings
from assigner.gateway.topics import KafkaTopic, KafkaTopics
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.storage.kinds import ASSIGNER
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster

COMMIT, FETCH, HEARTBEAT, DESCRIBE = 8, 9, 68, 69


def topic_id(name: str) -> uuid.UUID:
    """The id that a topic has in these scenarios."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


class Everything:
    """Lets every client do everything, but for the groups and topics that are named."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied

    def reason(
        self,
        principal: Principal | None,
        action: Action,
        org: str,
        *,
        group: str | None = None,
        name: str | None = None,
        topic: str | None = None,
    ) -> str | None:
        return f"{group} is not yours" if group in self.denied else None


class Fetchers:
    """Remembers whose connections were to be closed."""

    def __init__(self) -> None:
        self.closed: list[tuple[str, str]] = []

    def close_fetchers(self, principal: str, client_id: str, host: str) -> int:
        self.closed.append((client_id, host))
        return 1


class ModernGateway:
    def __init__(self, cluster: Cluster, instance: Instance, upstream: dict[str, int] | None = None) -> None:
        """`upstream`: topic -> partitions, of the brokers behind it. None: there are no brokers."""
        self.cluster = cluster
        self.instance = instance
        self.upstream = upstream
        self.fetchers = Fetchers()
        topics = KafkaTopics(instance.clock, None if upstream is None else self._list_topics)
        if upstream is None:
            topics.learn([KafkaTopic(name, topic_id(name)) for name in ("t", "u", "v")])
        self.parts = InstanceParts.of(
            instance,
            GatewaySettings(max_group_size=50),
            topics,
            ttl=cluster.ttl,
            strategy=cluster.options.strategy,
            fetchers=self.fetchers,
        )
        self.groups = ModernGroups(self.parts)
        shared = SharedCalls({ASSIGNER: self.groups}, self.groups, self._kind, topics, lambda group: self._state(group))
        self.handlers: Handlers = {**shared.handlers(), **self.groups.handlers()}

    async def _list_topics(self) -> Sequence[KafkaTopic]:
        return [KafkaTopic(name, topic_id(name), count) for name, count in (self.upstream or {}).items()]

    async def _kind(self, group: str) -> str:
        return self.parts.directory.mirrored_kind(group) or await self.parts.directory.kind(group)

    def _state(self, group: str) -> Any:
        mirror = self.parts.mirrors.get(group)
        return mirror.state if mirror else None

    async def call(self, request: Request, entity: Any) -> Any:
        answer = self.handlers[request.api].handle(request, entity)
        if hasattr(answer, "__await__"):
            answer = await answer
        return decode_response(request.api, request.version, answer) if isinstance(answer, bytes) else answer


@asynccontextmanager
async def gateway_on(
    cluster: Cluster, instance: Instance, upstream: dict[str, int] | None = None
) -> AsyncIterator[ModernGateway]:
    gateway = ModernGateway(cluster, instance, upstream)
    async with gateway.groups.running():
        yield gateway


class Connection:
    """A client's connection to a gateway."""

    def __init__(self, gateway: ModernGateway, client_id: str, org: str = "", *denied: str) -> None:
        self.gateway = gateway
        self.client_id = client_id
        self.client = Client(1, "test", "10.0.0.1", org, Everything(*denied))

    def request(self, api: int, version: int) -> Request:
        return Request(self.client, api, version, 1, self.client_id, self.gateway.instance.clock.now())

    async def call(self, api: int, version: int, **fields: Any) -> Any:
        return await self.gateway.call(self.request(api, version), make(request_class(api, version), **fields))


class Told(msgspec.Struct, frozen=True):
    """An answer to a heartbeat."""

    error: int
    epoch: int
    assignment: frozenset[TopicPartition] | None
    interval: float
    member_id: str | None = None


class KafkaMember:
    def __init__(
        self,
        gateway: ModernGateway,
        member_id: str = "m1",
        *,
        names: Iterable[str] | None = ("t",),
        pattern: str | None = "",
        instance_id: str | None = None,
        rack: str | None = None,
        group: str = GROUP,
        timeout: int = 60_000,
        client_id: str = "app",
    ) -> None:
        self.connection = Connection(gateway, client_id)
        self.gateway = gateway
        self.group = group
        self.member_id = member_id
        self.instance_id = instance_id
        self.names = None if names is None else tuple(names)
        self.pattern = pattern
        self.rack = rack
        self.timeout = timeout
        self.epoch = 0
        self.has: frozenset[TopicPartition] = frozenset()
        self.interval = 0.0
        self.lost: list[int] = []
        """The errors by which it lost everything."""
        self.assigned: list[frozenset[TopicPartition]] = []
        """Every assignment that differed from what it had."""
        self.lets_go = True
        """Whether it does what it is told, if that is to let something go."""
        self._scope: anyio.CancelScope | None = None
        self.held: Request | None = None
        """Its heartbeat that has no answer yet."""

    @property
    def name(self) -> str:
        return member_name(self.connection.client_id, self.member_id, self.instance_id)

    def reconnect(self, gateway: ModernGateway) -> None:
        self.gateway = gateway
        self.connection = Connection(gateway, self.connection.client_id)

    # --- one call ------------------------------------------------------------------------------------------------

    async def beat(self, epoch: int | None = None, *, version: int = 1, **fields: Any) -> Told:
        """One heartbeat: a partial one, unless fields are given."""
        request = self.held = self.connection.request(HEARTBEAT, version)
        schema = request_class(HEARTBEAT, version)
        owned = fields.pop("owned", None)
        given = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch if epoch is None else epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": milliseconds(-1),
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None if owned is None else _topics(schema, owned),
            **fields,
        }
        answer = await self.gateway.call(request, make(schema, **given))
        self.held = None
        told = None if answer.assignment is None else _partitions(answer.assignment)
        interval = answer.heartbeat_interval.total_seconds()
        return Told(int(answer.error_code.value), answer.member_epoch, told, interval, answer.member_id)

    async def full(self, epoch: int | None = None) -> Told:
        return await self.beat(
            epoch,
            owned=frozenset() if epoch == 0 else self.has,
            instance_id=self.instance_id,
            rack_id=self.rack,
            rebalance_timeout=milliseconds(self.timeout),
            subscribed_topic_names=self.names,
            subscribed_topic_regex=self.pattern,
        )

    async def join(self) -> Told:
        """The first call, whose assignment it takes."""
        self.epoch, self.has = 0, frozenset()
        told = await self.full(0)
        self.take(told)
        return told

    async def enter(self, count: int) -> None:
        """Join, wait until it has so many partitions, and say so. On a busy machine the join's own answer may come
        before the plan."""
        await self.join()

        async def has_them() -> bool:
            if len(self.has) != count:
                await self.poll()
            return len(self.has) == count

        await eventually(has_them, within=self._patience, what=f"{self.name} has {count} partitions")
        await self.ack()

    async def news(self) -> Told:
        """Ask until it is told an assignment, and take it."""
        found: list[Told] = []

        async def is_told() -> bool:
            found.append(await self.poll())
            return found[-1].assignment is not None

        await eventually(is_told, within=self._patience, what=f"{self.name} is told an assignment")
        return found[-1]

    @property
    def _patience(self) -> float:
        return self.gateway.cluster.patience + self.gateway.cluster.allowance

    async def poll(self) -> Told:
        """Say that there is nothing to say, and take what is told."""
        told = await self.beat()
        self.take(told)
        return told

    async def ack(self) -> Told:
        """Say what it has, and take what is told."""
        told = await self.beat(owned=self.has)
        self.take(told)
        return told

    async def leave(self, epoch: int = -1) -> Told:
        return await self.beat(epoch, instance_id=self.instance_id)

    def take(self, told: Told) -> bool:
        """Do what an answer says. Returns whether there is something to say about it."""
        if told.error in (25, 110):
            self.lost.append(told.error)
            self.epoch, self.has = 0, frozenset()
            return False
        if told.error:
            return False
        self.epoch, self.interval = told.epoch, told.interval
        if told.assignment is None or told.assignment == self.has:
            return False
        if not self.lets_go and self.has - told.assignment:
            return False
        self.has = told.assignment
        self.assigned.append(told.assignment)
        return True

    # --- as clients do -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join, and go on as a client does until `crash` or `stop`."""
        await self.gateway.cluster.tasks.start(self._run)

    async def _run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.CancelScope() as self._scope:
            task_status.started()
            while True:
                began = anyio.current_time()
                if not self.epoch:
                    told = await self.full(0)
                elif not self.assigned or self.assigned[-1] is self._acked:
                    told = await self.beat()
                else:
                    self._acked = self.assigned[-1]
                    told = await self.beat(owned=self.has)
                news = self.take(told)
                wait = self.interval if not told.error else 0.1
                if not news:
                    await anyio.sleep(max(0.01, began + wait - anyio.current_time()))

    _acked: frozenset[TopicPartition] | None = None

    def crash(self) -> None:
        assert self._scope is not None
        self._scope.cancel()

    async def has_all(self, count: int, *, within: float | None = None) -> None:
        cluster = self.gateway.cluster
        within = (within or cluster.patience) + cluster.allowance
        await eventually(lambda: len(self.has) == count, within=within, what=f"{self.name} has {count} partitions")

    # --- offsets -------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: dict[TopicPartition, int], *, epoch: int | None = None, version: int = 9
    ) -> dict[TopicPartition, int]:
        epoch = self.epoch if epoch is None else epoch
        return await commit(self.connection, self.group, offsets, self.member_id, epoch, version)

    async def fetch(self, *tps: TopicPartition, epoch: int | None = None) -> tuple[int, dict[TopicPartition, int]]:
        epoch = self.epoch if epoch is None else epoch
        return await fetch(self.connection, self.group, tps, self.member_id, epoch)


async def commit(
    connection: Connection,
    group: str,
    offsets: dict[TopicPartition, int],
    member_id: str = "",
    epoch: int = -1,
    version: int = 9,
) -> dict[TopicPartition, int]:
    """Commit, and return the code of each partition."""
    schema = request_class(COMMIT, version)
    by_topic: dict[str, list[Any]] = {}
    for tp, offset in offsets.items():
        one = make(
            nested(schema, "OffsetCommitRequestPartition"),
            partition_index=tp.partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata=f"at {offset}",
        )
        by_topic.setdefault(tp.topic, []).append(one)
    topics = tuple(
        make(nested(schema, "OffsetCommitRequestTopic"), name=name, topic_id=topic_id(name), partitions=tuple(parts))
        for name, parts in by_topic.items()
    )
    answer = await connection.call(
        COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=None,
        retention_time=None,
        topics=topics,
    )
    names = {topic_id(name): name for name in by_topic}
    return {
        TopicPartition(topic.name if version < 10 else names[topic.topic_id], one.partition_index): int(
            one.error_code.value
        )
        for topic in answer.topics
        for one in topic.partitions
    }


async def fetch(
    connection: Connection,
    group: str,
    tps: Iterable[TopicPartition] | None,
    member_id: str | None = None,
    epoch: int = -1,
    version: int = 9,
) -> tuple[int, dict[TopicPartition, int]]:
    """Fetch offsets. Returns the group's code, and the offset of each partition: -1 is none; a code of its own counts
    as its negative, less 1000."""
    schema = request_class(FETCH, version)
    topics = None
    if tps is not None:
        by_topic: dict[str, list[int]] = {}
        for tp in tps:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        topics = tuple(
            make(
                nested(schema, "OffsetFetchRequestTopics"),
                name=name,
                topic_id=topic_id(name),
                partition_indexes=tuple(partitions),
            )
            for name, partitions in by_topic.items()
        )
    group_request = make(
        nested(schema, "OffsetFetchRequestGroup"),
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        topics=topics,
    )
    answer = await connection.call(FETCH, version, groups=(group_request,), require_stable=False)
    (found,) = answer.groups
    names = {topic_id(name): name for name in ("t", "u", "v", "nowhere")}
    offsets = {
        TopicPartition(topic.name if version < 10 else names[topic.topic_id], one.partition_index): (
            -1000 - int(one.error_code.value) if one.error_code.value else one.committed_offset
        )
        for topic in found.topics
        for one in topic.partitions
    }
    return int(found.error_code.value), offsets


def _topics(schema: Any, tps: Iterable[TopicPartition]) -> tuple[Any, ...]:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(tps):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    kind = nested(schema, "TopicPartitions")
    return tuple(make(kind, topic_id=topic_id(name), partitions=tuple(parts)) for name, parts in by_topic.items())


def _partitions(assignment: Any) -> frozenset[TopicPartition]:
    names = {topic_id(name): name for name in ("t", "u", "v", *(f"t{number}" for number in range(10)))}
    return frozenset(
        TopicPartition(names[topic.topic_id], partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )
