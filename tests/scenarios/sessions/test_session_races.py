"""Sessions that race: late answers, late effects and late calls never leave a name without the process that has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import pytest

from assigner.api import Registration
from assigner.errors import AssignerError, StreamReplaced, Superseded
from assigner.model.records import Consumer, HandoffMode
from assigner.store import Compare, DeleteEvent, Found, Operation, Put
from assigner.testing.faults import AnswerAfter, Delay, EffectAfter, FaultyStore, Injected, LoseAnswer
from assigner.testing.waiting import eventually
from tests.support.cluster import BOTH_STORES, GROUP, SteppedConsumer, World, world_on

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=BOTH_STORES)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_on(request.param, request, ttl=30.0 if request.param == "memory" else 6.0) as world:
        yield world


def registers(world: World, session: str, name: str = "a") -> Callable[..., bool]:
    """For `FaultyStore.inject`: the transaction by which this session takes the name."""
    key = world.group.consumer(name)

    def where(_: str, __: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        return any(
            isinstance(operation, Put) and operation.key == key and f'"{session}"'.encode() in operation.value
            for operation in operations
        )

    return where


async def on_record(world: World, name: str = "a") -> Consumer | None:
    return await world._record(Consumer, world.group.consumer(name))


async def session_on_record(world: World, session: str) -> None:
    async def check() -> bool:
        record = await on_record(world)
        return record is not None and record.session == session

    await eventually(check, within=20, what=f"session {session} is on record")


async def connect(consumer: SteppedConsumer, world: World, ends: list[AssignerError]) -> None:
    """Connect, and keep how the registration was refused."""
    try:
        await consumer.connect(world.instances["i1"])
    except AssignerError as error:
        ends.append(error)


async def test_rule_2_of_two_sessions_the_newer_stays_although_the_older_hears_of_its_registration_last(
    world: World,
) -> None:
    await world.add_topic(partitions=4)
    faults = await world.start_faulty()
    faults.inject(AnswerAfter(1.0), kinds={"transact"}, where=registers(world, "older"))
    older, ends = SteppedConsumer(world, "a", session="older"), list[AssignerError]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect, older, world, ends)
        await session_on_record(world, "older")
        newer = await world.join("a", session="newer")
    await eventually(lambda: bool(ends or older.ended), within=20, what="the older was told")
    assert isinstance(ends[0] if ends else older.ended, Superseded)
    await newer.until("owns everything", lambda c: len(c.owned) == 4)
    assert newer.ended is None
    assert (await world.until_counts(a=4)).consumers["a"].record.session == "newer"


async def test_a_registration_that_is_refused_its_place_keeps_nothing(world: World) -> None:
    """Its group's mirror least of all, which would be watched for ever."""
    faults = await world.start_faulty(leads=False)
    faults.inject(AnswerAfter(1.0), kinds={"transact"}, where=registers(world, "older"))
    older, ends = SteppedConsumer(world, "a", session="older"), list[AssignerError]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect, older, world, ends)
        await session_on_record(world, "older")
        newer = await world.join("a", session="newer")
    assert isinstance(ends[0], Superseded)
    newer.crash()
    users = world.instances["i1"].mirrors.users
    await eventually(lambda: users(GROUP) == 0, within=20, what="nobody uses the mirror")


async def test_a_second_stream_of_the_same_session_ends_the_first_in_a_way_that_may_be_retried(world: World) -> None:
    await world.add_topic(partitions=2)
    instance = await world.start_instance()
    first = await world.join("a", session="same")
    await first.until("owns everything", lambda c: len(c.owned) == 2)
    epochs = dict(first.owned)
    second = SteppedConsumer(world, "a", session="same")
    await second.connect(instance)
    await first.until("told", lambda c: c.ended is not None)
    assert isinstance(first.ended, StreamReplaced)
    assert "connect again" in str(first.ended)
    await first.connect(instance)
    await second.until("told", lambda c: c.ended is not None)
    assert isinstance(second.ended, StreamReplaced)
    await first.until("is served", lambda c: c.ended is None and c.owned == epochs)


@pytest.mark.parametrize("mode", [HandoffMode.OVERLAP, HandoffMode.EXCLUSIVE])
async def test_a_takeover_that_takes_effect_after_it_was_given_up_leaves_the_name_with_its_session(
    world: World, mode: HandoffMode
) -> None:
    """It was unknown and came through before its lease was ended: the name would have had nobody, and nobody would
    have known of the old session's lease."""
    await world.set_options(handoff_mode=mode)
    await world.add_topic(partitions=2)
    faults = await world.start_faulty()
    older = await world.join("a", session="older")
    await older.until("owns everything", lambda c: len(c.owned) == 2)
    lease = await lease_of(world)
    faults.inject(EffectAfter(0.1, 0.3), kinds={"transact"}, where=registers(world, "newer"))
    faults.inject(Delay(0.8), kinds={"revoke"})
    before = (await world.store.get("nothing")).revision
    newer = await world.join("a", session="newer")
    await eventually(lambda: not faults.late_effects, within=20, what="the late effect came")
    await older.until("told", lambda c: c.ended is not None)
    assert isinstance(older.ended, Superseded)
    record = await on_record(world)
    assert record
    assert record.session == "newer"
    assert [(d.session, d.lease) for d in record.displaced] == [("older", lease)]
    assert not await unregistered_since(world, before)
    assert newer.ended is None


async def test_a_takeover_whose_caller_is_gone_keeps_what_is_known_of_the_session_it_displaced(world: World) -> None:
    await world.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await world.add_topic(partitions=2)
    faults = await world.start_faulty()
    older = await world.join("a", session="older")
    await older.until("owns everything", lambda c: len(c.owned) == 2)
    lease = await lease_of(world)
    before = (await world.store.get("nothing")).revision
    await register_and_go(world, faults, "newer")
    await eventually(lambda: not faults.late_effects, within=20, what="the late effect came")
    newer = await world.join("a", session="newer")
    record = await on_record(world)
    assert record
    assert [(d.session, d.lease) for d in record.displaced] == [("older", lease)]
    assert not await unregistered_since(world, before)
    assert newer.ended is None


async def test_a_first_registration_whose_caller_is_gone_leaves_nobody_behind(world: World) -> None:
    faults = await world.start_faulty()
    revoked = await register_and_go(world, faults, "newer")
    await eventually(lambda: not faults.late_effects, within=20, what="the late effect came")
    assert revoked.hits == 1

    async def gone() -> bool:
        return await on_record(world) is None

    await eventually(gone, within=3, what="nobody is registered")


async def test_who_was_marked_while_its_registration_was_in_doubt_stays_registered(world: World) -> None:
    """The registration got through unheard, and an operator drained it before it was asked for again."""
    faults = await world.start_faulty()
    faults.inject(LoseAnswer(applied=True), kinds={"transact"}, where=registers(world, "s"))
    faults.inject(Delay(1.0), kinds={"transact"}, where=registers(world, "s"))
    consumer, ends = SteppedConsumer(world, "a", session="s"), list[AssignerError]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect, consumer, world, ends)
        await session_on_record(world, "s")
        await world.instances["i1"].members.drain(GROUP, "a")
    await consumer.until("ends well", lambda c: c.ended == "drained")
    assert not ends


# --- what was seen -----------------------------------------------------------------------------------------------


async def register_and_go(world: World, faults: FaultyStore, session: str) -> Injected:
    """The process dies while its registration is on its way, and the end of its lease takes a while."""
    faults.inject(EffectAfter(0.5, 0.6), kinds={"transact"}, where=registers(world, session))
    revoked = faults.inject(Delay(0.9), kinds={"revoke"})
    registration = Registration(group=GROUP, name="a", session=session, renews=True)
    with anyio.move_on_after(0.1):
        await world.instances["i1"].members.register(registration, world.clock.now)
        raise AssertionError("registered all the same")
    return revoked


async def lease_of(world: World, name: str = "a") -> int:
    found = await world.store.get(world.group.consumer(name))
    assert isinstance(found, Found)
    return found.entry.lease


async def unregistered_since(world: World, revision: int, name: str = "a") -> list[DeleteEvent]:
    """By the store's own history: when the name was without a registration."""
    key = world.group.consumer(name)
    return [e for e in await world.history(revision) if isinstance(e, DeleteEvent) and e.key == key]
