"""Standbys as a program on the client library hears of them, over real connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from grpclib.client import Channel

from assigner.client import AssignerConsumer, Handler, Ownership, Release, TopicPartition, Warm
from assigner.clock import LoopClock
from assigner.model.records import GroupOptions
from assigner.proto.kafka_assigner import v1
from assigner.service import Service
from tests.support.clients.stream_clients import TIMING, until
from tests.support.cluster import GROUP, Cluster

OPTIONS = GroupOptions(debounce=0.1, standby_count=1)
pytestmark = [
    pytest.mark.virtual_time(sockets="local"),
    pytest.mark.cluster(ttl=2.0, options=OPTIONS),
]


class Noting(Handler):
    """Keeps the copies it is asked to keep, and records the calls about each partition."""

    def __init__(self) -> None:
        self.copies: set[TopicPartition] = set()
        self.story: dict[TopicPartition, list[str]] = {}

    def _note(self, tp: TopicPartition, what: str) -> None:
        self.story.setdefault(tp, []).append(what)

    async def assigned(self, partition: Ownership) -> None:
        self._note(partition.tp, "assigned warm" if partition.tp in self.copies else "assigned cold")
        self.copies.add(partition.tp)

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        self._note(partition, "warm from copy" if order.standby else "warm")

    async def release(self, partition: Ownership, order: Release) -> None:
        self._note(partition.tp, "release, keep" if order.standby else "release")
        if not order.standby:
            self.copies.discard(partition.tp)

    async def standby_added(self, partition: TopicPartition) -> None:
        self._note(partition, "standby")
        self.copies.add(partition)

    async def standby_removed(self, partition: TopicPartition) -> None:
        self._note(partition, "no standby")
        self.copies.discard(partition)


@pytest.fixture
async def service(cluster: Cluster) -> Service:
    await cluster.add_topic(partitions=12)
    return await cluster.start_service()


def consumer(service: Service, name: str, handler: Handler) -> AssignerConsumer:
    return AssignerConsumer(
        [service.address], GROUP, name, ["t"], handler, timing=TIMING, clock=LoopClock(), connect_timeout=20
    )


@asynccontextmanager
async def three(service: Service) -> AsyncIterator[tuple[list[AssignerConsumer], list[Noting]]]:
    handlers = [Noting() for _ in "abc"]
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(consumer(service, name, handler))
            for name, handler in zip("abc", handlers, strict=True)
        ]
        await until("even", lambda: all(len(c.partitions) == len(c.standbys) == 4 for c in consumers))
        for one, handler in zip(consumers, handlers, strict=True):
            await until("told", lambda one=one, handler=handler: handler.copies == {*one.partitions, *one.standbys})  # type: ignore[misc]
        yield consumers, handlers


async def test_a_program_is_sent_what_to_copy_and_what_it_copied_when_it_takes_over(
    cluster: Cluster, service: Service
) -> None:
    async with three(service) as ((a, b, c), (_, *others)):
        assert all(not one.standbys & one.partitions.keys() for one in (a, b, c))
        assert a.statistics().standbys == 4
        lost = set(a.partitions)
        assert a._task is not None
        a._task.cancel()
        await until("taken over", lambda: {*b.partitions, *c.partitions} >= lost and len(b.standbys) == 6)
        for handler in others:
            for tp in lost & handler.story.keys():
                if "assigned warm" in handler.story[tp]:
                    assert handler.story[tp][-2:] == ["standby", "assigned warm"]
        assert not any("no standby" in story for handler in others for tp, story in handler.story.items() if tp in lost)
        await cluster.until_counts(b=6, c=6)


async def test_a_consumer_that_drains_hands_over_to_copies(service: Service) -> None:
    async with three(service) as ((a, b, c), (_, *others)):
        mine = set(a.partitions)
        await a.drain()
        await until("taken over", lambda: len(b.partitions) == len(c.partitions) == 6)
        heard = [
            handler.story[tp] for handler in others for tp in mine if "warm from copy" in handler.story.get(tp, ())
        ]
        assert len(heard) == len(mine)
        assert all(story[-2:] == ["warm from copy", "assigned warm"] for story in heard)


async def test_a_former_owner_keeps_its_copy_and_stands_by(service: Service) -> None:
    first = Noting()
    async with consumer(service, "a", first) as a:
        await until("all", lambda: len(a.partitions) == 12)
        async with consumer(service, "b", Noting()) as b:
            await until("halves", lambda: len(a.partitions) == len(b.partitions) == 6 == len(a.standbys))
            for tp in a.standbys:
                await until("in order", lambda tp=tp: first.story[tp][-2:] == ["release, keep", "standby"])  # type: ignore[misc]


async def test_a_connection_that_breaks_changes_no_copy(service: Service) -> None:
    async with three(service) as ((a, _, _), (handler, *_)):
        before, story = a.standbys, {tp: list(said) for tp, said in handler.story.items()}
        assert a._session.registration is not None
        links = a._session.registrations
        a._session.registration._tasks.cancel_scope.cancel()  # type: ignore[union-attr]
        await until("linked anew", lambda: a._session.registrations == links + 1)
        assert a.standbys == before
        assert handler.story == story


async def test_a_client_that_does_not_ask_is_not_sent_standbys(cluster: Cluster, service: Service) -> None:
    async with three(service):
        host, _, port = service.address.rpartition(":")
        channel = Channel(host, int(port))
        try:
            stub = v1.KafkaAssignerStub(channel)
            updates = aiter(stub.register(v1.RegisterRequest(consumer_name="d", topic="t")))
            heard = [await anext(updates), await anext(updates)]
            assert heard[1].warm is not None
            await cluster.until("copied by d too", lambda s: bool(s.copies["d"]))
            await stub.partition_ready(v1.PartitionReadyRequest(consumer_name="d", partition=heard[1].warm.partition))
            while heard[-1].assignment is None:
                heard.append(await anext(updates))
            assert heard[-1].assignment.assigned, "nothing but ownership makes an update"
            assert not any(one.assignment.standbys_added for one in heard if one.assignment is not None)
        finally:
            channel.close()


async def test_operators_see_who_holds_copies_of_what(cluster: Cluster, service: Service) -> None:
    async with three(service) as ((a, b, c), _):
        host, _, port = service.address.rpartition(":")
        channel = Channel(host, int(port))
        try:
            admin = v1.AdminStub(channel)
            answer = await admin.describe_group(v1.DescribeGroupRequest(group=GROUP))
            assert {one.name: one.standbys for one in answer.consumers} == {"a": 4, "b": 4, "c": 4}
            (topic,) = answer.standbys
            told = {
                (answer.owners[holder], partition)
                for partition, holder in zip(topic.partitions, topic.holders, strict=True)
            }
            assert told == {(one.name, tp.partition) for one in (a, b, c) for tp in one.standbys}
            assert answer.options is not None
            assert answer.options.standby_count == 1
            changed = v1.SetGroupOptionsRequest(group=GROUP, options=v1.GroupOptions(standby_count=0))
            assert (await admin.set_group_options(changed)).options.standby_count == 0  # type: ignore[union-attr]
            await until("told", lambda: not (a.standbys or b.standbys or c.standbys))
            await cluster.until("no records", lambda s: not s.standbys)
        finally:
            channel.close()
