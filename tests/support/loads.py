"""Loads in scenarios: what consumers report, what is stored, and the weights that plans go by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from assigner.api import LoadReceipt, LoadReport, TopicLoads
from assigner.core.group import GroupState
from assigner.core.loads.records import read
from assigner.core.loads.weights import LoadSettings
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.records import Loads, decode
from assigner.store import Found
from assigner.strategies.sticky_balanced import strategy as sticky_balanced
from assigner.strategy import FloatArray, Problem, Solution
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, QUICK, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

SLOW = LoadSettings()
FAST = LoadSettings(interval=0.3, smoothing=0.2, stale_after=60.0, rebalance_interval=0.5)
"""For a store that keeps real time."""
BY_LOAD = msgspec.structs.replace(QUICK, use_loads=True)


class Weighing:
    """`sticky_balanced`, with the problems it was given kept for a look."""

    name = "sticky_balanced"

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def assign(self, problem: Problem) -> Solution:
        self.problems.append(problem)
        return sticky_balanced.assign(problem)

    @property
    def weights(self) -> list[FloatArray | None]:
        return [problem.topics.weight for problem in self.problems]


async def report(
    consumer: SteppedConsumer, loads: dict[int, float], *, node: float | None = None, topic: str = "t"
) -> LoadReceipt:
    assert consumer.instance is not None
    told = TopicLoads(topic, tuple(loads), tuple(loads.values()))
    return await consumer.instance.members.report_load(
        GROUP, consumer.name, consumer.session, LoadReport((told,) if loads else (), node)
    )


async def report_own(consumer: SteppedConsumer, load: Callable[[TopicPartition], float]) -> None:
    await report(consumer, {one.partition: load(one) for one in consumer.owned})


async def stored(cluster: Cluster, key: str) -> Loads | None:
    found = await cluster.store.get(key)
    return decode(Loads, found.entry.value)[0] if isinstance(found, Found) else None


async def written(cluster: Cluster, topic: str = "t") -> dict[int, float]:
    """Loads as they are stored."""
    record = await stored(cluster, cluster.keys.topic_loads(GROUP, topic))
    loads = read(record).at(cluster.clock.wall()).tolist() if record else []
    return {number: load for number, load in enumerate(loads) if load == load}


async def until_written(cluster: Cluster, holds: Callable[[dict[int, float]], bool], within: float = 200.0) -> None:
    async def check() -> bool:
        return holds(await written(cluster))

    await eventually(check, within=within, every=0.1, what="loads are written")


def owns_hot(state: GroupState) -> set[TopicPartition]:
    """All that the owner of partition 0 owns."""
    held = state.assignments[tp(0)]
    return state.owned[held.record.owner]


async def hot_group(cluster: Cluster, instance: Instance) -> list[SteppedConsumer]:
    """Twelve partitions on three consumers; the first partition weighs as much as six others."""
    await cluster.add_topic(partitions=12)
    consumers = [await cluster.join(name, instance) for name in ("a", "b", "c")]
    await cluster.until_counts(a=4, b=4, c=4)
    for consumer in consumers:
        await report_own(consumer, hot)
    return consumers


def hot(one: TopicPartition) -> float:
    return 6.0 if one.partition == 0 else 1.0


async def reads_as(wanted: Any, look: Callable[[], Awaitable[Any]]) -> bool:
    """Say whether a look at the store gives what is wanted."""
    return bool(await look() == wanted)
