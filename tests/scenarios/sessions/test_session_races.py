"""Sessions that race: late answers, late effects and late calls never leave a name without the process that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pytest

from assigner.api import Registration
from assigner.errors import AssignerError, StreamReplaced, Superseded
from assigner.model.records import Consumer, HandoffMode, Status
from assigner.store import Compare, DeleteEvent, Found, Operation, Put
from assigner.testing.faults import AnswerAfter, Delay, EffectAfter, FaultyStore, Injected, LoseAnswer
from assigner.testing.waiting import eventually
from tests.support.cluster import ETCD_TTL, GROUP, Cluster
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(ttl=6.0, etcd_ttl=ETCD_TTL)]


def registers(cluster: Cluster, session: str, name: str = "a") -> Callable[..., bool]:
    """For `FaultyStore.inject`: the transaction by which this session takes the name."""
    key = cluster.group.consumer(name)

    def where(_: str, __: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        return any(
            isinstance(operation, Put) and operation.key == key and f'"{session}"'.encode() in operation.value
            for operation in operations
        )

    return where


def drains(cluster: Cluster, name: str = "a") -> Callable[..., bool]:
    """For `FaultyStore.inject`: the transaction that marks the name's registration as draining."""
    return registers(cluster, Status.DRAINING.value, name)


async def on_record(cluster: Cluster, name: str = "a") -> Consumer | None:
    return await cluster._record(Consumer, cluster.group.consumer(name))


async def session_on_record(cluster: Cluster, session: str) -> None:
    async def check() -> bool:
        record = await on_record(cluster)
        return record is not None and record.session == session

    await eventually(check, within=20, what=f"session {session} is on record")


async def connect(consumer: SteppedConsumer, cluster: Cluster, ends: list[AssignerError]) -> None:
    """Connect, and keep how the registration was refused."""
    try:
        await consumer.connect(cluster.instances["i1"])
    except AssignerError as error:
        ends.append(error)


async def test_rule_2_of_two_sessions_the_newer_stays_although_the_older_gets_its_response_last(
    any_cluster: Cluster,
) -> None:
    await any_cluster.add_topic(partitions=4)
    faults = await any_cluster.start_faulty()
    faults.inject(AnswerAfter(1.0), kinds={"transact"}, where=registers(any_cluster, "older"))
    older, ends = SteppedConsumer(any_cluster, "a", session="older"), list[AssignerError]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect, older, any_cluster, ends)
        await session_on_record(any_cluster, "older")
        newer = await any_cluster.join("a", session="newer")
    await eventually(lambda: bool(ends or older.ended), within=20, what="the older one is ended")
    assert isinstance(ends[0] if ends else older.ended, Superseded)
    await newer.until("owns everything", lambda c: len(c.owned) == 4)
    assert newer.ended is None
    assert (await any_cluster.until_counts(a=4)).consumers["a"].record.session == "newer"


async def test_a_registration_that_is_refused_its_place_keeps_nothing(any_cluster: Cluster) -> None:
    """Its group's mirror least of all, which would be watched for ever."""
    faults = await any_cluster.start_faulty(leads=False)
    faults.inject(AnswerAfter(1.0), kinds={"transact"}, where=registers(any_cluster, "older"))
    older, ends = SteppedConsumer(any_cluster, "a", session="older"), list[AssignerError]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect, older, any_cluster, ends)
        await session_on_record(any_cluster, "older")
        newer = await any_cluster.join("a", session="newer")
    assert isinstance(ends[0], Superseded)
    newer.crash()
    users = any_cluster.instances["i1"].mirrors.users
    await eventually(lambda: users(GROUP) == 0, within=20, what="nobody uses the mirror")


async def test_a_second_stream_of_the_same_session_ends_the_first_in_a_way_that_may_be_retried(
    any_cluster: Cluster,
) -> None:
    await any_cluster.add_topic(partitions=2)
    instance = await any_cluster.start_instance()
    first = await any_cluster.join("a", session="same")
    await first.until("owns everything", lambda c: len(c.owned) == 2)
    epochs = dict(first.owned)
    second = SteppedConsumer(any_cluster, "a", session="same")
    await second.connect(instance)
    await first.until("told", lambda c: c.ended is not None)
    assert isinstance(first.ended, StreamReplaced)
    assert "connect again" in str(first.ended)
    await first.connect(instance)
    await second.until("told", lambda c: c.ended is not None)
    assert isinstance(second.ended, StreamReplaced)
    await first.until("is served", lambda c: c.ended is None and c.owned == epochs)


@pytest.mark.parametrize("mode", [HandoffMode.OVERLAP, HandoffMode.EXCLUSIVE])
async def test_a_takeover_that_takes_effect_after_it_was_abandoned_leaves_the_name_with_its_session(
    any_cluster: Cluster, mode: HandoffMode
) -> None:
    """It was unknown and came through before its lease was ended: the name would have had nobody, and nobody would
    have known of the old session's lease."""
    await any_cluster.set_options(handoff_mode=mode)
    await any_cluster.add_topic(partitions=2)
    faults = await any_cluster.start_faulty()
    older = await any_cluster.join("a", session="older")
    await older.until("owns everything", lambda c: len(c.owned) == 2)
    lease = await lease_of(any_cluster)
    faults.inject(EffectAfter(0.1, 0.3), kinds={"transact"}, where=registers(any_cluster, "newer"))
    faults.inject(Delay(0.8), kinds={"revoke"})
    before = (await any_cluster.store.get("nothing")).revision
    newer = await any_cluster.join("a", session="newer")
    await eventually(lambda: not faults.late_effects, within=20, what="the late effect came")
    await older.until("told", lambda c: c.ended is not None)
    assert isinstance(older.ended, Superseded)
    record = await on_record(any_cluster)
    assert record
    assert record.session == "newer"
    assert [(d.session, d.lease) for d in record.displaced] == [("older", lease)]
    assert not await unregistered_since(any_cluster, before)
    assert newer.ended is None


async def test_a_takeover_whose_caller_is_gone_keeps_what_is_known_of_the_session_it_displaced(
    any_cluster: Cluster,
) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await any_cluster.add_topic(partitions=2)
    faults = await any_cluster.start_faulty()
    older = await any_cluster.join("a", session="older")
    await older.until("owns everything", lambda c: len(c.owned) == 2)
    lease = await lease_of(any_cluster)
    before = (await any_cluster.store.get("nothing")).revision
    await register_and_go(any_cluster, faults, "newer")
    await eventually(lambda: not faults.late_effects, within=20, what="the late effect came")
    newer = await any_cluster.join("a", session="newer")
    record = await on_record(any_cluster)
    assert record
    assert [(d.session, d.lease) for d in record.displaced] == [("older", lease)]
    assert not await unregistered_since(any_cluster, before)
    assert newer.ended is None


async def test_a_first_registration_whose_caller_is_gone_leaves_nobody_behind(any_cluster: Cluster) -> None:
    faults = await any_cluster.start_faulty()
    revoked = await register_and_go(any_cluster, faults, "newer")
    await eventually(lambda: not faults.late_effects, within=20, what="the late effect came")
    assert revoked.hits == 1

    async def gone() -> bool:
        return await on_record(any_cluster) is None

    await eventually(gone, within=3 + any_cluster.allowance, what="nobody is registered")


async def test_a_consumer_marked_while_its_registration_was_of_unknown_outcome_stays_registered(
    any_cluster: Cluster,
) -> None:
    """The registration got through unheard, and an operator drained it before it was asked for again."""
    faults = await any_cluster.start_faulty()
    faults.inject(LoseAnswer(applied=True), kinds={"transact"}, where=registers(any_cluster, "s"))
    faults.inject(Delay(1.0), kinds={"transact"}, where=registers(any_cluster, "s"))
    consumer, ends = SteppedConsumer(any_cluster, "a", session="s"), list[AssignerError]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect, consumer, any_cluster, ends)
        await session_on_record(any_cluster, "s")
        await any_cluster.instances["i1"].members.drain(GROUP, "a")
    await consumer.until("ends well", lambda c: c.ended == "drained")
    assert not ends


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_drain_whose_outcome_is_unknown_is_resolved(cluster: Cluster, applied: bool) -> None:
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty()
    consumer = await cluster.join("a", session="s")
    await consumer.until("owns everything", lambda c: len(c.owned) == 2)
    lost = faults.inject(LoseAnswer(applied=applied), kinds={"transact"}, where=drains(cluster))
    assert await cluster.instances["i1"].members.drain(GROUP, "a") == 2
    assert lost.hits == 1
    record = await on_record(cluster)
    assert record
    assert record.status is Status.DRAINING


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
async def test_a_deregistration_whose_outcome_is_unknown_is_resolved(cluster: Cluster, applied: bool) -> None:
    faults = await cluster.start_faulty()
    await cluster.join("a", session="s")
    lost = faults.inject(LoseAnswer(applied=applied), kinds={"transact"}, where=drains(cluster))
    assert not await cluster.instances["i1"].members.deregister(GROUP, "a", "s", gates_closed=True)
    assert lost.hits == 1
    assert await on_record(cluster) is None


async def test_a_session_that_is_displaced_while_it_deregisters_does_not_drain_its_successor(cluster: Cluster) -> None:
    faults = await cluster.start_faulty()
    await cluster.join("a", session="older")
    held = faults.inject(Delay(1.0), kinds={"transact"}, where=drains(cluster))
    refused: list[AssignerError] = []

    async def deregister() -> None:
        try:
            await cluster.instances["i1"].members.deregister(GROUP, "a", "older", gates_closed=True)
        except AssignerError as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deregister)
        await eventually(lambda: held.hits == 1, within=20, what="the older session is about to be drained")
        await cluster.join("a", session="newer")
    assert isinstance(refused[0], Superseded)
    record = await on_record(cluster)
    assert record
    assert (record.session, record.status) == ("newer", Status.READY)


# --- what was seen -----------------------------------------------------------------------------------------------


async def register_and_go(cluster: Cluster, faults: FaultyStore, session: str) -> Injected:
    """The process dies while its registration is on its way, and the end of its lease takes a while."""
    on_its_way = faults.inject(EffectAfter(0.5, 0.6), kinds={"transact"}, where=registers(cluster, session))
    revoked = faults.inject(Delay(0.9), kinds={"revoke"})
    registration = Registration(group=GROUP, name="a", session=session, renews=True)

    async def register() -> None:
        await cluster.instances["i1"].members.register(registration, cluster.clock.now)
        raise AssertionError("registered all the same")

    async with anyio.create_task_group() as caller:
        caller.start_soon(register)
        await eventually(lambda: on_its_way.hits == 1, within=10 + cluster.allowance)
        caller.cancel_scope.cancel()
    return revoked


async def lease_of(cluster: Cluster, name: str = "a") -> int:
    found = await cluster.store.get(cluster.group.consumer(name))
    assert isinstance(found, Found)
    return found.entry.lease


async def unregistered_since(cluster: Cluster, revision: int, name: str = "a") -> list[DeleteEvent]:
    """By the store's own history: when the name was without a registration."""
    key = cluster.group.consumer(name)
    return [e for e in await cluster.history(revision) if isinstance(e, DeleteEvent) and e.key == key]
