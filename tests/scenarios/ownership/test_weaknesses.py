"""Known weaknesses of the upstream assigner, by their numbers, and that ours does not have them: ownership (1 to 17).

Elsewhere are 12 to 15, 19 to 27 and 31 (`test_weaknesses_of_service.py`), 28, SIGTERM
(`integration/processes/test_serve.py`, `integration/processes/test_processes_leaders.py`), 29, TLS and authentication
(`integration/server/test_grpc_server_tls.py`, `integration/etcd/test_etcd_tls.py`,
`integration/etcd/test_etcd_login.py`, `integration/kafka/test_kafka_topics_secured.py`), and 30, probes and metrics
(`integration/server/test_web.py`; names in `unit/settings/test_settings.py`). 18 is about Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import anyio
import msgspec
import pytest

from assigner.core.group import GroupState
from assigner.errors import Evicted, NotRegistered, NotTheTarget
from assigner.instance import Instance
from assigner.model.records import HandoffMode, LeaderRecord, Phase, Status, Step, encode
from assigner.store import Compare, Operation, Put, Store, TransactionResult
from assigner.testing.faults import Delay, FaultyStore, Injected
from tests.support.cluster import EXPIRES, Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


class Sent(FaultyStore):
    """A store to which a transaction is on its way whatever becomes of its sender."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._sent: set[asyncio.Task[TransactionResult]] = set()

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        sending = asyncio.create_task(super().transact(compares, operations, otherwise=otherwise), name="sent")
        self._sent.add(sending)
        # Its sender may be gone when it fails, and then nobody else asks how it ended.
        sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
        sending.add_done_callback(self._sent.discard)
        return await asyncio.shield(sending)

    async def close(self) -> None:
        """What has not arrived when the test is over need not arrive any more."""
        for sending in list(self._sent):
            sending.cancel()
            await asyncio.wait([sending])
        await super().close()


def faults_of(instance: Instance) -> FaultyStore:
    assert isinstance(instance.store, FaultyStore)
    return instance.store


def hold_back(instance: Instance, holds: Callable[[list[Operation]], bool], seconds: float) -> Injected:
    """Have the instance's next transaction with such operations arrive late."""
    return faults_of(instance).inject(
        Delay(seconds), kinds=["transact"], where=lambda _, __, operations: holds(list(operations))
    )


def puts(part: str) -> Callable[[list[Operation]], bool]:
    return lambda operations: any(isinstance(op, Put) and part in op.key for op in operations)


async def moving(cluster: Cluster, partitions: int = 2, **how: bool) -> tuple[SteppedConsumer, SteppedConsumer]:
    """a owns everything and b was just asked to warm its half. Neither answers unless told to."""
    await cluster.add_topic(partitions=partitions)
    if not cluster.instances:
        await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=partitions)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: len(c.to_warm) == partitions // 2)
    return a, b


# --- 1: nobody notices a lease that is over ----------------------------------------------------------------------


@pytest.mark.parametrize("renews", [True, False])
async def test_01_a_consumer_whose_lease_is_over_is_notified(any_cluster: Cluster, renews: bool) -> None:
    await any_cluster.add_topic()
    instance = await any_cluster.start_instance()
    a = await any_cluster.join("a", renews=renews)
    state = await any_cluster.until_counts(a=8)
    await any_cluster.store.revoke(state.consumers["a"].lease)
    await a.until("its stream ends", lambda c: isinstance(c.ended, NotRegistered))
    with pytest.raises(NotRegistered):
        await instance.members.renew("g", "a", a.session)


async def test_01_a_leader_whose_lease_is_over_leads_no_more(any_cluster: Cluster) -> None:
    await any_cluster.add_topic()
    instance = await any_cluster.start_instance()
    await any_cluster.join("a")
    first = await any_cluster.until_counts(a=8)
    assert first.leader is not None
    won = first.leader.mod_revision
    coordinator = instance.coordinators.active["g"]
    await any_cluster.store.revoke(first.leader.lease)
    await any_cluster.until("another term", lambda s: bool(s.leader and s.leader.mod_revision > won))
    await any_cluster.join("b")
    await any_cluster.until_counts(a=4, b=4)
    assert instance.coordinators.active["g"] is not coordinator


# --- 2: a deposed leader goes on writing -------------------------------------------------------------------------


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_02_what_a_deposed_leader_still_writes_is_refused(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    i1 = await any_cluster.start_instance("i1", wrap=Sent)
    await any_cluster.join("a", answers_release=False)
    before = await any_cluster.until_counts(a=2)
    late = hold_back(i1, puts("/handoffs/"), any_cluster.ttl / 2)
    hold_back(i1, puts("/assigner/leader"), 2 * any_cluster.ttl)
    await any_cluster.join("b")
    await any_cluster.until("the write is under way", lambda _: late.hits == 1)
    # Somebody else is the leader by now, though this one has not heard of it.
    lease = (await any_cluster.store.grant(600)).lease
    await any_cluster.store.delete(any_cluster.group.leader)
    await any_cluster.store.put(any_cluster.group.leader, encode(LeaderRecord(holder="other")), lease=lease)
    await anyio.sleep(any_cluster.ttl)
    state = await any_cluster.state()
    assert not state.handoffs
    assert {p: a.mod_revision for p, a in state.assignments.items()} == {
        p: a.mod_revision for p, a in before.assignments.items()
    }


# --- 3, 4, 5, 6: handoffs that stand still -----------------------------------------------------------------------


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_03_a_new_leader_goes_on_with_what_is_ready(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=2)
    i1 = await any_cluster.start_instance("i1", wrap=FaultyStore)
    i2 = await any_cluster.start_instance("i2")
    a = await any_cluster.join("a", i2)
    await any_cluster.until_counts(a=2)
    b = await any_cluster.join("b", i2, answers_warm=False)
    await b.until("asked to warm", lambda c: len(c.to_warm) == 1)
    (moved,) = b.to_warm
    faults_of(i1).freeze()
    await b.ready(moved)
    assert (await any_cluster.state()).handoffs[moved].record.phase is Phase.READY
    began = any_cluster.clock.now()
    await any_cluster.until_counts(within=90, a=1, b=1)
    assert any_cluster.clock.now() - began < 2 * any_cluster.ttl + 2 + any_cluster.allowance
    await a.until("has let it go", lambda c: moved not in c.owned)
    faults_of(i1).heal()


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_04_a_handoff_that_stands_still_holds_nothing_else_up(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=6)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    c = await any_cluster.join("c")
    await any_cluster.until_counts(a=3, c=3)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda x: len(x.to_warm) == 2)
    stuck = set(b.to_warm)
    lost = (await any_cluster.state()).owned["c"] - stuck
    c.crash()
    state = await any_cluster.until("c's are owned", lambda s: not s.owned["c"], within=90)
    assert {state.assignments[p].record.owner for p in lost} <= {"a", "b"}
    await b.ready(*b.to_warm)
    await any_cluster.until_counts(a=3, b=3)


async def test_05_a_warm_may_take_its_time_and_its_cancellation_is_sent(any_cluster: Cluster) -> None:
    limit = 1.0 if any_cluster.allowance else 300.0
    await any_cluster.set_options(warming_timeout=limit, balance_backoff=900.0)
    a, b = await moving(any_cluster)
    (moved,) = b.to_warm
    order = b.to_warm[moved]
    await any_cluster.until("given up", lambda s: not s.handoffs, within=2 * limit)
    assert (await any_cluster.owners())[moved] == "a"
    await b.until("told so", lambda c: not c.to_warm)
    assert any(cancel.handoff_id == order.handoff_id for c in b.heard for cancel in c.cancels)
    # The late ack is idempotent: it changes nothing.
    await b.ready(moved)
    assert not (await any_cluster.state()).handoffs
    # Not at once again, from nothing, to the same consumer.
    heard = len(b.heard)
    await anyio.sleep(limit)
    assert not any(warm.tp == moved for c in b.heard[heard:] for warm in c.warms)
    await a.until("still its owner", lambda c: moved in c.owned)


async def test_05_each_step_has_its_own_time(cluster: Cluster) -> None:
    await cluster.set_options(warming_timeout=300.0, release_timeout=60.0)
    a, b = await moving(cluster)
    (moved,) = b.to_warm
    await anyio.sleep(290)
    await b.ready(moved)
    await a.until("asked to release", lambda c: moved in c.to_release)
    await anyio.sleep(50)
    assert a.ended is None
    await a.release(moved)
    await cluster.until_counts(a=1, b=1)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_06_an_owner_that_does_not_release_is_evicted_before_it_is_forgotten(any_cluster: Cluster) -> None:
    await any_cluster.set_options(release_timeout=1.0)
    a, b = await moving(any_cluster)
    (moved,) = b.to_warm
    await b.ready(moved)
    await a.until("asked to release", lambda c: moved in c.to_release)
    await a.until("evicted", lambda c: isinstance(c.ended, Evicted))
    a.renews = False
    # The handoff stays until the session is over for sure.
    state = await any_cluster.state()
    if "a" in state.consumers:
        assert moved in state.handoffs
    await any_cluster.until("a is gone", lambda s: "a" not in s.consumers, within=90)
    state = await any_cluster.until_counts(b=2)
    assert {held.record.session for held in state.assignments.values()} == {b.session}


# --- 7, 8, 9: answers and flips that belong to something else ----------------------------------------------------


async def test_07_only_the_target_can_report_ready_and_only_while_it_warms(any_cluster: Cluster) -> None:
    a, b = await moving(any_cluster)
    (moved,) = b.to_warm
    stranger = await any_cluster.join("stranger", answers_warm=False)
    before = await any_cluster.handoff(moved)
    with pytest.raises(NotTheTarget):
        await stranger.ready(moved)
    await a.ready(moved)
    assert await any_cluster.handoff(moved) == before

    order = b.to_warm[moved]
    await b.ready(moved)
    await a.until("asked to release", lambda c: moved in c.to_release)
    flipped = await any_cluster.handoff(moved)
    b.to_warm[moved] = order
    await b.ready(moved)
    assert await any_cluster.handoff(moved) == flipped

    await a.release(moved)
    await any_cluster.until("over", lambda s: moved not in s.handoffs)
    epoch = (await any_cluster.state()).assignments[moved].record.epoch
    b.to_warm[moved] = order
    await b.ready(moved)
    state = await any_cluster.state()
    assert moved not in state.handoffs
    assert state.assignments[moved].record.epoch == epoch


async def test_08_only_the_old_owner_can_report_the_release_of_this_very_handoff(any_cluster: Cluster) -> None:
    a, b = await moving(any_cluster)
    (moved,) = b.to_warm
    # Too early, by the right one; then by the wrong one.
    await a.release(moved)
    assert (await any_cluster.state()).handoffs[moved].record.phase is Phase.WARMING
    await b.ready(moved)
    await a.until("asked to release", lambda c: moved in c.to_release)
    await b.release(moved)
    assert (await any_cluster.state()).handoffs[moved].record.phase is Phase.COMPLETE

    # A late answer to an earlier handoff does not end a later one of the same partition.
    stale = a.to_release[moved]
    a.to_release[moved] = msgspec.structs.replace(stale, handoff_id="an-earlier-one")
    await a.release(moved)
    assert (await any_cluster.state()).handoffs[moved].record.phase is Phase.COMPLETE
    a.to_release[moved] = stale
    await a.release(moved)
    await any_cluster.until_counts(a=1, b=1)


async def test_09_a_flip_decided_on_a_handoff_that_was_replaced_is_refused(any_cluster: Cluster) -> None:
    i1 = await any_cluster.start_instance(wrap=FaultyStore)
    _, b = await moving(any_cluster)
    (moved,) = b.to_warm
    late = hold_back(i1, puts("/assignments/"), 0.5)
    await b.ready(moved)
    await any_cluster.until("the flip is under way", lambda _: late.hits == 1)
    # Deleted and made again, so that its version counts from one again, with the same ends.
    current = (await any_cluster.state()).handoffs[moved]
    again = msgspec.structs.replace(
        current.record, handoff_id="another", step=Step.WARMING, phase=Phase.WARMING, started_at=1
    )
    await any_cluster.store.delete(current.key)
    await any_cluster.store.put(current.key, encode(again))
    await any_cluster.store.put(current.key, encode(again))
    await anyio.sleep(1)
    state = await any_cluster.state()
    assert state.assignments[moved].record.owner == "a"
    assert state.handoffs[moved].record.handoff_id == "another"


async def test_09_a_flip_never_overwrites_an_assignment_that_changed(any_cluster: Cluster) -> None:
    i1 = await any_cluster.start_instance(wrap=FaultyStore)
    _, b = await moving(any_cluster)
    (moved,) = b.to_warm
    late = hold_back(i1, puts("/assignments/"), 0.5)
    await b.ready(moved)
    await any_cluster.until("the flip is under way", lambda _: late.hits == 1)
    held = (await any_cluster.state()).assignments[moved]
    await any_cluster.store.put(held.key, held.encode(msgspec.structs.replace(held.record, epoch=70)))
    state = await any_cluster.until("flipped in the end", lambda s: s.assignments[moved].record.owner == "b")
    assert state.assignments[moved].record.epoch == 71


# --- 10, 11: streams ---------------------------------------------------------------------------------------------


async def test_10_the_end_of_an_older_stream_leaves_the_newer_one_alone(any_cluster: Cluster) -> None:
    await any_cluster.add_topic()
    await any_cluster.start_instance()
    older = await any_cluster.join("a")
    before = await any_cluster.until_counts(a=8)
    newer = await any_cluster.join("a", session=older.session)
    await older.until("its stream ends", lambda c: c.ended is not None)
    await newer.until("has everything", lambda c: len(c.owned) == 8)
    assert (await any_cluster.state()).assignments == before.assignments
    await any_cluster.join("b")
    await any_cluster.until_counts(a=4, b=4)
    await newer.until("hears what comes next", lambda c: len(c.owned) == 4)


async def test_11_no_update_is_lost_between_snapshot_and_stream(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=12)
    i1 = await any_cluster.start_instance("i1")
    i2 = await any_cluster.start_instance("i2", wrap=FaultyStore)
    await any_cluster.join("a", i1)
    await any_cluster.until_counts(a=12)
    # While the second instance is still reading the group for its first consumer, much goes on.
    faults_of(i2).inject(Delay(1.0), kinds=["list"], where=lambda _, prefix: prefix == any_cluster.group.prefix)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(any_cluster.join, "b", i2)
        for name in ("c", "d"):
            await any_cluster.join(name, i1)
    await any_cluster.until_counts(a=3, b=3, c=3, d=3)
    state = await any_cluster.state()
    for name, consumer in any_cluster.consumers.items():
        wanted = {p: state.assignments[p].record.epoch for p in state.owned[name]}
        await consumer.until("knows what it owns", lambda c, wanted=wanted: c.owned == wanted)  # type: ignore[misc]


# --- 16, 17: who holds a partition, and until when ---------------------------------------------------------------


async def test_16_exclusively_nobody_is_assigned_before_the_other_released(any_cluster: Cluster) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    a, b = await moving(any_cluster)
    (moved,) = b.to_warm
    await b.ready(moved)
    await a.until("asked to release first", lambda c: moved in c.to_release)
    assert moved not in b.owned
    assert (await any_cluster.owners())[moved] == "a"
    await a.release(moved)
    await b.until("then told", lambda c: moved in c.owned)
    assert b.owned[moved] == 2
    await any_cluster.until_counts(a=1, b=1)


async def test_16_exclusively_a_dead_owners_partitions_wait_for_its_lease(any_cluster: Cluster) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await any_cluster.add_topic(partitions=2)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    b = await any_cluster.join("b")
    state = await any_cluster.until_counts(a=1, b=1)
    lease = state.consumers["a"].lease
    # Its key is gone by an operator's hand, but its own clock may still admit work until its lease is over.
    a.crash()
    await any_cluster.store.delete(any_cluster.group.consumer("a"))
    await anyio.sleep(any_cluster.a_while)
    assert len(b.owned) == 1
    await any_cluster.store.revoke(lease)
    await any_cluster.until_counts(b=2)


async def test_16_exclusively_a_second_process_of_the_same_name_waits_for_the_first(any_cluster: Cluster) -> None:
    await any_cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await any_cluster.add_topic(partitions=2)
    await any_cluster.start_instance()
    first = await any_cluster.join("a", session="one")
    await any_cluster.until_counts(a=2)
    second = await any_cluster.join("a", session="two")
    await first.until("told why", lambda c: c.ended is not None)
    await anyio.sleep(any_cluster.a_while)
    assert not second.owned
    # It says that its gates are closed: nobody has to wait for its lease.
    await first.deregister(gates_closed=True)
    await second.until("has everything", lambda c: set(c.owned.values()) == {2})
    await any_cluster.until_counts(a=2)


async def test_17_the_release_of_a_draining_owner_is_waited_for_and_sent_again(any_cluster: Cluster) -> None:
    await any_cluster.set_options(release_timeout=10 * any_cluster.ttl)
    a, b = await moving(any_cluster)
    assert await a.deregister()
    await b.until("asked to warm all", lambda c: len(c.to_warm) == 2)
    await b.ready(*b.to_warm)
    await a.until("asked to let all go", lambda c: len(c.to_release) == 2)

    def waits(state: GroupState) -> bool:
        return {h.record.phase for h in state.handoffs.values()} == {Phase.COMPLETE} and len(state.handoffs) == 2

    state = await any_cluster.until("both wait for a", waits)
    assert state.consumers["a"].record.status is Status.DRAINING
    a.crash()
    again = await any_cluster.join("a", session=a.session, answers_release=False)
    await again.until("told again", lambda c: len(c.to_release) == 2)
    assert waits(await any_cluster.state())
    assert not again.owned
    await again.release(tp(0), tp(1))
    await any_cluster.until_counts(b=2)
    await again.until("ended well", lambda c: c.ended == "drained")
