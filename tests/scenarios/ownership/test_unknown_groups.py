"""A name that no group bears costs next to nothing, creates nothing, and is not mistaken for a new group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from assigner.api import CommitRefusal, LoadReport, NewOffset, OffsetCommit, Registration
from assigner.errors import FailedPrecondition, LimitReached, NotRegistered, UnknownGroup
from assigner.instance import Instance
from assigner.model.commands import Ack
from assigner.model.records import GroupOptions
from assigner.observability.metrics import Metrics
from assigner.settings.model import QuotaSection
from assigner.storage.groups import make_known
from assigner.storage.mirror import Mirrors
from assigner.store import Progress, Store, WatchItem, read_all
from assigner.testing.counting import CountingStore
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster, tp

pytestmark = pytest.mark.virtual_time


Call = Callable[[Instance, str], Awaitable[Any]]

CONSUMERS: dict[str, Call] = {
    "renew": lambda i, group: i.members.renew(group, "a", "s"),
    "ready": lambda i, group: i.members.ready(group, "a", "s", [Ack(tp(0))]),
    "released": lambda i, group: i.members.released(group, "a", "s", [Ack(tp(0))]),
    "deregister": lambda i, group: i.members.deregister(group, "a", "s", gates_closed=True),
    "report_load": lambda i, group: i.members.report_load(group, "a", "s", LoadReport()),
}
OPERATORS: dict[str, Call] = {
    "describe": lambda i, group: i.operations.describe(group),
    "topics": lambda i, group: i.operations.topics(group),
    "loads": lambda i, group: i.operations.loads(group, 20),
    "pause": lambda i, group: i.operations.set_options(group, {"paused": True}),
    "rebalance": lambda i, group: i.operations.rebalance(group),
    "set_loads": lambda i, group: i.operations.set_loads(group, [], 60.0, keep_others=False),
    "set_offsets": lambda i, group: i.operations.set_offsets(group, {tp(0): NewOffset(1)}, force=False),
    "set_topic": lambda i, group: i.operations.set_topic(group, "t", 1, create=False),
    "drain": lambda i, group: i.operations.drain(group, "a"),
}


def counted(cluster: Cluster) -> tuple[Callable[[Store], Store], list[CountingStore]]:
    made: list[CountingStore] = []

    def wrap(store: Store) -> Store:
        made.append(CountingStore(store))
        return made[0]

    return wrap, made


class DeafToTheIndex(CountingStore):
    """Its watch on the index tells nothing."""

    def __init__(self, inner: Store, index: str) -> None:
        super().__init__(inner)
        self._index = index

    def watch(self, prefix: str, *, start_revision: int) -> AbstractAsyncContextManager[AsyncIterator[WatchItem]]:
        return _silence() if prefix == self._index else super().watch(prefix, start_revision=start_revision)


@asynccontextmanager
async def _silence() -> AsyncIterator[AsyncIterator[WatchItem]]:
    async def nothing() -> AsyncGenerator[WatchItem, None]:
        await anyio.sleep_forever()
        yield Progress(0)

    async with aclosing(nothing()) as items:
        yield items


async def keys_of(cluster: Cluster, group: str) -> list[str]:
    prefix = cluster.keys.group(group).prefix
    entries = [
        *(await read_all(cluster.store, prefix)).entries,
        *(await read_all(cluster.store, cluster.keys.groups)).entries,
    ]
    return [entry.key for entry in entries if group in entry.key]


@pytest.mark.parametrize("call", CONSUMERS)
async def test_a_call_for_an_unknown_group_is_not_registered_and_no_mirror_is_opened(
    any_cluster: Cluster, call: str
) -> None:
    instance = await any_cluster.start_instance()
    with pytest.raises(NotRegistered, match="register"):
        await CONSUMERS[call](instance, "nobodys")
    assert instance.mirrors.open == 0
    assert await keys_of(any_cluster, "nobodys") == []


@pytest.mark.parametrize("call", OPERATORS)
async def test_an_operators_call_for_an_unknown_group_fails_and_none_is_made(any_cluster: Cluster, call: str) -> None:
    instance = await any_cluster.start_instance()
    with pytest.raises(UnknownGroup, match="'biling'"):
        await OPERATORS[call](instance, "biling")
    assert instance.mirrors.open == 0
    assert await keys_of(any_cluster, "biling") == []


async def test_a_commit_in_an_unknown_group_is_refused_without_a_mirror(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    refused = await instance.offsets.commit("nobodys", "a", "s", [OffsetCommit(tp(0), 1, 5)])
    assert [one.why for one in refused] == [CommitRefusal.UNKNOWN_PARTITION]
    assert instance.mirrors.open == 0


async def test_options_and_topics_may_begin_a_group_where_that_is_meant(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance()
    await instance.operations.set_options("early", {"debounce": 2.0}, create=True)
    await instance.operations.set_topic("earlier", "t", 3)
    assert {one.group for one in await instance.operations.groups()} == {"early", "earlier"}


async def test_an_unknown_group_costs_one_read_and_a_known_one_none(cluster: Cluster) -> None:
    wrap, made = counted(cluster)
    await cluster.add_topic()
    instance = await cluster.start_instance(wrap=wrap)
    await eventually(lambda: instance.leadership is not None and GROUP in instance.leadership.led)
    for call in ("renew", "ready", "report_load"):
        made[0].reset()
        with pytest.raises(NotRegistered):
            await CONSUMERS[call](instance, "nobodys")
        assert dict(made[0].requests) == {"get": 1}


async def test_a_group_that_another_instance_just_made_is_found_at_once(any_cluster: Cluster) -> None:
    """Also before the index has told of it: its key is read."""
    instance = await any_cluster.start_instance(wrap=lambda store: DeafToTheIndex(store, any_cluster.keys.groups))
    for number in range(5):
        group = f"new-{number}"
        await make_known(any_cluster.store, any_cluster.keys, group)
        assert (await instance.operations.topics(group)) == []


async def test_a_group_whose_index_entry_was_lost_is_entered_again_by_its_next_consumer(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    instance = await any_cluster.start_instance()
    await any_cluster.join("a")
    await any_cluster.until_counts(a=4)
    await any_cluster.store.delete(any_cluster.keys.group_index(GROUP))
    await eventually(lambda: instance.leadership is not None and GROUP not in instance.leadership.led)
    await any_cluster.join("b")
    await any_cluster.until_counts(a=2, b=2)


# --- mirrors -----------------------------------------------------------------------------------------------------


async def test_mirrors_that_nobody_uses_are_few_and_the_oldest_goes_first(cluster: Cluster) -> None:
    for number in range(6):
        await make_known(cluster.store, cluster.keys, f"g{number}")
    async with Mirrors(cluster.store, cluster.keys, GroupOptions(), max_idle=3).running() as mirrors:
        async with mirrors.of("g0"):
            for number in range(1, 6):
                async with mirrors.of(f"g{number}"):
                    pass
            assert [mirrors.get(f"g{number}") is not None for number in range(6)] == [
                True, False, False, True, True, True,
            ]  # fmt: skip
        async with mirrors.of("g1") as again:
            assert again.listings == 1


async def test_a_mirror_that_is_used_again_is_not_the_oldest_any_more(cluster: Cluster) -> None:
    async with Mirrors(cluster.store, cluster.keys, GroupOptions(), max_idle=2).running() as mirrors:
        for name in ("a", "b", "a", "c"):
            async with mirrors.of(name):
                pass
        assert mirrors.get("a") is not None
        assert mirrors.get("b") is None


async def test_there_is_room_for_a_led_group_when_there_is_none_for_others(cluster: Cluster) -> None:
    metrics = Metrics()
    mirrors = Mirrors(cluster.store, cluster.keys, GroupOptions(), most=4, reserved=2, refused=metrics.refused)
    async with mirrors.running(), mirrors.of("a"), mirrors.of("b"):
        with pytest.raises(LimitReached, match="2 groups"):
            async with mirrors.of("c"):
                pass
        async with mirrors.of("led-1", leads=True), mirrors.of("led-2", leads=True):
            with pytest.raises(LimitReached):
                async with mirrors.of("led-3", leads=True):
                    pass
    text = metrics.render_here().decode()
    assert 'assigner_refusals_total{reason="groups"} 2.0' in text


async def test_an_unused_mirror_is_closed_before_a_caller_is_refused(cluster: Cluster) -> None:
    async with Mirrors(cluster.store, cluster.keys, GroupOptions(), most=2, reserved=0).running() as mirrors:
        async with mirrors.of("a"), mirrors.of("b"):
            pass
        async with mirrors.of("c") as mirror:
            assert mirror.group == "c"


async def test_refusals_of_unknown_groups_are_counted(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    for _ in range(3):
        with pytest.raises(NotRegistered):
            await instance.members.renew("nobodys", "a", "s")
    assert 'assigner_refusals_total{reason="unknown_group"} 3.0' in instance.metrics.render_here().decode()


async def test_thousands_of_unknown_names_leave_the_instance_as_it_was(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    consumer = await cluster.join("a")
    await cluster.until_counts(a=2)
    before = instance.mirrors.open

    async def ask(number: int) -> None:
        with pytest.raises(NotRegistered):
            await instance.members.renew(f"random-{number}", "a", "s")

    async with anyio.create_task_group() as tasks:
        for number in range(3_000):
            tasks.start_soon(ask, number)
    assert instance.mirrors.open == before
    assert await instance.members.renew(GROUP, "a", consumer.session) > 0
    stream = await instance.members.register(
        Registration(group="fresh", name="x", session="s", renews=True), lambda: 0.0
    )
    await stream.leave()


# --- how many groups there may be --------------------------------------------------------------------------------


async def test_more_groups_than_the_quota_are_refused_and_those_there_are_go_on(any_cluster: Cluster) -> None:
    instance = await any_cluster.start_instance(quotas=QuotaSection(groups=3))
    for number in range(3):
        await instance.operations.set_topic(f"g{number}", "t", 1)
    with pytest.raises(LimitReached, match=r"3 groups.*quotas\.groups"):
        await instance.operations.set_topic("one-more", "t", 1)
    with pytest.raises(LimitReached):
        await any_cluster.join("a", group="another")
    await instance.operations.set_topic("g0", "t", 2)
    assert (await any_cluster.join("a", group="g0")).owned == {}


async def test_the_quota_of_groups_holds_for_many_that_come_at_once(cluster: Cluster) -> None:
    instance = await cluster.start_instance(quotas=QuotaSection(groups=3))
    refused: list[str] = []

    async def begin(group: str) -> None:
        try:
            await instance.operations.set_topic(group, "t", 1)
        except LimitReached:
            refused.append(group)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(begin, f"g{number}")
    assert len(refused) == 17
    assert len((await read_all(cluster.store, cluster.keys.groups)).entries) == 3


async def test_a_group_of_another_kind_is_reported_as_such_when_it_is_used(cluster: Cluster) -> None:
    await make_known(cluster.store, cluster.keys, "theirs", "kafka")
    instance = await cluster.start_instance()
    with pytest.raises(FailedPrecondition, match="of kind 'kafka'"):
        await cluster.join("a", group="theirs")
    with pytest.raises(UnknownGroup):
        await instance.operations.describe("theirs")
