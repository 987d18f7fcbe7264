"""Bad input of every kind: foreign records, wrong callers, a store that fails. Nothing is lost, the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio
import pytest

from assigner.core.group import GroupState
from assigner.errors import (
    InvalidInput,
    InvalidName,
    NotRegistered,
    NotTheTarget,
    StoreError,
    StoreUnavailable,
    UnknownGroup,
    UnknownTopic,
    UnreadableRecord,
)
from assigner.model.commands import Ack
from assigner.model.keys import GroupKeys
from assigner.model.names import session_digest
from assigner.model.records import Step
from assigner.store import Found
from assigner.testing.faults import WRITES, Delay, Fault, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from tests.support.cluster import Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


# --- stored data -------------------------------------------------------------------------------------------------

KEYS: dict[str, Callable[[GroupKeys], str]] = {
    "consumer": lambda keys: keys.consumer("broken"),
    "assignment": lambda keys: keys.assignment(tp(0)),
    "handoff": lambda keys: keys.handoff(tp(0)),
    "standby": lambda keys: keys.standby(tp(0)),
    "topic": lambda keys: keys.topic("broken"),
    "router": lambda keys: keys.router("broken"),
    "ack": lambda keys: keys.ack(tp(0), "broken"),
    "foreign assignment": lambda keys: keys.assignments + "t/zero",
    "foreign consumer": lambda keys: keys.consumers + "a/b",
}
VALUES = {
    "nothing": b"",
    "no JSON": b"\xff\xfe\x00",
    "not an object": b"[1, 2]",
    "another kind": b'{"some": "thing else"}',
    "wrong types": b'{"topic": 1, "partition": "x", "consumer_name": [], "owner": {}, "partition_count": "many"}',
    "deep": b'{"a":' * 3000 + b"1" + b"}" * 3000,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", KEYS)
async def test_a_record_that_cannot_be_read_is_reported_and_left_alone_and_the_rest_goes_on(
    cluster: Cluster, kind: str, value: bytes
) -> None:
    key = KEYS[kind](cluster.group)
    await cluster.add_topic(partitions=3)
    instance = await cluster.start_instance()
    await cluster.store.put(key, value)
    await cluster.join("a")
    await cluster.join("b")
    spared = 1 if kind in ("assignment", "handoff") else 0

    def goes_on(state: GroupState) -> bool:
        if len(state.assignments) < 3 - spared:
            return False
        if kind == "router":
            # It may be at work: what has an owner moves when it is gone, or at the freeze's deadline.
            return any(handoff.record.at is Step.FREEZING for handoff in state.handoffs.values())
        return not state.handoffs and len(state.owned) >= 2

    state = await cluster.until("the rest goes on", goes_on)
    described = await instance.operations.describe("g")
    assert any(line.startswith(key) for line in described.unreadable)
    assert state.revision
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    assert found.entry.value == value
    await cluster.store.delete(key)
    await cluster.until("all is owned", lambda s: len(s.assignments) == 3 and not s.handoffs)
    assert (await instance.operations.describe("g")).unreadable == ()


@pytest.mark.parametrize("which", ["plan", "options"])
async def test_without_the_plan_or_the_options_owners_stay_and_nothing_is_decided(cluster: Cluster, which: str) -> None:
    key = {"plan": cluster.group.plan, "options": cluster.group.options}[which]
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    before = await cluster.store.get(key)
    await cluster.store.put(key, b"not JSON")
    b = await cluster.join("b")
    await anyio.sleep(200)
    assert (await cluster.counts()) == {"a": 2}
    assert a.ended is None
    assert b.ended is None
    assert [line.split(":")[0] for line in (await instance.operations.describe("g")).unreadable] == [key]
    if which == "options":
        with pytest.raises(InvalidInput, match="repair or delete"):
            await instance.operations.set_options("g", {"paused": False})
    if isinstance(before, Found):
        await cluster.store.put(key, before.entry.value)
    else:
        await cluster.store.delete(key)
    await cluster.until_counts(a=1, b=1)


async def test_a_registration_that_cannot_be_read_is_not_overwritten_by_its_consumer(cluster: Cluster) -> None:
    await cluster.start_instance()
    await cluster.store.put(cluster.group.consumer("a"), b"somebody else's")
    with pytest.raises(UnreadableRecord):
        await cluster.join("a")
    found = await cluster.store.get(cluster.group.consumer("a"))
    assert isinstance(found, Found)
    assert found.entry.value == b"somebody else's"


async def test_a_record_about_another_partition_than_its_key_is_not_believed(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    await cluster.store.put(cluster.group.assignment(tp(0)), b'{"topic":"t","partition":1,"owner":"x"}')
    await cluster.join("a")
    await cluster.until_counts(a=1)
    (line,) = (await instance.operations.describe("g")).unreadable
    assert "about t/1" in line


async def test_fields_of_others_survive_when_a_record_is_rewritten(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    key = cluster.group.assignment(tp(0))
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    await cluster.store.put(key, found.entry.value[:-1] + b',"team":"blue"}')
    b = await cluster.join("b")
    await a.deregister()
    await b.until("owns", lambda c: tp(0) in c.owned)
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    assert b'"team":"blue"' in found.entry.value


# --- who calls ---------------------------------------------------------------------------------------------------


async def test_calls_of_a_consumer_that_is_not_registered_are_refused(any_cluster: Cluster) -> None:
    members = (await any_cluster.start_instance()).members
    for call in (
        members.renew("g", "nobody", ""),
        members.ready("g", "nobody", "", [Ack(tp(0))]),
        members.released("g", "nobody", "", [Ack(tp(0))]),
        members.deregister("g", "nobody", "", gates_closed=False),
        members.deregister("g", "nobody", "s", gates_closed=True),
    ):
        with pytest.raises(NotRegistered, match="nobody"):
            await call


async def test_calls_with_another_session_than_the_registered_one_are_refused(cluster: Cluster) -> None:
    members = (await cluster.start_instance()).members
    a = await cluster.join("a")
    for call in (
        members.renew("g", "a", "made-up"),
        members.ready("g", "a", "made-up", [Ack(tp(0))]),
        members.released("g", "a", "made-up", [Ack(tp(0))]),
        members.deregister("g", "a", "made-up", gates_closed=True),
    ):
        with pytest.raises(NotRegistered, match=session_digest("made-up")):
            await call
    await members.renew("g", "a", a.session)


async def test_operators_asking_for_what_is_not_there_get_an_error(cluster: Cluster) -> None:
    await cluster.add_topic()
    operations = (await cluster.start_instance()).operations
    with pytest.raises(UnknownGroup, match="'nowhere'"):
        await operations.describe("nowhere")
    with pytest.raises(NotRegistered, match="'nobody'"):
        await operations.drain("g", "nobody")
    with pytest.raises(UnknownGroup, match="'nowhere'"):
        await operations.topics("nowhere")


@pytest.mark.parametrize("group", ["", ".", "..", "a\nb", "x" * 300, "consumers"])
async def test_impossible_group_names_are_refused(cluster: Cluster, group: str) -> None:
    instance = await cluster.start_instance()
    with pytest.raises(InvalidName):
        await instance.operations.set_options(group, {"paused": True})
    with pytest.raises(InvalidName):
        await SteppedConsumer(cluster, "a", group=group).connect(instance)


async def handoff_to(cluster: Cluster) -> tuple[SteppedConsumer, SteppedConsumer]:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=1)
    b = await cluster.join("b", answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: tp(0) in c.to_warm)
    return a, b


async def test_a_ready_of_a_consumer_that_was_never_asked_is_refused(cluster: Cluster) -> None:
    _, b = await handoff_to(cluster)
    c = await cluster.join("c", answers_warm=False)
    assert c.instance
    (refused,) = await c.instance.members.ready("g", "c", c.session, [Ack(tp(0))])
    assert isinstance(refused.error, NotTheTarget)
    handoff = await cluster.handoff(tp(0))
    assert handoff
    assert (handoff.new_owner, handoff.at) == ("b", Step.WARMING)
    await b.ready(tp(0))
    await cluster.until("flipped", lambda s: bool(s.owned["b"]))


async def test_duplicate_and_late_acks_are_idempotent(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=2)
    members = (await cluster.start_instance()).members
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    warm = Ack(moving, b.to_warm[moving].handoff_id)
    for _ in range(3):
        assert await members.ready("g", "b", b.session, [warm]) == []
    await a.until("told to release", lambda c: moving in c.to_release)
    let_go = Ack(moving, a.to_release[moving].handoff_id)
    for _ in range(3):
        assert await members.released("g", "a", a.session, [let_go, Ack(moving)]) == []
        assert await members.ready("g", "b", b.session, [warm, Ack(moving)]) == []
    state = await cluster.until_counts(a=1, b=1)
    assert state.assignments[moving].record.epoch == 2


async def test_a_release_before_the_flip_counts_for_nothing(cluster: Cluster) -> None:
    a, b = await handoff_to(cluster)
    assert a.instance
    assert await a.instance.members.released("g", "a", a.session, [Ack(tp(0))]) == []
    handoff = await cluster.handoff(tp(0))
    assert handoff
    assert handoff.at is Step.WARMING
    await b.ready(tp(0))
    await a.until("told to release", lambda c: tp(0) in c.to_release)


async def test_partitions_that_do_not_exist_are_refused_and_the_others_of_the_batch_taken(cluster: Cluster) -> None:
    _, b = await handoff_to(cluster)
    assert b.instance
    answers = [Ack(tp(0), b.to_warm[tp(0)].handoff_id), Ack(tp(99)), Ack(tp(0, "no-such-topic"))]
    refused = await b.instance.members.ready("g", "b", b.session, answers)
    assert [(r.tp, type(r.error)) for r in refused] == [
        (tp(99), UnknownTopic),
        (tp(0, "no-such-topic"), UnknownTopic),
    ]
    assert "0 to 0" in str(refused[0].error)
    await cluster.until("flipped", lambda s: bool(s.owned["b"]))


# --- a store that fails ------------------------------------------------------------------------------------------


async def test_an_instance_waits_for_a_store_that_is_away_when_it_starts(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    async with anyio.create_task_group() as tasks:
        started = anyio.Event()

        async def start() -> None:
            await cluster.start_faulty("i1")
            started.set()

        tasks.start_soon(start)
        await eventually(lambda: "i1" in cluster.faults)
        cluster.faults["i1"].inject(Refuse(), times=None)
        await anyio.sleep(20)
        cluster.faults["i1"].heal()
        await started.wait()
    await cluster.join("a")
    await cluster.until_counts(a=2)


FAULTS: dict[str, Fault] = {
    "refuses": Refuse(),
    "loses answers of what it did": LoseAnswer(applied=True),
    "loses requests": LoseAnswer(applied=False),
    "is slow": Delay(1.5),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_store_that_fails_every_third_call_costs_time_and_nothing_else(cluster: Cluster, fault: Fault) -> None:
    await cluster.add_topic(partitions=6)
    faults = await cluster.start_faulty()
    calls = 0

    def every_third(*_: object) -> bool:
        nonlocal calls
        calls += 1
        return calls % 3 == 0

    await cluster.join("a")
    await cluster.until_counts(a=6)
    injected = faults.inject(fault, kinds=WRITES, times=None, where=every_third)
    joined = 0
    for name in ("b", "c"):
        for _ in range(20):
            try:
                await cluster.join(name)
                joined += 1
                break
            except StoreError:
                await anyio.sleep(1)
    assert joined == 2
    for name in ("a", "b", "c"):
        cluster.consumers[name].answers_warm = cluster.consumers[name].answers_release = False
    await answer_until_settled(cluster)
    assert injected.hits > 3
    injected.remove()
    state = await cluster.until(
        "two each", lambda s: sorted(map(len, s.owned.values())) == [2, 2, 2] and not s.handoffs
    )
    for name, consumer in cluster.consumers.items():
        await consumer.until(
            "believes what is stored",
            lambda c, name=name: c.owned == {p: state.assignments[p].record.epoch for p in state.owned[name]},  # type: ignore[misc]
        )


async def answer_until_settled(cluster: Cluster) -> None:
    """Answer as a client does: again and again until it is taken."""

    async def settled() -> bool:
        for consumer in cluster.consumers.values():
            await _answer(consumer)
        state = await cluster.state()
        return not state.handoffs and sorted(len(tps) for tps in state.owned.values()) == [2, 2, 2]

    await eventually(settled, within=120, every=0.5, what="everything has moved")


async def _answer(consumer: SteppedConsumer) -> None:
    assert consumer.instance
    members, who = consumer.instance.members, (consumer.group, consumer.name, consumer.session)
    warms = [Ack(warm.tp, warm.handoff_id) for warm in consumer.to_warm.values()]
    releases = [Ack(release.tp, release.handoff_id) for release in consumer.to_release.values()]
    with suppress(StoreError):
        refused = {r.tp for r in await members.ready(*who, warms)}
        for answer in warms:
            if answer.tp not in refused:
                consumer.to_warm.pop(answer.tp, None)
    with suppress(StoreError):
        refused = {r.tp for r in await members.released(*who, releases)}
        for answer in releases:
            if answer.tp not in refused:
                consumer.to_release.pop(answer.tp, None)
                consumer.owned.pop(answer.tp, None)


async def test_a_store_that_hangs_and_recovers_finds_all_owners_where_they_were(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    faults = await cluster.start_faulty()
    a, b = await cluster.join("a"), await cluster.join("b")
    before = await cluster.until_counts(a=2, b=2)
    faults.freeze()
    await anyio.sleep(cluster.ttl / 3)
    with pytest.raises(StoreError):
        await cluster.instances["i1"].members.renew("g", "a", a.session)
    faults.thaw()
    await anyio.sleep(2 * cluster.ttl)
    after = await cluster.state()
    assert {p: h.record for p, h in after.assignments.items()} == {p: h.record for p, h in before.assignments.items()}
    assert (a.ended, b.ended) == (None, None)


async def test_a_register_while_the_store_hangs_ends_with_an_error_and_leaves_no_orphan(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty()
    await cluster.join("a")
    faults.freeze()
    with pytest.raises(StoreError):
        await cluster.join("b")
    faults.thaw()
    await anyio.sleep(1)
    assert set((await cluster.state()).consumers) == {"a"}


@pytest.mark.parametrize("applied", [True, False])
async def test_a_registration_whose_response_was_lost_is_looked_up(cluster: Cluster, applied: bool) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty()
    key = cluster.group.consumer("a")
    lost = faults.inject(
        LoseAnswer(applied=applied), kinds={"transact"}, where=lambda _, __, operations: operations[0].key == key
    )
    a = await cluster.join("a")
    assert lost.hits == 1
    await a.until("owns", lambda c: c.owned == {tp(0): 1})


async def test_a_registration_of_unknown_outcome_leaves_no_orphan(cluster: Cluster) -> None:
    faults = await cluster.start_faulty()
    await cluster.join("a")
    key = cluster.group.consumer("b")
    for fault in (LoseAnswer(applied=True), Refuse()):
        faults.inject(fault, kinds={"transact"}, where=lambda _, __, operations: operations[0].key == key)
    with pytest.raises(StoreError):
        await cluster.join("b")
    await cluster.until("no orphan", lambda s: set(s.consumers) == {"a"}, within=5)


async def test_an_ack_that_cannot_be_written_is_rejected_with_the_reason_and_may_be_repeated(
    cluster: Cluster,
) -> None:
    await cluster.add_topic(partitions=1)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    b = await cluster.join("b", answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: tp(0) in c.to_warm)
    answer = Ack(tp(0), b.to_warm[tp(0)].handoff_id)
    faults.inject(Refuse(), kinds={"transact"}, times=None)
    assert b.instance
    (refused,) = await b.instance.members.ready("g", "b", b.session, [answer])
    assert isinstance(refused.error, StoreUnavailable)
    faults.heal()
    assert await b.instance.members.ready("g", "b", b.session, [answer]) == []
    await b.until("owns", lambda c: tp(0) in c.owned)
