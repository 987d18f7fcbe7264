"""Every check of requests and acks can fail: each one is shown what it must not let pass, and what it must."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Consumer, FreezeOverdue, GroupOptions, Handoff, HandoffMode, Step, encode
from assigner.model.records import Router as RouterRecord
from assigner.model.routes import Route
from assigner.routing.handler import Target
from tests.chaos.checks import Violation
from tests.chaos.routers.request_checks import Lease, RequestChecks
from tests.chaos.routers.requests import Delivery, Request
from tests.support.cluster import Cluster, cluster_on, tp

pytestmark = pytest.mark.virtual_time
T0 = tp(0)
TTL = 9.0


class Pod:
    def __init__(self, name: str, gates: dict[TopicPartition, int]) -> None:
        self.name = name
        self.session = f"s-{name}"
        self.gates = gates

    def open_gates(self) -> dict[TopicPartition, int]:
        return self.gates


class Router:
    """A router that sends and acks what the test wants it to."""

    def __init__(self, name: str = "r1") -> None:
        self.name = name
        self.session = f"s-{name}"
        self.shown: set[tuple[TopicPartition, str]] = set()
        self.revision = 0


class Scene:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.a, self.b = Pod("a", {T0: 1}), Pod("b", {})
        self.checks = RequestChecks(cluster, lambda: [self.a, self.b])
        self.router = Router()
        self.lease = Lease(TTL)
        self.requests = 0
        self.held: dict[str, Request] = {}
        now = cluster.clock.now()
        self.lease.registering(now)
        self.lease.table_completed()
        self.lease.renewed(now, now)

    # --- the store ---------------------------------------------------------------------------------------------------

    async def register(self, *routers: str) -> None:
        for name in routers:
            await self.cluster.store.put(
                self.cluster.group.router(name), encode(RouterRecord(router_name=name, session=f"s-{name}"))
            )

    async def assign(self, owner: str, epoch: int) -> None:
        await self.cluster.store.put(
            self.cluster.group.consumer(owner), encode(Consumer(consumer_name=owner, session=f"s-{owner}"))
        )
        record = Assignment(topic="t", partition=0, owner=owner, session=f"s-{owner}", epoch=epoch)
        await self.cluster.store.put(self.cluster.group.assignment(T0), encode(record))

    async def handoff(self, step: Step, handoff_id: str = "h1") -> int:
        record = Handoff(
            topic="t", partition=0, old_owner="a", new_owner="b", handoff_id=handoff_id, step=step, phase=step.phase
        )
        return (await self.cluster.store.put(self.cluster.group.handoff(T0), encode(record))).revision

    async def freeze(self, handoff_id: str = "h1") -> None:
        """`a` owns the partition under epoch 1, and it is frozen; the router's table shows it."""
        if not self.checks.seen["assignments"]:
            await self.register("r1")
            await self.assign("a", 1)
        await self.handoff(Step.WARMING, handoff_id)
        self.router.revision = await self.handoff(Step.FREEZING, handoff_id)
        await self.look()

    async def look(self) -> None:
        """At everything, once."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.checks.watch)
            await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        self.cluster.began = (await self.cluster.store.get("/")).revision

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, key: str = "k", seq: int | None = None) -> Request:
        self.requests += 1
        return Request(self.requests, key, self.requests if seq is None else seq, T0, 1.0, 0.0)

    def send(self, owner: str = "a", epoch: int = 1, router: Router | None = None) -> Request:
        request = self.request()
        self.checks.sent(router or self.router, self.lease, request, Target("t", 0, owner, f"{owner}:80", epoch))
        return request

    def ack(self, handoff_id: str = "h1", epoch: int = 1) -> None:
        self.checks.acking(self.router, T0, handoff_id, Route("a", "a:80", epoch, handoff_id, True))

    def admit(self, pod: Pod, epoch: int, request: Request | None = None, router: str = "s-r1") -> Delivery:
        delivery = Delivery(request or self.request(), router, epoch, lambda _: None)
        self.checks.admitted(pod, delivery)
        return delivery


@pytest.fixture(params=[HandoffMode.EXCLUSIVE], ids=["exclusive"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with cluster_on("memory", options=GroupOptions(handoff_mode=request.param)) as cluster:
        yield Scene(cluster)


overlapping = pytest.mark.parametrize("scene", [HandoffMode.OVERLAP], ids=["overlap"], indirect=True)


async def violated(scene: Scene, rule: str) -> None:
    """A revision violates the rule."""
    with pytest.raises(ExceptionGroup) as caught:
        await scene.look()
    assert caught.group_contains(Violation, match=f"^{rule}:")


def violating(rule: str) -> pytest.RaisesExc[Violation]:
    """What is done in this block violates the rule."""
    return pytest.raises(Violation, match=f"^{rule}:")


async def test_a_good_move_is_let_pass(scene: Scene) -> None:
    await scene.register("r1")
    await scene.assign("a", 1)
    await scene.look()
    request = scene.send()
    delivery = scene.admit(scene.a, 1, request)
    await scene.freeze()
    scene.checks.took_effect(scene.a, delivery)
    scene.checks.ended(scene.router, request)
    scene.ack()
    await scene.handoff(Step.RELEASING)
    await scene.handoff(Step.RELEASED)
    await scene.assign("b", 2)
    await scene.cluster.store.delete(scene.cluster.group.handoff(T0))
    await scene.look()
    scene.a.gates, scene.b.gates = {}, {T0: 2}
    request = scene.send("b", 2)
    scene.checks.took_effect(scene.b, scene.admit(scene.b, 2, request))
    scene.checks.ended(scene.router, request)
    scene.checks.raise_violations()
    seen = scene.checks.seen
    assert (seen["sent"], seen["admitted"], seen["effects"], seen["freezes"], seen["cutovers"]) == (2, 2, 2, 1, 1)


# --- lease -----------------------------------------------------------------------------------------------------------


async def test_a_request_past_two_thirds_of_the_ttl(scene: Scene) -> None:
    await anyio.sleep(TTL * 2 / 3 - 0.1)
    scene.send()
    await anyio.sleep(0.2)
    with violating("lease"):
        scene.send()


async def test_a_request_after_a_lapse_with_the_table_of_before(scene: Scene) -> None:
    await anyio.sleep(TTL)
    now = scene.cluster.clock.now()
    scene.lease.renewed(now, now)
    with violating("lease"):
        scene.send()
    scene.lease.registering(now)
    scene.lease.table_completed()
    scene.send()


async def test_a_request_after_the_session_was_lost(scene: Scene) -> None:
    scene.lease.lost(scene.cluster.clock.now())
    with violating("lease"):
        scene.send()


# --- frozen, acked, drain --------------------------------------------------------------------------------------------


async def test_a_request_of_a_router_whose_table_shows_the_freeze(scene: Scene) -> None:
    await scene.freeze()
    with violating("frozen"):
        scene.send()
    scene.router.revision -= 1
    scene.send()


async def test_a_request_after_a_freeze_was_deleted_of_a_router_that_was_told_of_it(scene: Scene) -> None:
    await scene.freeze()
    await scene.cluster.store.delete(scene.cluster.group.handoff(T0))
    await scene.look()
    scene.router.revision = scene.cluster.began
    scene.send()
    scene.router.shown.add((T0, "h1"))
    with violating("frozen"):
        scene.send()


async def test_a_request_under_the_epoch_whose_freeze_was_acked(scene: Scene) -> None:
    await scene.freeze()
    scene.ack()
    scene.router.revision -= 1
    with violating("acked"):
        scene.send()
    scene.send("b", 2)


async def test_a_request_after_another_handoff_thawed_the_partition(scene: Scene) -> None:
    await scene.freeze()
    scene.ack()
    scene.router.revision = await scene.handoff(Step.WARMING, "h2")
    await scene.look()
    scene.send()
    scene.checks.raise_violations()


async def test_an_ack_while_a_request_is_in_flight(scene: Scene) -> None:
    request = scene.send()
    with violating("drain"):
        scene.ack()
    scene.checks.ended(scene.router, request)
    scene.ack()


async def test_an_ack_while_a_request_hangs_at_an_owner_of_before(scene: Scene) -> None:
    scene.send("dead", 0)
    scene.ack()
    scene.send("a", 0, other := Router("r2"))
    scene.checks.ended(other, scene.request())
    scene.router = other
    with violating("drain"):
        scene.ack()


# --- quorum ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [Step.RELEASING, Step.COMPLETE])
@overlapping
async def test_a_handoff_that_goes_on_without_an_ack(scene: Scene, step: Step) -> None:
    await scene.freeze()
    await scene.handoff(step)
    await violated(scene, "quorum")


@overlapping
async def test_a_handoff_that_goes_on_with_the_ack_of_another_one(scene: Scene) -> None:
    await scene.freeze()
    scene.ack("h0")
    await scene.handoff(Step.COMPLETE)
    await violated(scene, "quorum")


@overlapping
async def test_a_handoff_that_goes_on_with_the_acks_of_some(scene: Scene) -> None:
    await scene.register("r2")
    await scene.freeze()
    scene.ack()
    await scene.handoff(Step.COMPLETE)
    await violated(scene, "quorum")


@overlapping
async def test_a_handoff_that_goes_on_with_all_acks_and_without_those_who_left_or_came_later(scene: Scene) -> None:
    await scene.register("r2")
    await scene.freeze()
    await scene.register("r3")
    await scene.cluster.store.delete(scene.cluster.group.router("r2"))
    scene.ack()
    await scene.handoff(Step.COMPLETE)
    await scene.look()
    assert scene.checks.seen["cutovers"] == 1


@overlapping
async def test_a_handoff_that_goes_on_in_a_group_that_does_not_insist(scene: Scene) -> None:
    await scene.freeze()
    scene.checks.choose(FreezeOverdue.PROCEED)
    await scene.handoff(Step.COMPLETE)
    await scene.look()


# --- at pods ---------------------------------------------------------------------------------------------------------


async def test_a_router_that_goes_back_to_an_older_epoch(scene: Scene) -> None:
    scene.send("b", 2)
    with violating("back"):
        scene.send("a", 1)
    scene.send("a", 1, Router("r2"))


async def test_an_older_epoch_that_is_admitted_after_a_newer_one(scene: Scene) -> None:
    scene.a.gates, scene.b.gates = {}, {T0: 2}
    scene.admit(scene.b, 2)
    scene.a.gates, scene.b.gates = {T0: 1}, {}
    with violating("back"):
        scene.admit(scene.a, 1)


@overlapping
async def test_an_older_epoch_that_is_admitted_for_a_router_that_nobody_waited_for(scene: Scene) -> None:
    await scene.register("r1")
    await scene.cluster.store.delete(scene.cluster.group.router("r1"))
    await scene.look()
    scene.b.gates = {T0: 2}
    scene.admit(scene.b, 2)
    scene.admit(scene.a, 1)
    with violating("back"):
        scene.admit(scene.a, 1, router="s-r2")


async def test_a_request_under_an_epoch_that_the_pod_does_not_have(scene: Scene) -> None:
    with violating("gates"):
        scene.admit(scene.a, 2)
    with violating("gates"):
        scene.admit(scene.b, 1)


async def test_an_effect_at_an_owner_after_the_next_one_has_begun(scene: Scene) -> None:
    delivery = scene.admit(scene.a, 1)
    scene.a.gates, scene.b.gates = {}, {T0: 2}
    scene.admit(scene.b, 2)
    with violating("stale"):
        scene.checks.took_effect(scene.a, delivery)


@overlapping
async def test_an_effect_at_an_owner_after_the_next_one_has_begun_where_both_may(scene: Scene) -> None:
    delivery = scene.admit(scene.a, 1)
    scene.b.gates = {T0: 2}
    scene.admit(scene.b, 2)
    scene.checks.took_effect(scene.a, delivery)


async def test_a_request_that_has_its_effect_twice(scene: Scene) -> None:
    delivery = scene.admit(scene.a, 1)
    scene.checks.took_effect(scene.a, delivery)
    with violating("twice"):
        scene.checks.took_effect(scene.a, delivery)


async def test_a_request_that_begins_before_an_earlier_one_of_its_key(scene: Scene) -> None:
    scene.admit(scene.a, 1, scene.request("k", 1))
    scene.admit(scene.a, 1, scene.request("other", 0))
    with violating("order"):
        scene.admit(scene.a, 1, scene.request("k", 0))
    late = scene.request("k", 0)
    late.retried = 1
    scene.admit(scene.a, 1, late)
