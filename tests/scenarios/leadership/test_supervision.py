"""The loops of an instance: one that fails is restarted and told of, and the service goes on.

Each case breaks one step of one loop, once, under a group at work; then everything that an instance does is asked of
it. A loop that keeps failing makes /livez fail."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from assigner.aio import supervision
from assigner.api import OffsetCommit
from assigner.core.loads.weights import LoadSettings
from assigner.instance import Instance
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, GROUP, Cluster, cluster_on, tp
from tests.support.servers.etcd import RunningEtcd

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def etcd_cluster(request: pytest.FixtureRequest, etcd_server: RunningEtcd) -> AsyncIterator[Cluster]:
    async with cluster_on("etcd", request, etcd_ttl=EXPIRES) as cluster:
        yield cluster


def _leadership(instance: Instance) -> Any:
    return instance.leadership


def _elector(instance: Instance) -> Any:
    return instance._elector


STEPS: dict[str, Callable[[Instance], tuple[Any, str]]] = {
    "mirror": lambda instance: (instance.mirrors.get(GROUP), "_apply"),
    "batch writer": lambda instance: (instance.members._writer, "_fitting"),
    "offset writer": lambda instance: (instance.offsets._writer.queue, "take"),
    "load reports": lambda instance: (instance.load_reports._samples, "forget"),
    "known groups": lambda instance: (_leadership(instance)._groups, "_apply"),
    "live instances": lambda instance: (_leadership(instance)._instances, "_apply"),
    "leadership": lambda instance: (_leadership(instance), "_hand_over"),
    "campaign": lambda instance: (_elector(instance), "campaign"),
    "instance lease": lambda instance: (_elector(instance)._lease, "_renew_once"),
    "presence": lambda instance: (_elector(instance)._lease, "_until_absent"),
    "leader key": lambda instance: (_elector(instance), "_until_changed"),
    "topic refresh": lambda instance: (instance.topics, "refresh"),
    "store's life": lambda instance: (instance.incarnation, "id"),
}
"""By the loop's name: a step that it takes in what `everything` does."""
OF_ONE_GROUP = ("mirror", "campaign", "leader key", "topic refresh")
"""Loops that work for one group."""
LISTING_FIRST = ("mirror", "known groups", "live instances")
"""Loops that wait for events, and take a listing at each start."""


class Break:
    """Raises in place of a step, as often as it is told."""

    def __init__(self, part: Any, step: str, times: float) -> None:
        self._step = getattr(part, step)
        self._times = times
        self.raised = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.raised >= self._times:
            return self._step(*arguments, **named)
        self.raised += 1
        error = KeyError("a bug")
        if not inspect.iscoroutinefunction(self._step):
            raise error
        return self._fail(error)

    async def _fail(self, error: Exception) -> None:
        raise error


def break_loop(monkeypatch: pytest.MonkeyPatch, instance: Instance, loop: str, times: float = 1) -> Break:
    part, step = STEPS[loop](instance)
    # Without Kafka there is nothing to follow, but a loop that would.
    monkeypatch.setattr(type(instance.topics), "follows_kafka", True)
    broken = Break(part, step, times)
    monkeypatch.setattr(part, step, broken)
    return broken


def restarts(instance: Instance) -> dict[str, int]:
    return {**instance.supervisor.restarts, **_elector(instance)._lease.supervisor.restarts}


async def at_work(cluster: Cluster) -> Instance:
    await cluster.add_topic("t", 4)
    instance = await cluster.start_instance("i1", loads=LoadSettings(interval=cluster.ttl / 2))
    await cluster.join("a", instance)
    await cluster.until_counts(a=4)
    return instance


async def everything(cluster: Cluster, instance: Instance) -> None:
    """The presence and the leader key lost, offsets, another group and another instance, moves, and some time."""
    a = cluster.consumers["a"]
    await cluster.store.delete(cluster.keys.instance("i1"))
    await cluster.store.delete(cluster.group.leader)
    with anyio.move_on_after(cluster.ttl):
        await instance.offsets.commit(GROUP, "a", a.session, [OffsetCommit(tp(0), a.owned[tp(0)], 1)])
    await instance.operations.set_topic("h", "u", 2)
    await cluster.start_instance("i2")
    await cluster.join("b", instance)
    await anyio.sleep(2 * cluster.ttl)
    await cluster.until_counts(a=2, b=2, within=60)
    await instance.operations.set_topic("k", "u", 2)
    await anyio.sleep(1)


@pytest.mark.parametrize("loop", STEPS)
async def test_a_loop_that_fails_is_restarted_and_the_service_goes_on(
    loop: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await goes_on_after_a_failure(loop, cluster, monkeypatch, caplog)


@pytest.mark.parametrize("loop", ["mirror", "instance lease", "leader key"])
async def test_a_loop_that_fails_is_restarted_and_the_service_goes_on_with_etcd(
    loop: str, etcd_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await goes_on_after_a_failure(loop, etcd_cluster, monkeypatch, caplog)


async def goes_on_after_a_failure(
    loop: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await at_work(cluster)
    broken = break_loop(monkeypatch, instance, loop)
    await everything(cluster, instance)
    assert broken.raised == 1, "the case breaks a step that is taken"
    assert restarts(instance)[loop] == 1
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR and record.exc_info]
    assert any(loop in line and "a bug" in line for line in told)
    owner = cluster.consumers["a"] if tp(0) in cluster.consumers["a"].owned else cluster.consumers["b"]
    assert not await instance.offsets.commit(
        GROUP, owner.name, owner.session, [OffsetCommit(tp(0), owner.owned[tp(0)], 2)]
    )
    assert not instance.failures()
    assert not instance.problems()


async def test_a_term_whose_decisions_fail_ends_and_the_next_one_goes_on_in_the_same_process(
    any_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = any_cluster
    instance = await at_work(cluster)
    coordinator, before = instance.coordinators.active[GROUP], await cluster.state()
    broken = Break(coordinator.core, "decide", float("inf"))
    monkeypatch.setattr(coordinator.core, "decide", broken)
    b = await cluster.join("b", instance)
    after = await cluster.until_counts(a=2, b=2)
    assert broken.raised == 1
    assert instance.coordinators.active[GROUP] is not coordinator
    assert before.leader
    assert after.leader
    assert after.leader.create_revision > before.leader.create_revision
    assert b.ended is None
    assert cluster.consumers["a"].ended is None


async def test_rule_19_a_loop_that_ended_in_silence_is_started_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a cancellation that nobody has asked for, such as some libraries raise: asyncio ends a task by it, unseen."""
    instance = await at_work(cluster)
    leadership = _leadership(instance)
    whole = leadership._hand_over

    def ends() -> None:
        monkeypatch.setattr(leadership, "_hand_over", whole)
        raise asyncio.CancelledError

    monkeypatch.setattr(leadership, "_hand_over", ends)
    for group in ("h", "k"):
        await instance.operations.set_topic(group, "u", 2)
        await anyio.sleep(1)
    await eventually(lambda: {"h", "k"} <= set(leadership.led), within=60, what="new groups that are led")


@pytest.mark.parametrize("loop", [loop for loop in STEPS if loop not in {"load reports", *OF_ONE_GROUP}])
async def test_rule_19_a_loop_that_keeps_failing_fails_livez(
    loop: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await at_work(cluster)
    broken = break_for_good(monkeypatch, instance, loop)
    cluster.tasks.start_soon(everything_as_far_as_it_goes, cluster, instance)
    await eventually(lambda: bool(instance.failures()), within=600, every=1)
    assert sum(step.raised for step in broken) >= supervision.HOPELESS
    assert any(problem.startswith(loop) for problem in instance.failures())


@pytest.mark.parametrize("loop", OF_ONE_GROUP)
async def test_the_loop_of_one_group_that_keeps_failing_leaves_the_process_and_other_groups_alone(
    loop: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await at_work(cluster)
    broken = break_for_good(monkeypatch, instance, loop)
    cluster.tasks.start_soon(everything_as_far_as_it_goes, cluster, instance)
    await eventually(lambda: sum(step.raised for step in broken) > 2 * supervision.HOPELESS, within=600, every=1)
    assert not instance.failures()


def break_for_good(monkeypatch: pytest.MonkeyPatch, instance: Instance, loop: str) -> list[Break]:
    broken = [break_loop(monkeypatch, instance, loop, times=float("inf"))]
    if loop in LISTING_FIRST:
        part, _ = STEPS[loop](instance)
        broken.append(Break(part._loop, "_list", float("inf")))
        monkeypatch.setattr(part._loop, "_list", broken[-1])
    return broken


async def everything_as_far_as_it_goes(cluster: Cluster, instance: Instance) -> None:
    with anyio.CancelScope():
        try:
            await everything(cluster, instance)
        except Exception:  # noqa: BLE001 - with a loop that is broken for good it must fail somewhere
            return
