"""Random courses of topics that come and go, of drains and of subscriptions: nobody is stuck, and epochs only rise."""

from __future__ import annotations

import random

import anyio
import msgspec
import pytest

from assigner.core.group import GroupState
from assigner.model.keys import AssignmentKey, TopicPartition
from assigner.model.records import Assignment, HandoffMode, decode
from assigner.store import PutEvent
from tests.support.cluster import Cluster
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
TOPICS = ("t", "u", "v")
SETS = ((), (("t", "u"),))


class Course:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self._count = 0
        self.leaving: list[SteppedConsumer] = []

    @property
    def ready(self) -> list[SteppedConsumer]:
        gone = {id(consumer) for consumer in self.leaving}
        return [c for c in self.cluster.consumers.values() if id(c) not in gone and c.ended is None]

    async def step(self) -> None:
        often = [self.join, self.join, self.drain, self.subscribe, self.subscribe, self.grow]
        act = self.chance.choice([*often, *often, self.delete, self.lead_elsewhere, self.mark])
        await act()
        await anyio.sleep(self.chance.choice([0.0, 0.3, 2.0, 3.0]))

    async def _some_topics(self) -> tuple[str, ...]:
        """Never all of them, so that many a topic is wanted by one consumer alone. Whoever names a topic that is gone
        is refused."""
        known = sorted((await self.cluster.state()).topics)
        return tuple(self.chance.sample(known, min(len(known), self.chance.choice([1, 1, 1, 2]))))

    async def join(self) -> None:
        self._count += 1
        if len(self.ready) < 4:
            await self.cluster.join(f"c{self._count}", topics=await self._some_topics())

    async def drain(self) -> None:
        if self.ready:
            consumer = self.chance.choice(self.ready)
            self.leaving.append(consumer)
            if not await consumer.deregister():
                # As the client does: it lets go by itself.
                await consumer.deregister(gates_closed=True)

    async def subscribe(self) -> None:
        if self.ready:
            consumer = self.chance.choice(self.ready)
            assert consumer.instance
            topics = await self._some_topics()
            consumer.crash()
            consumer._registration = msgspec.structs.replace(consumer._registration, topics=topics)
            await consumer.connect(consumer.instance)

    async def delete(self) -> None:
        await self.cluster.store.delete(self.cluster.group.topic(self.chance.choice(TOPICS)))

    async def grow(self) -> None:
        await self.cluster.add_topic(self.chance.choice(TOPICS), partitions=self.chance.randint(1, 6))

    async def lead_elsewhere(self) -> None:
        """The leader is deposed; another instance, or the same one, goes on in a new term."""
        await self.cluster.store.delete(self.cluster.group.leader)

    async def mark(self) -> None:
        options = {"copartitioned": self.chance.choice(SETS), "warm_concurrency": self.chance.choice([1, 100])}
        await self.cluster.set_options(**options)


def settled(state: GroupState) -> bool:
    wanted = {
        TopicPartition(topic, number)
        for topic, config in state.topics.items()
        if any(consumer.record.wants(topic) for consumer in state.consumers.values())
        for number in range(config.record.partition_count)
    }
    held = {tp: state.consumers.get(stored.record.owner) for tp, stored in state.assignments.items()}
    # What somebody who died had, and nobody wants, stays on record as it was.
    owned = {tp for tp, owner in held.items() if owner or tp in wanted}
    rightly = all(owner.record.wants(tp.topic) for tp, owner in held.items() if owner)
    return not state.handoffs and owned == wanted and rightly and all(held[tp] for tp in wanted)


async def epochs_only_rise(cluster: Cluster) -> None:
    last: dict[TopicPartition, int] = {}
    for event in await cluster.history():
        key = cluster.group.parse(event.entry.key) if isinstance(event, PutEvent) else None
        if isinstance(key, AssignmentKey) and isinstance(event, PutEvent):
            epoch = decode(Assignment, event.entry.value)[0].epoch
            assert epoch > last.get(key.tp, 0), f"{key.tp} had epoch {last[key.tp]}, and {epoch} after that"
            last[key.tp] = epoch


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_goes_nobody_is_stuck(cluster_in_either_mode: Cluster, seed: int) -> None:
    course = Course(cluster_in_either_mode, seed)
    for topic in TOPICS:
        await cluster_in_either_mode.add_topic(topic, partitions=4)
    await cluster_in_either_mode.start_instance("i1", leads=True)
    await cluster_in_either_mode.start_instance("i2", leads=True)
    for _ in range(40):
        await course.step()
        if cluster_in_either_mode.options.handoff_mode is HandoffMode.EXCLUSIVE:
            believed = [tp for c in cluster_in_either_mode.consumers.values() if c.ended is None for tp in c.owned]
            assert len(believed) == len(set(believed)), "two believe that they own a partition"
    for consumer in course.leaving:
        await consumer.until("ended", lambda c: c.ended is not None, within=5 * cluster_in_either_mode.ttl)
    await cluster_in_either_mode.set_options(copartitioned=())
    await cluster_in_either_mode.until("settled", settled, within=10 * cluster_in_either_mode.ttl)
    await epochs_only_rise(cluster_in_either_mode)
