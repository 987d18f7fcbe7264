"""A session belongs to the identity that opened it: nobody else renews, acks, commits, leaves or registers for it.

Another identity gets nowhere with or without the session's id, and an instance that does not know who calls is no way
round. That callers are who they say is tested in tests/integration/identity.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from assigner.api import CommitRefusal, LoadReport, OffsetCommit
from assigner.errors import AssignerError, FailedPrecondition, NotRegistered, PermissionDenied, Superseded
from assigner.instance import Instance
from assigner.model.commands import Ack
from assigner.model.records import Consumer, HandoffMode
from assigner.store import Store
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, GROUP, Cluster, tp
from tests.support.faulty_stores import LaggingStore
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time

OWN, OTHER, UNKNOWN = "acme/worker", "evil/worker", ""
Call = Callable[[Instance, str, str], Awaitable[object]]
CALLS: dict[str, Call] = {
    "Renew": lambda i, session, who: i.members.renew(GROUP, "a", session, principal=who),
    "PartitionReady": lambda i, session, who: i.members.ready(GROUP, "a", session, [Ack(tp(0))], principal=who),
    "PartitionReleased": lambda i, session, who: i.members.released(GROUP, "a", session, [Ack(tp(0))], principal=who),
    "Deregister": lambda i, session, who: i.members.deregister(GROUP, "a", session, gates_closed=False, principal=who),
    "Deregister with closed gates": lambda i, session, who: i.members.deregister(
        GROUP, "a", session, gates_closed=True, principal=who
    ),
    "ReportLoad": lambda i, session, who: i.members.report_load(GROUP, "a", session, LoadReport(), principal=who),
    "CommitOffsets": lambda i, session, who: i.offsets.commit(
        GROUP, "a", session, [OffsetCommit(tp(0), 1, 999)], principal=who
    ),
}


async def everything(cluster: Cluster) -> dict[str, bytes]:
    """What a call could have changed."""
    branches = (cluster.group.consumers, cluster.group.assignments, cluster.group.handoffs, cluster.keys.offsets(GROUP))
    pages = [await cluster.store.list(branch) for branch in branches]
    return {entry.key: entry.value for page in pages for entry in page.entries}


async def owning_all(cluster: Cluster, **how: Any) -> SteppedConsumer:
    """`a`, which owns both partitions and is registered by its identity."""
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a", session="the-session", **{"principal": OWN} | how)
    await a.until("owns everything", lambda c: len(c.owned) == 2)
    return a


# --- every call --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", ["the-session", "another-one", ""])
@pytest.mark.parametrize("who", [OTHER, UNKNOWN])
@pytest.mark.parametrize("call", CALLS)
async def test_rule_17_another_identity_does_nothing_for_a_consumer_whether_or_not_it_knows_the_session(
    any_cluster: Cluster, call: str, who: str, session: str
) -> None:
    a = await owning_all(any_cluster)
    before = await everything(any_cluster)
    with pytest.raises(PermissionDenied, match="another identity"):
        await CALLS[call](any_cluster.instances["i1"], session, who)
    assert await everything(any_cluster) == before
    assert a.ended is None


@pytest.mark.parametrize("session", ["another-one", ""])
@pytest.mark.parametrize("call", CALLS)
async def test_rule_17_a_replayed_token_does_nothing_without_the_session(
    any_cluster: Cluster, call: str, session: str
) -> None:
    """Whoever reads a token is its identity, and no session of it."""
    a = await owning_all(any_cluster)
    before = await everything(any_cluster)
    try:
        refused = await CALLS[call](any_cluster.instances["i1"], session, OWN)
    except (NotRegistered, FailedPrecondition):
        refused = True
    assert refused
    assert await everything(any_cluster) == before
    assert a.ended is None


@pytest.mark.parametrize("call", CALLS)
async def test_the_identity_makes_every_call_for_its_session_at_any_instance(any_cluster: Cluster, call: str) -> None:
    await owning_all(any_cluster)
    another = await any_cluster.start_instance("i2", leads=False)
    await CALLS[call](another, "the-session", OWN)


@pytest.mark.parametrize("session", ["the-session", "another-one", ""])
@pytest.mark.parametrize("who", [OTHER, UNKNOWN])
async def test_rule_17_another_identity_takes_neither_the_name_nor_the_session(
    any_cluster: Cluster, who: str, session: str
) -> None:
    a = await owning_all(any_cluster)
    before = await everything(any_cluster)
    with pytest.raises(PermissionDenied, match="another identity"):
        await any_cluster.join("a", session=session, principal=who)
    assert await everything(any_cluster) == before
    assert a.ended is None


@pytest.mark.parametrize("who", [OTHER, UNKNOWN])
async def test_rule_17_another_identity_does_not_commit_for_a_consumer_that_is_gone_with_the_session_it_had(
    any_cluster: Cluster, who: str
) -> None:
    a = await owning_all(any_cluster)
    epochs, instance = dict(a.owned), any_cluster.instances["i1"]
    await instance.members.deregister(GROUP, "a", "the-session", gates_closed=True, principal=OWN)
    await any_cluster.until("a is gone", lambda state: "a" not in state.consumers)
    wishes = [OffsetCommit(tp(number), epochs[tp(number)], 999) for number in range(2)]
    refused = await instance.offsets.commit(GROUP, "a", "the-session", wishes, principal=who)
    assert [one.why for one in refused] == [CommitRefusal.FENCED] * 2
    assert not (await any_cluster.store.list(any_cluster.keys.offsets(GROUP))).entries
    # What its own identity has worked on is not lost with the registration.
    assert await instance.offsets.commit(GROUP, "a", "the-session", wishes, principal=OWN) == []


async def test_an_assignment_names_the_identity_of_its_owner_also_after_a_move(any_cluster: Cluster) -> None:
    await owning_all(any_cluster)
    b = await any_cluster.join("b", principal=OTHER)
    await b.until("owns one", lambda c: len(c.owned) == 1)
    state = await any_cluster.state()
    assert {held.record.owner: held.record.principal for held in state.assignments.values()} == {"a": OWN, "b": OTHER}


async def test_an_assignment_names_the_identity_of_its_owner_also_after_a_move_that_was_given_up(
    any_cluster: Cluster,
) -> None:
    await any_cluster.set_options(warming_timeout=1.0)
    a = await owning_all(any_cluster)
    epochs = dict(a.owned)
    b = await any_cluster.join("b", principal=OTHER, answers_warm=False)
    await b.until("is to warm one", lambda c: bool(c.to_warm))
    await a.until("was written again", lambda c: c.owned != epochs)
    state = await any_cluster.state()
    assert {(held.record.owner, held.record.principal) for held in state.assignments.values()} == {("a", OWN)}


async def test_a_denial_tells_neither_whose_the_session_is_nor_the_session(any_cluster: Cluster) -> None:
    await owning_all(any_cluster)
    for call in CALLS.values():
        with pytest.raises(PermissionDenied) as caught:
            await call(any_cluster.instances["i1"], "a-guess", OTHER)
        assert OWN not in str(caught.value)
        assert "the-session" not in str(caught.value)


# --- what its own identity may do --------------------------------------------------------------------------------


async def test_the_identity_takes_its_name_over_with_another_session(any_cluster: Cluster) -> None:
    a = await owning_all(any_cluster)
    newer = await any_cluster.join("a", session="the-newer-session", principal=OWN)
    await newer.until("owns everything", lambda c: len(c.owned) == 2)
    await a.until("told", lambda c: c.ended is not None)
    assert isinstance(a.ended, Superseded)


async def test_a_session_resumes_at_another_instance_with_the_identity_and_nothing_moves(any_cluster: Cluster) -> None:
    a = await owning_all(any_cluster)
    epochs = dict(a.owned)
    another = await any_cluster.start_instance("i2", leads=False)
    a.crash()
    await a.connect(another)
    await a.until("owns everything", lambda c: c.owned == epochs)


async def test_a_session_from_before_identities_is_bound_to_the_one_that_resumes_it(any_cluster: Cluster) -> None:
    a = await owning_all(any_cluster, principal="")
    epochs = dict(a.owned)
    instance = any_cluster.instances["i1"]
    await instance.members.renew(GROUP, "a", "the-session", principal=OWN)
    with pytest.raises(NotRegistered):
        await instance.members.renew(GROUP, "a", "a-guess", principal=OTHER)
    a.crash()
    again = SteppedConsumer(any_cluster, "a", session="the-session", principal=OWN)
    await again.connect(instance)
    await again.until("owns everything", lambda c: c.owned == epochs)
    assert (await registered(any_cluster)).principal == OWN
    with pytest.raises(PermissionDenied):
        await instance.members.renew(GROUP, "a", "the-session", principal=OTHER)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_name_is_free_for_others_once_its_session_has_ended(any_cluster: Cluster) -> None:
    a = await owning_all(any_cluster)
    a.crash()
    other = SteppedConsumer(any_cluster, "a", session="the-others", principal=OTHER)

    async def joins() -> bool:
        try:
            await other.connect(any_cluster.instances["i1"])
        except PermissionDenied:
            return False
        return True

    await eventually(joins, within=3 * any_cluster.ttl + any_cluster.allowance, every=any_cluster.ttl / 20)
    await other.until("owns everything", lambda c: len(c.owned) == 2)


async def test_an_instance_that_lags_behind_denies_nobody_for_whom_a_name_had_before(cluster: Cluster) -> None:
    lagging: list[LaggingStore] = []

    def wrap(store: Store) -> Store:
        lagging.append(LaggingStore(store, cluster.group.prefix))
        return lagging[0]

    leader = await cluster.start_instance("leader")
    await cluster.add_topic(partitions=2)
    behind = await cluster.start_instance("behind", leads=False, wrap=wrap)
    await cluster.join("a", behind, session="the-others", principal=OTHER)
    await cluster.join("b", behind, session="the-others", principal=OTHER)
    lagging[0].lag()
    for name in ("a", "b"):
        await leader.members.deregister(GROUP, name, "the-others", gates_closed=True, principal=OTHER)
    await cluster.join("b", leader, session="the-session", principal=OWN)
    assert await behind.members.renew(GROUP, "b", "the-session", principal=OWN)
    async with anyio.create_task_group() as tasks:
        again = SteppedConsumer(cluster, "a", session="the-session", principal=OWN)
        tasks.start_soon(again.connect, behind)
        await anyio.sleep(1)
        lagging[0].catch_up()
    assert (await registered(cluster)).principal == OWN


async def test_an_operator_drains_a_consumer_of_any_identity(any_cluster: Cluster) -> None:
    a = await owning_all(any_cluster)
    b = await any_cluster.join("b", principal=OTHER)
    await any_cluster.instances["i1"].operations.drain(GROUP, "a")
    await a.until("ends well", lambda c: c.ended == "drained")
    await b.until("owns everything", lambda c: len(c.owned) == 2)


async def registered(cluster: Cluster, name: str = "a") -> Consumer:
    return (await cluster.state()).consumers[name].record


async def test_a_description_shows_which_identity_a_session_is_bound_to(any_cluster: Cluster) -> None:
    await owning_all(any_cluster)
    (member,) = (await any_cluster.instances["i1"].operations.describe(GROUP)).members
    assert member.consumer.principal == OWN


# --- exclusive groups: what a stranger broke with one call -------------------------------------------------------


async def one_moving(cluster: Cluster) -> tuple[SteppedConsumer, SteppedConsumer]:
    """`a` was asked to release one of its two partitions and has not done so; `b` has warmed it."""
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    a = await owning_all(cluster, answers_release=False)
    b = await cluster.join("b", principal=OWN)
    await a.until("told to release", lambda c: bool(c.to_release))
    return a, b


async def test_rule_17_another_identity_can_not_ack_the_release_of_what_an_owner_still_holds(
    any_cluster: Cluster,
) -> None:
    a, b = await one_moving(any_cluster)
    (moving,) = a.to_release
    ack = Ack(moving, a.to_release[moving].handoff_id)
    for session in ("the-session", ""):
        with pytest.raises(PermissionDenied):
            await any_cluster.instances["i1"].members.released(GROUP, "a", session, [ack], principal=OTHER)
    await anyio.sleep(0.5)
    assert not b.owned
    await a.release(moving)
    await b.until("is the owner", lambda c: moving in c.owned)


async def test_another_identity_can_not_end_the_session_of_an_owner_that_hangs(any_cluster: Cluster) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await owning_all(any_cluster)
    before = await everything(any_cluster)
    for session in ("the-session", ""):
        with pytest.raises(PermissionDenied):
            await any_cluster.instances["i1"].members.deregister(
                GROUP, "a", session, gates_closed=True, principal=OTHER
            )
    assert await everything(any_cluster) == before


async def test_another_identity_can_not_end_a_displaced_session_early(any_cluster: Cluster) -> None:
    """It would tell the leader that the displaced process has stopped, while that one may still work."""
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    a = await owning_all(any_cluster)
    a.crash()
    await any_cluster.join("a", session="the-newer-session", principal=OWN)
    displaced = (await registered(any_cluster)).displaced
    assert [one.session for one in displaced] == ["the-session"]
    with pytest.raises(PermissionDenied):
        await any_cluster.instances["i1"].members.deregister(
            GROUP, "a", "the-session", gates_closed=True, principal=OTHER
        )
    assert any_cluster.group.consumer("a") in await everything(any_cluster)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_another_identity_can_not_keep_a_dead_consumer_alive(any_cluster: Cluster) -> None:
    a = await owning_all(any_cluster)
    a.crash()
    b = await any_cluster.join("b", principal=OWN)
    instance, refused = any_cluster.instances["i1"], 0
    with anyio.fail_after(6 * any_cluster.ttl + any_cluster.allowance):
        while len(b.owned) < 2:
            try:
                await instance.members.renew(GROUP, "a", "the-session", principal=OTHER)
            except AssignerError:
                refused += 1
            await anyio.sleep(any_cluster.ttl / 10)
    assert refused > 5


async def test_another_identity_can_not_ack_a_warm_partition(any_cluster: Cluster) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    a = await owning_all(any_cluster)
    b = await any_cluster.join("b", session="the-session-of-b", principal=OWN, answers_warm=False)
    await b.until("is to warm", lambda c: bool(c.to_warm))
    ((moving, order),) = b.to_warm.items()
    ack = Ack(moving, order.handoff_id)
    with pytest.raises(PermissionDenied):
        await any_cluster.instances["i1"].members.ready(GROUP, "b", "the-session-of-b", [ack], principal=OTHER)
    await anyio.sleep(0.5)
    assert not a.to_release
    await b.ready(moving)
    await b.until("is the owner", lambda c: moving in c.owned)
