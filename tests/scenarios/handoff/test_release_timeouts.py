"""A consumer may ask for a time of its own to release partitions, in place of the group's."""

from __future__ import annotations

import anyio
import pytest

from assigner.errors import Evicted, InvalidInput
from assigner.instance import Instance
from tests.support.cluster import Cluster
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


async def asked_to_release(
    cluster: Cluster, instance: Instance | None = None, **registration: float
) -> SteppedConsumer:
    instance = instance or await cluster.start_instance()
    await cluster.add_topic(partitions=2)
    a = await cluster.join("a", instance, answers_release=False, **registration)
    await cluster.until_counts(a=2)
    await cluster.join("b", instance)
    await a.until("asked to release", lambda a: bool(a.to_release))
    return a


async def until_given_up(cluster: Cluster, consumer: SteppedConsumer, after: float) -> None:
    """Until it is evicted or, in exclusive groups, the move is abandoned."""
    began = cluster.clock.now()
    (moving,) = consumer.to_release

    def is_over(consumer: SteppedConsumer) -> bool:
        return isinstance(consumer.ended, Evicted) or consumer.owned.get(moving) == 2

    await consumer.until("its time is over", is_over, within=after + 10)
    assert cluster.clock.now() - began == pytest.approx(after, abs=1)


@pytest.mark.parametrize("own", [20.0, 120.0])
async def test_a_consumers_own_time_counts_in_place_of_the_groups(cluster_in_either_mode: Cluster, own: float) -> None:
    await cluster_in_either_mode.set_options(release_timeout=60.0)
    a = await asked_to_release(cluster_in_either_mode, release_timeout=own)
    await until_given_up(cluster_in_either_mode, a, own)


async def test_one_that_asks_for_none_has_the_groups(cluster_in_either_mode: Cluster) -> None:
    await cluster_in_either_mode.set_options(release_timeout=60.0)
    a = await asked_to_release(cluster_in_either_mode)
    await until_given_up(cluster_in_either_mode, a, 60.0)


async def test_a_new_leader_gives_it_the_same_time_again(cluster_in_either_mode: Cluster) -> None:
    cluster = cluster_in_either_mode
    await cluster.set_options(release_timeout=10.0)
    served = await cluster.start_instance("i1", leads=False)
    await cluster.start_instance("i2")
    a = await asked_to_release(cluster, served, release_timeout=100.0)
    await anyio.sleep(50)
    await cluster.stop_instance("i2")
    await cluster.start_instance("i3")
    await until_given_up(cluster, a, 100.0)


async def test_a_consumer_that_drains_has_its_own_time(cluster: Cluster) -> None:
    await cluster.set_options(release_timeout=10.0)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False, release_timeout=90.0)
    await cluster.until_counts(a=2)
    await a.deregister()
    await a.until("asked to release", lambda a: len(a.to_release) == 2)
    began = cluster.clock.now()
    await a.until("evicted", lambda a: isinstance(a.ended, Evicted), within=100)
    assert cluster.clock.now() - began == pytest.approx(90, abs=1)


async def test_the_time_is_kept_within_bounds(any_cluster: Cluster) -> None:
    await any_cluster.start_instance()
    for wanted, kept in ((0.0, 0.0), (0.01, 1.0), (300.0, 300.0), (1e9, 3600.0)):
        a = await any_cluster.join("a", release_timeout=wanted)
        assert (await any_cluster.state()).consumers["a"].record.release_timeout == kept
        a.crash()


@pytest.mark.parametrize("wanted", [-1.0, float("nan"), float("inf")])
async def test_what_is_no_time_is_refused(cluster: Cluster, wanted: float) -> None:
    instance = await cluster.start_instance()
    a = SteppedConsumer(cluster, "a", release_timeout=wanted)
    with pytest.raises(InvalidInput, match="release_timeout is"):
        await a.connect(instance)
