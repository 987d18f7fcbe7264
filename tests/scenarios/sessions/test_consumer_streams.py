"""What a consumer's stream says: everything first, then each change once, in order, however slow the reader is."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import anyio
import pytest

from assigner.api import Registration
from assigner.errors import NotRegistered, StreamReplaced
from assigner.members.streams import ConsumerStream
from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Cause, GroupOptions, HandoffMode, encode
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, Cluster, tp
from tests.support.faulty_stores import BusyStore

pytestmark = pytest.mark.virtual_time


async def stream_of(cluster: Cluster, name: str, instance: str = "i1") -> ConsumerStream:
    """A stream that is read by hand. Nobody renews it."""
    registration = Registration(group="g", name=name, session=f"{name}-1", renews=True)
    return await cluster.instances[instance].members.register(registration, cluster.clock.now)


class Reader:
    """What somebody who believes every message owns."""

    def __init__(self) -> None:
        self.owned: dict[TopicPartition, int] = {}
        self.messages: list[Commands] = []

    def take(self, commands: Commands) -> None:
        self.messages.append(commands)
        if commands.full:
            self.owned.clear()
        for gone, epoch in commands.unassigned:
            assert self.owned.pop(gone, epoch) == epoch, f"{gone} was taken away with an epoch that was not given"
        for release in commands.releases:
            if self.owned.get(release.tp) == release.epoch:
                del self.owned[release.tp]
        for partition, epoch in commands.assigned:
            assert epoch > self.owned.get(partition, 0), f"{partition} was given again with epoch {epoch}"
            self.owned[partition] = epoch


async def test_the_first_message_is_full_even_if_there_is_nothing(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    a = await cluster.join("a")
    assert a.heard == [Commands(full=True)]


async def test_the_first_message_holds_everything_however_much_it_is(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=3_000)
    await cluster.start_instance("i1")
    a = await cluster.join("a")
    await cluster.until_counts(a=3_000)
    a.crash()
    # An instance that has never seen the group before, and has to read all of it first.
    fresh = await cluster.start_instance("i2", leads=False)
    heard = len(a.heard)
    await a.connect(fresh)
    assert a.heard[heard].full
    assert len(a.heard[heard].assigned) == 3_000
    assert len(a.heard) == heard + 1


async def test_only_the_first_message_is_full_and_the_rest_are_differences(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    await cluster.join("b")
    await cluster.until_counts(a=2, b=2)
    await a.until("told to let two go", lambda c: sum(len(m.releases) for m in c.heard) == 2)
    assert [message.full for message in a.heard] == [True] + [False] * (len(a.heard) - 1)
    assert sum(len(message.assigned) for message in a.heard) == 4


async def test_a_message_names_the_generation_of_the_plan(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until("planned", lambda s: s.plan.generation == 1)
    a.crash()
    assert a.instance
    await a.connect(a.instance)
    assert a.heard[-1].generation == 1


async def test_a_slow_reader_is_sent_the_present_state_and_not_how_it_came_about(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    stream = await stream_of(cluster, "slow")
    commands = stream.commands()
    reader = Reader()
    reader.take(await anext(commands))
    for epoch in range(1, 200):
        for number in range(2):
            owner, session = ("slow", "slow-1") if (epoch + number) % 2 else ("x", "x-1")
            record = Assignment(topic="t", partition=number, owner=owner, session=session, epoch=epoch)
            await cluster.store.put(cluster.group.assignment(tp(number)), encode(record))
    revision = (await cluster.state()).revision
    mirror = cluster.instances["i1"].mirrors.get("g")
    assert mirror
    await mirror.wait_for(revision)
    reader.take(await anext(commands))
    assert len(reader.messages) == 2
    assert reader.owned == {tp(0): 199}
    await stream.leave()


async def test_no_update_is_lost_between_the_snapshot_and_the_stream(any_cluster: Cluster) -> None:
    """Ownership changes all the time while consumers come, wherever they are in between."""
    cluster = any_cluster
    await cluster.add_topic(partitions=6)
    dice = random.Random(1)
    epoch = 0

    async def somebody_writes() -> None:
        nonlocal epoch
        epoch += 1
        owner = dice.choice(["a", "b"])
        record = Assignment(topic="t", partition=dice.randrange(6), owner=owner, session=f"{owner}-1", epoch=epoch)
        await cluster.store.put(cluster.group.assignment(tp(record.partition)), encode(record))

    await cluster.start_instance(
        leads=False, wrap=lambda store: BusyStore(store, cluster.group.prefix, somebody_writes)
    )
    readers = {name: Reader() for name in ("a", "b")}
    async with anyio.create_task_group() as tasks:

        async def read(name: str) -> None:
            stream = await stream_of(cluster, name)
            try:
                async for commands in stream.commands():
                    readers[name].take(commands)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.leave()

        for name in readers:
            tasks.start_soon(read, name)
        for _ in range(100):
            await somebody_writes()

        async def agreed() -> bool:
            state = await cluster.state()
            return all(
                reader.owned == {p: state.assignments[p].record.epoch for p in state.owned[name]}
                for name, reader in readers.items()
            )

        await eventually(agreed, what="both know what is stored")
        tasks.cancel_scope.cancel()


async def test_pending_warms_and_releases_are_sent_again_after_a_reconnect(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=4)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm two", lambda c: len(c.to_warm) == 2)
    flipped, waiting = sorted(b.to_warm)
    asked = dict(b.to_warm)
    await b.ready(flipped)
    await a.until("told to release one", lambda c: set(c.to_release) == {flipped})
    told = a.to_release[flipped]
    for consumer in (a, b):
        consumer.crash()
        consumer.to_warm.clear()
        consumer.to_release.clear()
        await consumer.connect(instance)
    await b.until("asked to warm the other one again", lambda c: c.to_warm == {waiting: asked[waiting]})
    await a.until("told to release again", lambda c: c.to_release == {flipped: told})
    assert b.owned == {flipped: 2}
    await a.release(flipped)
    await b.ready(waiting)
    await a.until("told to release the other one", lambda c: set(c.to_release) == {waiting})


async def test_a_warm_that_was_answered_is_not_asked_for_again(cluster: Cluster) -> None:
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b")
    await a.until("told to release", lambda c: bool(c.to_release))
    b.crash()
    b.answers_warm = False
    await b.connect(instance)
    await anyio.sleep(1)
    assert not b.to_warm


async def test_exclusively_a_consumer_that_released_is_not_sent_an_assignment(cluster: Cluster) -> None:
    """Between its release and the flip, the record still names the old owner."""
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty("leader")
    other = await cluster.start_instance("i2", leads=False)
    a = await cluster.join("a", other, answers_release=False)
    await cluster.until_counts(a=2)
    await cluster.join("b", other)
    await a.until("told to release", lambda c: bool(c.to_release))
    (moving,) = a.to_release
    faults.freeze()
    await a.release(moving)
    a.crash()
    await a.connect(other)
    assert (await cluster.owners())[moving] == "a"
    assert moving not in a.owned
    faults.thaw()
    await cluster.until_counts(a=1, b=1)


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_a_reconnect_within_the_ttl_moves_nothing(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=4)
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2", leads=False)
    await cluster.join("b")
    a = await cluster.join("a")
    await cluster.until_counts(a=2, b=2)
    # The generation follows the moves.
    await cluster.until_quiet()
    before = await cluster.state()
    for instance in (other, cluster.instances["i1"], other):
        a.crash()
        await anyio.sleep(cluster.ttl / 4)
        await a.connect(instance)
    await anyio.sleep(cluster.ttl)
    after = await cluster.state()
    assert {p: h.mod_revision for p, h in after.assignments.items()} == {
        p: h.mod_revision for p, h in before.assignments.items()
    }
    assert after.plan.generation == before.plan.generation


async def _to_its_end(commands: AsyncIterator[Commands]) -> None:
    async for _ in commands:
        pass


async def test_a_newer_stream_of_the_same_session_ends_the_older_one_and_is_not_ended_with_it(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    first = await stream_of(cluster, "a")
    old = first.commands()
    await anext(old)
    second = await stream_of(cluster, "a")
    new = second.commands()
    assert (await anext(new)).full
    with pytest.raises(StreamReplaced):
        await _to_its_end(old)
    await first.leave()
    assert cluster.instances["i1"].registry.stream("g", "a") is second
    assert (await anext(new)).assigned == ((tp(0), 1),)
    await second.leave()
    assert len(cluster.instances["i1"].registry) == 0


async def test_a_stream_ends_when_its_registration_is_gone(cluster: Cluster) -> None:
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.store.delete(cluster.group.consumer("a"))
    await a.until("told so", lambda c: isinstance(c.ended, NotRegistered))


async def test_a_drained_consumers_stream_ends_well_and_its_registration_with_it(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await cluster.join("b")
    await cluster.until_counts(a=1, b=1)
    assert await a.deregister() is True
    await a.until("closed after the drain", lambda c: c.ended == "drained")
    await cluster.until("and gone", lambda s: set(s.consumers) == {"b"})
    assert a.heard[-1].releases or a.heard[-2].releases


async def test_a_draining_consumer_that_reconnects_is_still_draining(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b")
    await a.deregister()
    await a.until("told to let all go", lambda c: len(c.to_release) == 2)
    a.crash()
    await a.connect(instance)
    await a.release(*a.to_release)
    await a.until("closed after the drain", lambda c: c.ended == "drained")
    await b.until("owns all", lambda c: len(c.owned) == 2)


async def test_releases_say_where_to_and_why(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b")
    await a.until("told to release", lambda c: bool(c.to_release))
    (release,) = a.to_release.values()
    assert (release.new_owner, release.cause) == ("b", Cause.JOINED)
    (warm,) = [warm for message in b.heard for warm in message.warms]
    assert (warm.current_owner, warm.handoff_id) == ("a", release.handoff_id)


async def test_many_streams_of_one_group_share_what_is_mirrored(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=100)
    instance = await cluster.start_instance()
    for number in range(50):
        await cluster.join(f"c{number}")
    await cluster.until("two each", lambda s: all(len(s.owned[f"c{n}"]) == 2 for n in range(50)) and not s.handoffs)
    assert len(list(instance.mirrors.groups())) == 1
    assert len(instance.registry) == 50
    assert instance.registry.backlog == 0
    assert isinstance(cluster.options, GroupOptions)
