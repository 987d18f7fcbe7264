"""Handoffs as a program on the client library lives through them: called off at any moment, handlers that fail, calls
about one partition after another, warms side by side.
"""

from __future__ import annotations

from collections import Counter

import anyio
import msgspec
import pytest

from assigner.client import AssignerConsumer, Handler, Ownership, Release, TopicPartition, Warm
from assigner.model.records import HandoffMode, encode
from assigner.store import Delete, Store
from assigner.testing.counting import CountingStore
from assigner.testing.waiting import eventually
from tests.support.clients.library_consumers import PATIENCE, consuming, owns, serving
from tests.support.clients.recording_handler import Recorder
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.network.tcp_proxy import proxied
from tests.support.stepped_consumer import SteppedConsumer

either_mode = pytest.mark.parametrize("mode", list(HandoffMode), ids=lambda mode: mode.value)


def calls_about(handler: Recorder, partition: TopicPartition) -> list[str]:
    """The kinds of the calls about a partition, in their order."""
    about = f" t/{partition.partition}"
    return [call.replace(about, "").partition("@")[0] for call in handler.calls if about in call]


async def die(cluster: Cluster, consumer: SteppedConsumer) -> None:
    """The process is gone, and so is its lease."""
    consumer.crash()
    await cluster.store.revoke((await cluster.state()).consumers[consumer.name].lease)


async def one_to_release(cluster: Cluster, a: AssignerConsumer, handler: Recorder) -> TopicPartition:
    """`b` joins and is warm; the handler of `a` is asked to release one of two partitions. Which one."""
    await cluster.join("b", cluster.services["s1"].instance, answers_release=False)
    await eventually(lambda: any(call.startswith("release") for call in handler.calls), within=PATIENCE)
    (call,) = (call for call in handler.calls if call.startswith("release"))
    return tp(int(call.removeprefix("release t/").partition("@")[0]))


# --- called off ----------------------------------------------------------------------------------------------------


@either_mode
async def test_an_owner_whose_release_is_called_off_works_on_under_a_higher_epoch(
    wired_cluster: Cluster, mode: HandoffMode
) -> None:
    """The new owner dies while the old one's handler is still at it, before the flip or, with overlap, after it."""
    cluster, handler, may_end = wired_cluster, Recorder(), anyio.Event()
    await cluster.set_options(handoff_mode=mode)
    await serving(cluster, partitions=2)
    handler.during["release"] = may_end.wait
    async with consuming(cluster, handler) as a:
        before = await owns(a, 2)
        moving = await one_to_release(cluster, a, handler)
        assert moving not in a.partitions
        await die(cluster, cluster.consumers["b"])
        await cluster.until_counts(a=2)
        may_end.set()
        after = await owns(a, 2)
        assert after[moving] > before[moving]
        assert calls_about(handler, moving) == ["assigned", "release", "assigned"]


@either_mode
async def test_a_release_that_failed_leaves_a_partition_that_can_be_worked_on_again(
    wired_cluster: Cluster, mode: HandoffMode
) -> None:
    """Its work goes on while the release is called off, so it was not acked either."""
    cluster, handler = wired_cluster, Recorder()
    await cluster.set_options(handoff_mode=mode)
    await serving(cluster, partitions=2)

    async def fail() -> None:
        raise RuntimeError("flush failed")

    handler.during["release"] = fail
    async with consuming(cluster, handler) as a:
        before = await owns(a, 2)
        work = [a.gate("t", number).enter() for number in (0, 1)]
        for one in work:
            one.__enter__()
        moving = await one_to_release(cluster, a, handler)
        await die(cluster, cluster.consumers["b"])
        await cluster.until_counts(a=2)
        for one in work:
            one.__exit__(None, None, None)
        after = await owns(a, 2)
        assert after[moving] > before[moving]
        assert a.statistics().handler_failures == 1


async def test_an_owner_that_fails_to_take_its_partition_back_tries_again(wired_cluster: Cluster) -> None:
    cluster, handler, may_end = wired_cluster, Recorder(), anyio.Event()
    await serving(cluster, partitions=2)
    handler.during["release"] = may_end.wait
    failures: list[None] = []

    async def fail_twice() -> None:
        if len(failures) < 2:
            failures.append(None)
            raise RuntimeError("not yet")

    async with consuming(cluster, handler) as a:
        await owns(a, 2)
        moving = await one_to_release(cluster, a, handler)
        handler.during["assigned"] = fail_twice
        await die(cluster, cluster.consumers["b"])
        await cluster.until_counts(a=2)
        may_end.set()
        await owns(a, 2)
        assert calls_about(handler, moving) == ["assigned", "release", "assigned", "assigned", "assigned"]


async def test_a_partition_that_a_cancelled_handoff_leaves_unassigned_is_given_up(wired_cluster: Cluster) -> None:
    """Handoff and assignment are deleted by an operator, in a group that is paused so that nobody plans them anew."""
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster, partitions=2)
    async with consuming(cluster, handler) as a:
        await owns(a, 2)
        b = await cluster.join("b", service.instance, answers_warm=False)
        await b.until("asked to warm", lambda c: bool(c.to_warm))
        (moving,) = b.to_warm
        await cluster.set_options(paused=True)
        keys = [cluster.group.handoff(moving), cluster.group.assignment(moving)]
        await cluster.store.transact([], [Delete(key) for key in keys])
        await eventually(lambda: a.statistics().revoked == 1, within=PATIENCE)
        await b.until("told so", lambda c: not c.to_warm)
        assert set(a.partitions) == {tp(1 - moving.partition)}
        assert calls_about(handler, moving) == ["assigned", "revoked"]


async def test_an_owner_that_has_released_stays_out_when_the_handoff_is_deleted_and_after_a_reconnect(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster, partitions=2)
    async with proxied(service.address) as proxy, consuming(cluster, handler, addresses=[proxy.endpoint]) as a:
        await owns(a, 2)
        await cluster.join("b", service.instance)
        (moved,) = (await cluster.until_counts(a=1, b=1)).owned["b"]
        await owns(a, 1)
        proxy.cut()
        await eventually(lambda: a.statistics().links == 2, within=PATIENCE)
        assert set(a.partitions) == {tp(1 - moved.partition)}
        assert calls_about(handler, moved) == ["assigned", "release"]
        assert a.statistics().pending_acks == 0


async def test_a_warm_that_is_under_way_when_its_handoff_is_given_up_is_cancelled(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    await cluster.set_options(warming_timeout=1.0, balance_backoff=600.0)
    service = await serving(cluster, partitions=2)
    await cluster.join("a", service.instance)
    await cluster.until_counts(a=2)
    handler.during["warm"] = anyio.sleep_forever
    async with consuming(cluster, handler, "b") as b:
        await eventually(lambda: any("cancelled" in call for call in handler.calls), within=PATIENCE)
        assert [call.partition(" t/")[0] for call in handler.calls] == ["warm", "cancelled warm"]
        await cluster.until_counts(a=2)
        assert b.statistics().pending_acks == 0


async def test_a_warm_that_has_ended_is_discarded_when_its_handoff_is_given_up(wired_cluster: Cluster) -> None:
    """The partition was frozen for a router that never acks."""
    cluster, handler = wired_cluster, Recorder()
    await cluster.set_options(freeze_timeout=1.0, balance_backoff=600.0)
    service = await serving(cluster, partitions=2)
    await cluster.route("silent", service.instance, acks_freezes=False)
    await cluster.join("a", service.instance)
    await cluster.until_counts(a=2)
    async with consuming(cluster, handler, "b"):
        await eventually(lambda: len(handler.calls) == 2, within=PATIENCE)
        assert [call.partition(" ")[0] for call in handler.calls] == ["warm", "discard"]
        await cluster.until_counts(a=2)


async def test_a_partition_is_warmed_for_another_handoff_when_the_warm_for_the_one_before_has_ended(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster, partitions=2)
    await cluster.join("a", service.instance)
    await cluster.until_counts(a=2)
    handler.during["warm"] = anyio.sleep_forever
    async with consuming(cluster, handler, "b") as b:
        await eventually(lambda: bool(handler.calls), within=PATIENCE)
        ((moving, before),) = (await cluster.state()).handoffs.items()
        del handler.during["warm"]
        await cluster.store.put(before.key, encode(msgspec.structs.replace(before.record, handoff_id="another")))
        assert set(await owns(b, 1)) == {moving}
        assert [call.partition(" t/")[0] for call in handler.calls] == ["warm", "cancelled warm", "warm", "assigned"]


# --- processes that come back ----------------------------------------------------------------------------------------


async def test_a_restarted_consumer_loads_its_partitions_again_under_higher_epochs(wired_cluster: Cluster) -> None:
    cluster, first, second = wired_cluster, Recorder(), Recorder()
    await serving(cluster)
    async with consuming(cluster, first) as killed:
        before = await owns(killed, 4)
        assert killed._task is not None
        killed._task.cancel()
        async with consuming(cluster, second) as a:
            after = await owns(a, 4)
            assert all(after[one] > epoch for one, epoch in before.items())
            assert Counter(call.partition(" ")[0] for call in second.calls) == {"assigned": 4}
            assert not killed.partitions


async def test_a_consumer_that_reconnects_while_it_warms_is_not_asked_to_begin_again(wired_cluster: Cluster) -> None:
    cluster, handler, may_end = wired_cluster, Recorder(), anyio.Event()
    service = await serving(cluster, partitions=2)
    await cluster.join("a", service.instance)
    await cluster.until_counts(a=2)
    handler.during["warm"] = may_end.wait
    async with proxied(service.address) as proxy, consuming(cluster, handler, "b", addresses=[proxy.endpoint]) as b:
        await eventually(lambda: b.statistics().warming == 1, within=PATIENCE)
        proxy.cut()
        await eventually(lambda: b.statistics().links == 2, within=PATIENCE)
        may_end.set()
        await owns(b, 1)
        assert [call.partition(" ")[0] for call in handler.calls] == ["warm", "assigned"]


# --- side by side, and one after another ---------------------------------------------------------------------------


class Busy(Handler):
    """Each call takes a moment. Counts the warms at a time, and notes calls that overlap another of the partition."""

    def __init__(self) -> None:
        self.at_work: Counter[TopicPartition] = Counter()
        self.overlaps: list[str] = []
        self.warms = self.most_warms = self.calls = 0
        self.warms_wait_for = 0
        """A warm does not end before that many run at a time."""

    async def _work(self, kind: str, partition: TopicPartition) -> None:
        self.calls += 1
        self.at_work[partition] += 1
        if self.at_work[partition] > 1:
            self.overlaps.append(f"{kind} {partition}")
        try:
            await anyio.sleep(0.01)
        finally:
            self.at_work[partition] -= 1

    async def assigned(self, partition: Ownership) -> None:
        await self._work("assigned", partition.tp)

    async def release(self, partition: Ownership, order: Release) -> None:
        await self._work("release", partition.tp)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        await self._work("revoked", partition.tp)

    async def discard(self, partition: TopicPartition) -> None:
        await self._work("discard", partition)

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        self.warms += 1
        self.most_warms = max(self.most_warms, self.warms)
        try:
            await self._work("warm", partition)
            await eventually(lambda: self.most_warms >= self.warms_wait_for, within=PATIENCE)
        finally:
            self.warms -= 1


async def test_warms_of_several_partitions_run_side_by_side(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Busy()
    service = await serving(cluster, partitions=12)
    await cluster.join("a", service.instance)
    await cluster.until_counts(a=12)
    handler.warms_wait_for = 6
    async with consuming(cluster, handler, "b") as b:
        await owns(b, 6)
        assert handler.most_warms == 6


async def test_a_consumer_runs_no_more_warms_at_a_time_than_it_allows(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Busy()
    service = await serving(cluster, partitions=12)
    await cluster.join("a", service.instance)
    await cluster.until_counts(a=12)
    handler.warms_wait_for = 2
    async with consuming(cluster, handler, "b", warm_concurrency=2) as b:
        await owns(b, 6)
        assert handler.most_warms == 2


@either_mode
async def test_calls_about_one_partition_never_overlap_while_consumers_come_go_and_lose_their_leases(
    wired_cluster: Cluster, mode: HandoffMode
) -> None:
    cluster = wired_cluster
    await cluster.set_options(handoff_mode=mode)
    await serving(cluster, partitions=12)
    handlers = {name: Busy() for name in "abc"}
    async with consuming(cluster, handlers["a"]) as a:
        await owns(a, 12)
        async with consuming(cluster, handlers["b"], "b") as b:
            await owns(b, 6)
            async with consuming(cluster, handlers["c"], "c") as c:
                await owns(c, 4)
                for name in "ab":
                    await cluster.store.revoke((await cluster.state()).consumers[name].lease)
                await eventually(lambda: a.statistics().revoked * b.statistics().revoked > 0, within=PATIENCE)
                await c.drain(timeout=PATIENCE)
            await cluster.until_counts(a=6, b=6)
            await owns(b, 6)
        await owns(a, 12)
    assert not [handler.overlaps for handler in handlers.values() if handler.overlaps]
    assert all(handler.calls > 4 for handler in handlers.values())


# --- nothing to do -------------------------------------------------------------------------------------------------


async def test_reconcile_passes_of_a_settled_group_call_no_handler_and_write_nothing(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    counted: list[CountingStore] = []

    def wrap(store: Store) -> Store:
        counted.append(CountingStore(store))
        return counted[0]

    service = await serving(cluster, wrap=wrap, reconcile_interval=0.5)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        await cluster.join("b", service.instance)
        await cluster.until_counts(a=2, b=2)
        await owns(a, 2)
        await eventually(lambda: service.instance.coordinators.active[GROUP].core.settled, within=PATIENCE)
        since = await cluster.until_quiet()
        calls = list(handler.calls)
        passes = counted[0].requests["list"]
        await eventually(lambda: counted[0].requests["list"] >= passes + 5, within=PATIENCE)
        assert handler.calls == calls
        assert await cluster.history(since) == []
