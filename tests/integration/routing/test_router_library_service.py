"""The library's router against a scripted service: registrations, tables, acks, lapses, endings; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from grpclib.const import Status
from grpclib.events import RecvRequest, listen

from assigner.clock import LoopClock
from assigner.errors import InvalidInput
from assigner.model.keys import TopicPartition
from assigner.model.routes import PublishedLoads, Route, TableChanges
from assigner.routing import (
    Router,
    RouterClosed,
    RoutingTable,
    StashBound,
    StashLimits,
    StashOverflow,
    Superseded,
    Target,
    Timing,
    Unavailable,
    UnknownTopic,
)
from assigner.testing.waiting import eventually
from tests.support.fakes.scripted_routers import TOPIC, ScriptedRouters, at
from tests.support.fakes.scripted_service import NOT_REGISTERED, SUPERSEDED, UNAVAILABLE, Refusal

pytestmark = pytest.mark.virtual_time(sockets="local")
QUICK = Timing(call_timeout=10.0, keepalive=0.3, keepalive_timeout=5.0, first_pause=0.01, longest_pause=0.05)


class JumpingClock(LoopClock):
    """The loop's clock, and a test may let the process be stopped for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = 0.0

    def now(self) -> float:
        return super().now() + self.stopped


@asynccontextmanager
async def routing(service: ScriptedRouters, **options: Any) -> AsyncIterator[Router]:
    addresses = options.pop("addresses", [service.address])
    options.setdefault("timing", QUICK)
    options.setdefault("clock", LoopClock())
    with anyio.fail_after(600):
        async with Router(addresses, "billing", "router-1", **options) as router:
            yield router


class Request:
    """A request that is in flight until the test ends it."""

    def __init__(self, router: Router, partition: int = 0, size: int = 0) -> None:
        self.target: Target | None = None
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._run(router, partition, size))

    async def _run(self, router: Router, partition: int, size: int) -> None:
        async with router.route_partition(TOPIC, partition, size=size) as target:
            self.target = target
            await self._end.wait()

    async def until_sent(self) -> Target:
        await eventually(lambda: self.target is not None or self.task.done(), within=60)
        if self.target is None:
            await self.task
        assert self.target is not None
        return self.target

    async def end(self) -> None:
        self._end.set()
        await self.task


async def shows(router: Router, partition: int, route: Route | None) -> None:
    await eventually(lambda: router.table.route(TOPIC, partition) == route, within=60, what=f"shows {route}")


async def a_while() -> None:
    """Longer than an ack, a reconnect or a flush takes here, and shorter than a renewal's distance."""
    await anyio.sleep(2.0)


# --- the course of a move ------------------------------------------------------------------------------------------


async def test_a_move_loses_no_request_and_keeps_their_order() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        first = Request(router)
        assert await first.until_sent() == Target(TOPIC, 0, "a", "a:80", 1)
        service.show(p0=at("a", 1, "h1", frozen=True))
        await eventually(lambda: router.statistics().draining == 1)
        order: list[int] = []

        async def later(number: int) -> None:
            async with router.route_partition(TOPIC, 0) as target:
                assert (target.owner, target.epoch) == ("b", 2)
                order.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(later, number)
            await a_while()
            assert service.acks == [], "a request is in flight"
            await first.end()
            await service.receives(lambda: service.acks == [(0, "h1")])
            assert order == []
            service.show(p0=at("b", 2))
        assert order == list(range(100))
        found = router.statistics()
        assert (found.routed, found.held, found.stashed, found.in_flight, found.overflowed) == (101, 100, 0, 0, 0)
        assert (found.frozen, found.acked) == (0, 1)


async def test_what_arrives_while_the_stash_is_flushed_goes_after_it() -> None:
    async with ScriptedRouters(p0=at("a", 1, "h1", frozen=True)) as service, routing(service) as router:
        order: list[int] = []

        async def send(number: int) -> None:
            async with router.route_partition(TOPIC, 0):
                order.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(send, number)
            await eventually(lambda: router.statistics().stashed == 10)
            # The flip, and in the same step a request that finds its partition open.
            router.executor.switch(TopicPartition(TOPIC, 0), at("b", 2))
            router.executor.flush(TopicPartition(TOPIC, 0))
            await send(10)
        assert order == list(range(11))


async def test_a_raw_deletion_is_inert_and_the_repaired_owner_resolves_the_stash() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        service.show(p0=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(0, "h1")])
        request = Request(router)
        service.show(p0=at("a", 1))
        await a_while()
        assert request.target is None
        service.show(p0=at("a", 2))
        assert (await request.until_sent()).epoch == 2
        await request.end()


async def test_a_reaffirm_resolves_the_stash_back_to_the_owner() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        service.show(p0=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: bool(service.acks))
        request = Request(router)
        await a_while()
        service.show(p0=at("a", 2))
        assert await request.until_sent() == Target(TOPIC, 0, "a", "a:80", 2)
        await request.end()


async def test_a_successor_that_has_not_frozen_the_partition_opens_it_until_it_does() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        service.show(p0=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(0, "h1")])
        request = Request(router)
        service.show(p0=at("a", 1, "h2"))
        assert (await request.until_sent()).epoch == 1
        service.show(p0=at("a", 1, "h2", frozen=True))
        await a_while()
        assert service.acks == [(0, "h1")], "it is drained anew"
        await request.end()
        await service.receives(lambda: service.acks == [(0, "h1"), (0, "h2")])


async def test_a_router_that_joins_during_a_freeze_stashes_before_it_routes_and_acks() -> None:
    async with ScriptedRouters(p0=at("a", 1, "h1", frozen=True), p1=at("a", 1)) as service, routing(service) as router:
        await service.receives(lambda: service.acks == [(0, "h1")])
        request = Request(router)
        other = Request(router, 1)
        await other.until_sent()
        await other.end()
        assert request.target is None
        service.show(p0=at("b", 2))
        assert (await request.until_sent()).owner == "b"
        await request.end()


async def test_a_handoff_that_warms_up_or_is_past_the_flip_is_neither_stashed_nor_acknowledged() -> None:
    async with ScriptedRouters(p0=at("a", 1, "h1")) as service, routing(service) as router:
        request = Request(router)
        await request.until_sent()
        await request.end()
        service.show(p0=at("b", 2, "h1"))
        await shows(router, 0, at("b", 2, "h1"))
        request = Request(router)
        assert (await request.until_sent()).owner == "b"
        await request.end()
        await a_while()
        assert service.acks == []


async def test_a_drain_that_does_not_end_delays_only_its_own_partition() -> None:
    async with ScriptedRouters(p0=at("a", 1), p1=at("a", 1)) as service, routing(service, drain_timeout=60) as router:
        stuck = Request(router, 0)
        await stuck.until_sent()
        service.show(p0=at("a", 1, "h0", frozen=True), p1=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(1, "h1")])
        service.show(p1=at("b", 2))
        moved = Request(router, 1)
        assert (await moved.until_sent()).owner == "b"
        await moved.end()
        await anyio.sleep(61)
        assert router.statistics().overdue_drains == 1
        await stuck.end()
        await anyio.sleep(20)
        assert {ack for ack in service.acks if ack[0] == 0} == set(), "an overdue drain is not acknowledged"
        service.show(p0=at("a", 2))
        after = Request(router, 0)
        assert (await after.until_sent()).epoch == 2
        await after.end()


async def test_a_request_that_hangs_at_an_owner_before_the_last_one_holds_no_freeze_up() -> None:
    async with ScriptedRouters(p0=at("dead", 1)) as service, routing(service) as router:
        stuck = Request(router)
        await stuck.until_sent()
        service.show(p0=at("b", 2))
        await shows(router, 0, at("b", 2))
        service.show(p0=at("b", 2, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(0, "h1")])
        await stuck.end()


async def test_a_request_whose_block_raises_has_ended() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        with pytest.raises(ConnectionResetError):
            async with router.route_partition(TOPIC, 0):
                raise ConnectionResetError
        assert router.statistics().in_flight == 0
        service.show(p0=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(0, "h1")])


# --- the stash -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "limits"),
    [
        (StashBound.PARTITION_REQUESTS, StashLimits(partition_requests=3)),
        (StashBound.PARTITION_BYTES, StashLimits(partition_bytes=30)),
        (StashBound.REQUESTS, StashLimits(requests=3)),
        (StashBound.BYTES, StashLimits(bytes=39)),
    ],
)
async def test_a_stash_that_is_full_refuses_the_next_request(bound: StashBound, limits: StashLimits) -> None:
    frozen = at("a", 1, "h1", frozen=True)
    async with ScriptedRouters(p0=frozen, p1=frozen) as service, routing(service, stash=limits) as router:
        waiting = [Request(router, 0, 10) for _ in range(3)]
        await eventually(lambda: router.statistics().stashed == 3)
        with pytest.raises(StashOverflow, match=f"limit {bound.value} of .* was not sent; let callers retry") as caught:
            async with router.route_partition(TOPIC, 0, size=10):
                pass
        assert caught.value.bound is bound
        assert caught.value.limit == getattr(limits, bound.value)
        assert router.statistics().overflowed == 1
        # A caller that gives up makes room.
        waiting[0].task.cancel()
        await eventually(lambda: router.statistics().stashed == 2)
        waiting[0] = Request(router, 0, 10)
        await eventually(lambda: router.statistics().stashed == 3)
        service.show(p0=at("b", 2))
        for request in waiting:
            await request.until_sent()
            await request.end()
        found = router.statistics()
        assert (found.stashed, found.stashed_bytes, found.given_up) == (0, 0, 1)


async def test_the_limits_of_one_partition_are_not_those_of_another() -> None:
    frozen, limits = at("a", 1, "h1", frozen=True), StashLimits(partition_requests=1)
    async with ScriptedRouters(p0=frozen, p1=frozen) as service, routing(service, stash=limits) as router:
        waiting = [Request(router, 0), Request(router, 1)]
        await eventually(lambda: router.statistics().stashed == 2)
        service.show(p0=at("b", 2), p1=at("b", 2))
        for request in waiting:
            await request.until_sent()
            await request.end()


async def test_a_request_that_waits_for_too_long_is_refused_and_the_others_go_on() -> None:
    async with (
        ScriptedRouters(p0=at("a", 1, "h1", frozen=True)) as service,
        routing(service, stash=StashLimits(age=8.0)) as router,
    ):
        first = Request(router)
        await anyio.sleep(5)
        second = Request(router)
        with pytest.raises(StashOverflow, match="find out why the partition") as caught:
            await first.task
        assert caught.value.bound is StashBound.AGE
        service.show(p0=at("b", 2))
        assert (await second.until_sent()).epoch == 2
        await second.end()


def test_limits_that_let_nothing_through_are_refused() -> None:
    with pytest.raises(InvalidInput, match="limit age is 0; it must be above 0"):
        StashLimits(age=0)


# --- what may not be routed ----------------------------------------------------------------------------------------


async def test_a_partition_without_an_owner_is_held_until_it_has_one() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        service.show(p0=None)
        await shows(router, 0, None)
        requests = [Request(router, 0), Request(router, 3)]
        await a_while()
        assert [one.target for one in requests] == [None, None]
        service.show(p0=at("b", 2), p3=at("b", 1))
        for request in requests:
            await request.until_sent()
            await request.end()


async def test_an_unknown_topic_and_a_partition_that_is_none_are_refused_at_once() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        with pytest.raises(UnknownTopic, match="no topic 'other'"):
            await router.route("other", b"key").__aenter__()
        with pytest.raises(InvalidInput, match="no partition 4; it has 4"):
            await router.route_partition(TOPIC, 4).__aenter__()
        assert router.statistics().in_flight == 0


async def test_requests_wait_for_the_first_table_in_their_order() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service:
        service.opening = lambda _: None
        router = Router([service.address], "billing", "router-1", timing=QUICK, clock=LoopClock())
        order: list[int] = []

        async def send(number: int) -> None:
            async with router.route_partition(TOPIC, 0):
                order.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(send, number)
            await a_while()
            assert order == []
            service.opening = service.greet
            async with router:
                tasks.start_soon(send, 5)
                await eventually(lambda: len(order) == 6)
        assert order == [0, 1, 2, 3, 4, 5]


async def test_keys_go_to_the_partitions_of_kafkas_producers_and_keyless_requests_to_open_ones() -> None:
    routes: dict[str, Any] = {f"p{partition}": at("a", 1) for partition in range(4)}
    async with ScriptedRouters(**routes) as service, routing(service) as router:
        async with router.route(TOPIC, "a key") as target, router.route(TOPIC, b"a key") as same:
            assert target == same
        service.show(p1=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: bool(service.acks))
        picked = []
        for _ in range(6):
            async with router.pick(TOPIC) as target:
                picked.append(target.partition)
        assert sorted(picked) == [0, 0, 2, 2, 3, 3]


async def test_a_keyless_request_prefers_what_is_published_as_lighter() -> None:
    routes: dict[str, Any] = {f"p{partition}": at("a", 1) for partition in range(4)}
    async with ScriptedRouters(**routes) as service, routing(service) as router:
        assert service.stream.request.loads
        loads = (PublishedLoads(TOPIC, (0, 1, 2, 3), (0.0, 9.0, 9.0, 18.0)),)
        service.stream.send(TableChanges(revision=2, loads=loads, loads_valid_for=30.0))
        await eventually(lambda: router.table.revision == 2)

        async def picks() -> list[int]:
            found = [0] * 4
            for _ in range(100):
                async with router.pick(TOPIC) as target:
                    found[target.partition] += 1
            return found

        preferring = await picks()
        assert preferring[0] > 2 * preferring[3] > 0
        await anyio.sleep(31)
        assert max(evenly := await picks()) - min(evenly) <= 2


# --- the lease -----------------------------------------------------------------------------------------------------


async def test_a_process_that_was_stopped_sends_nothing_before_it_has_a_new_table() -> None:
    clock = JumpingClock()
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service, clock=clock) as router:
        service.routes[TopicPartition(TOPIC, 0)] = at("b", 2)
        service.revision += 1
        clock.stopped += 60.0
        # No task has run since: the clock alone tells.
        assert not router.may_route
        request = Request(router)
        assert await request.until_sent() == Target(TOPIC, 0, "b", "b:80", 2)
        await request.end()
        assert len(service.streams) == 2
        assert router.statistics().lapses == 1


async def test_a_request_that_was_let_through_while_the_process_was_stopped_waits_after_all() -> None:
    """It was woken, and the clock jumps before its task has run."""
    clock = JumpingClock()
    async with (
        ScriptedRouters(p0=at("a", 1, "h1", frozen=True)) as service,
        routing(service, clock=clock) as router,
    ):
        request = Request(router)
        await eventually(lambda: router.statistics().stashed == 1)
        router.executor.switch(TopicPartition(TOPIC, 0), at("a", 2))
        router.executor.flush(TopicPartition(TOPIC, 0))
        clock.stopped += 60.0
        service.routes[TopicPartition(TOPIC, 0)] = at("b", 3)
        service.revision += 1
        assert (await request.until_sent()).owner == "b"
        await request.end()


async def test_renewals_that_are_not_answered_hold_every_request_back_from_two_thirds_of_the_ttl_on() -> None:
    async with ScriptedRouters(p0=at("a", 1), ttl=30.0) as service, routing(service) as router:
        began = LoopClock().now()
        service.hang |= {"renew", "register"}
        await eventually(lambda: not router.may_route, within=60, every=0.1)
        assert LoopClock().now() - began <= 20.2
        request = Request(router)
        await a_while()
        assert request.target is None
        service.hang.clear()
        await request.until_sent()
        await request.end()


async def test_a_lost_session_holds_requests_back_until_the_router_is_registered_again() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        service.hang.add("register")
        service.stream.fail(NOT_REGISTERED)
        await eventually(lambda: not router.may_route)
        request = Request(router)
        await a_while()
        assert request.target is None
        service.hang.clear()
        service.routes[TopicPartition(TOPIC, 0)] = at("b", 2)
        service.cut()
        assert (await request.until_sent()).owner == "b"
        await request.end()
        assert {stream.request.session for stream in service.streams} == {router.session}


async def test_a_reconnect_within_the_lease_changes_nothing_and_acks_again() -> None:
    async with ScriptedRouters(p0=at("a", 1), p1=at("a", 1)) as service, routing(service) as router:
        service.show(p0=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(0, "h1")])
        service.cut()
        async with router.route_partition(TOPIC, 1) as target:
            assert target.epoch == 1
        await service.receives(lambda: service.acks == [(0, "h1")] * 2)
        assert len(service.streams) == 2
        assert router.statistics().lapses == 0


async def test_acks_are_repeated_with_every_renewal_while_the_partition_is_frozen() -> None:
    async with ScriptedRouters(p0=at("a", 1, "h1", frozen=True), ttl=30.0) as service, routing(service):
        await anyio.sleep(35)
        assert len(service.acks) >= 3
        service.show(p0=at("b", 2))
        await a_while()
        before = len(service.acks)
        await anyio.sleep(35)
        assert len(service.acks) == before


# --- acks ----------------------------------------------------------------------------------------------------------


async def test_acks_go_out_one_call_at_a_time_and_gather_meanwhile() -> None:
    routes: dict[str, Any] = {f"p{partition}": at("a", 1) for partition in range(130)}
    async with ScriptedRouters(partitions=130, **routes) as service, routing(service) as router:
        service.hold["ack"] = anyio.Event()
        service.show(p0=at("a", 1, "h0", frozen=True))
        await service.receives(lambda: service.ack_calls == 1)
        service.show(**{f"p{one}": at("a", 1, f"h{one}", frozen=True) for one in range(1, 130)})
        await eventually(lambda: router.statistics().pending_acks == 130)
        await a_while()
        assert service.ack_calls == 1
        service.hold.pop("ack").set()
        await service.receives(lambda: set(service.acks) == {(one, f"h{one}") for one in range(130)})
        assert service.ack_calls == 2


async def test_acks_that_fail_for_now_are_sent_again_and_refused_ones_are_not() -> None:
    async with ScriptedRouters(p0=at("a", 1), p1=at("a", 1)) as service, routing(service) as router:
        service.fail_once["ack"] = UNAVAILABLE
        service.refuse = lambda ack: "no such handoff" if ack.partition == 1 else ""
        service.show(p0=at("a", 1, "h0", frozen=True), p1=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: sorted(service.acks) == [(0, "h0"), (1, "h1")])
        await eventually(lambda: router.statistics().pending_acks == 0)
        found = router.statistics()
        assert (found.acked, found.refused_acks) == (1, 1)


async def test_an_ack_that_makes_the_whole_call_fail_delays_no_other() -> None:
    async with ScriptedRouters(p0=at("a", 1), p1=at("a", 1), p2=at("a", 1)) as service, routing(service) as router:
        original = service.cutover_ack

        async def picky(message: Any) -> Any:
            if any(ack.partition == 1 for ack in message.acks):
                raise Refusal(Status.INVALID_ARGUMENT, "that is no handoff id", "InvalidInput")
            return await original(message)

        service.cutover_ack = picky  # type: ignore[method-assign]
        service.show(**{f"p{one}": at("a", 1, f"h{one}", frozen=True) for one in range(3)})
        await service.receives(lambda: sorted(service.acks) == [(0, "h0"), (2, "h2")])
        assert router.is_connected
        await eventually(lambda: router.statistics().refused_acks == 1)


# --- tables --------------------------------------------------------------------------------------------------------


async def test_an_instance_that_lags_behind_changes_nothing_and_is_left_after_a_while() -> None:
    async with ScriptedRouters(p0=at("a", 5)) as service, routing(service) as router:
        service.show(p0=at("b", 6))
        await shows(router, 0, at("b", 6))
        service.opening = lambda stream: stream.send(service.table(revision=1, routes=()))
        service.cut()
        await service.receives(lambda: len(service.streams) == 2)
        async with router.route_partition(TOPIC, 0) as target:
            assert target.epoch == 6
        service.opening = service.greet
        # After the call timeout, which virtual time takes in few steps.
        await eventually(lambda: len(service.streams) == 3, within=60, every=0.2)
        assert router.statistics().stale_updates == 1
        assert router.may_route


async def test_a_table_of_a_hundred_thousand_partitions_arrives() -> None:
    routes: dict[str, Any] = {f"p{one}": at(f"pod-{one % 50}", one + 1) for one in range(100_000)}
    async with ScriptedRouters(partitions=100_000, **routes) as service, routing(service) as router:
        assert len(router.table) == 100_000
        async with router.route_partition(TOPIC, 99_999) as target:
            assert (target.owner, target.epoch) == ("pod-49", 100_000)


async def test_a_malformed_update_is_answered_by_another_registration() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        service.opening = lambda stream: stream.send(TableChanges(revision=9))
        service.cut()
        await service.receives(lambda: len(service.streams) >= 3)
        assert router.may_route, "the table is as good as before"
        service.opening = service.greet
        await service.receives(lambda: router.is_connected)


async def test_who_asks_for_a_newer_route_waits_for_it() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service) as router:
        async with router.route_partition(TOPIC, 0) as target:
            pass
        assert not await router.newer_than(target, within=1.0)
        async with anyio.create_task_group() as tasks:
            answers: list[bool] = []

            async def ask() -> None:
                answers.append(await router.newer_than(target))

            tasks.start_soon(ask)
            await a_while()
            service.show(p1=at("a", 1))
            assert answers == []
            service.show(p0=at("b", 2))
        assert answers == [True]


# --- joining and leaving -------------------------------------------------------------------------------------------


async def test_a_router_comes_up_at_whichever_address_answers_and_leaves_in_order() -> None:
    async with ScriptedRouters(p0=at("a", 1)) as service:
        async with routing(service, addresses=["127.0.0.1:1", service.address]) as router:
            assert router.statistics().address == service.address
            assert isinstance(router.table, RoutingTable)
        assert [one.session for one in service.deregistrations] == [router.session]
        with pytest.raises(RouterClosed, match="send it by another router"):
            await router.route_partition(TOPIC, 0).__aenter__()


async def test_a_router_that_gets_no_table_says_why() -> None:
    async with ScriptedRouters() as service:
        service.fail["register"] = UNAVAILABLE
        router = Router([service.address], "g", "r", timing=QUICK, clock=LoopClock(), connect_timeout=1.0)
        with pytest.raises(Unavailable, match=r"no routing table within 1\.0 s: .*the store does not answer"):
            await router.__aenter__()
        service.fail["register"] = Refusal(Status.INVALID_ARGUMENT, "no such group name", "InvalidName")
        with pytest.raises(Exception, match="no such group name"):
            await Router([service.address], "g", "r", timing=QUICK, clock=LoopClock()).__aenter__()


async def test_every_call_of_a_router_shows_its_token() -> None:
    shown: dict[str, set[object]] = {}

    async def note(event: RecvRequest) -> None:
        shown.setdefault(event.method_name.rpartition("/")[2], set()).add(event.metadata.get("authorization"))

    async with ScriptedRouters(p0=at("a", 1, "h1", frozen=True)) as service:
        assert service._server is not None
        listen(service._server, RecvRequest, note)
        async with routing(service, token=lambda: "a.b.c"):
            await service.receives(lambda: bool(service.acks))
    calls = ("RegisterRouter", "RenewRouter", "CutoverAck", "DeregisterRouter")
    assert shown == {method: {"Bearer a.b.c"} for method in calls}


async def test_leaving_fails_what_waits_and_waits_for_what_is_in_flight_before_it_deregisters() -> None:
    async with ScriptedRouters(p0=at("a", 1), p1=at("a", 1, "h1", frozen=True)) as service:
        async with routing(service) as router:
            sent, waiting = Request(router, 0), Request(router, 1)
            await sent.until_sent()
            closing = asyncio.create_task(router.close())
            with pytest.raises(RouterClosed, match="the router is closed; the request was not sent"):
                await waiting.task
            await a_while()
            assert service.deregistrations == []
            await sent.end()
            await closing
        assert len(service.deregistrations) == 1


async def test_a_router_with_requests_that_do_not_end_leaves_its_registration_to_expire() -> None:
    timing = Timing(close_timeout=5.0, first_pause=0.01)
    async with ScriptedRouters(p0=at("a", 1)) as service:
        async with routing(service, timing=timing) as router:
            stuck = Request(router)
            await stuck.until_sent()
            began = LoopClock().now()
        assert LoopClock().now() - began <= 6.0
        assert service.deregistrations == []
        await stuck.end()


@pytest.mark.parametrize("hanging", [{"deregister"}, {"deregister", "renew", "ack"}])
async def test_a_router_asked_to_stop_while_the_service_hangs_exits_inside_its_bounds(hanging: set[str]) -> None:
    async with ScriptedRouters(p0=at("a", 1, "h1", frozen=True)) as service:
        async with routing(service):
            service.hang |= hanging
            await a_while()
            began = LoopClock().now()
        assert LoopClock().now() - began <= 5.1


async def test_a_router_that_is_superseded_ends_with_an_error_and_sends_nothing_more() -> None:
    async with ScriptedRouters(p0=at("a", 1), p1=at("a", 1, "h1", frozen=True)) as service, routing(service) as router:
        waiting = Request(router, 1)
        await eventually(lambda: router.statistics().stashed == 1)
        service.stream.fail(SUPERSEDED)
        with pytest.raises(RouterClosed, match="another session took over"):
            await waiting.task
        with pytest.raises(Superseded):
            await router.closed()
        with pytest.raises(RouterClosed):
            await router.route_partition(TOPIC, 0).__aenter__()
        assert len(service.deregistrations) == 1, "moves wait for the session that lost its name until it leaves"


# --- a handler of the program's own ----------------------------------------------------------------------------------


class Steps:
    """Notes the steps, and may fail or hang in one."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.failing = ""
        self.drained = asyncio.Event()

    def stop(self, partition: TopicPartition) -> None:
        self._note("stop", partition)

    def stash(self, partition: TopicPartition) -> None:
        self._note("stash", partition)

    async def drain(self, partition: TopicPartition) -> None:
        self._note("drain", partition)
        await self.drained.wait()

    def switch(self, partition: TopicPartition, route: Route) -> None:
        self._note("switch", partition)

    def flush(self, partition: TopicPartition) -> None:
        self._note("flush", partition)

    def _note(self, step: str, partition: TopicPartition) -> None:
        self.steps.append(f"{step} {partition.partition}")
        if step == self.failing:
            raise OSError(step)


async def test_a_handler_of_its_own_is_called_in_the_order_of_the_steps() -> None:
    handler = Steps()
    async with ScriptedRouters(p0=at("a", 1)) as service, routing(service, handler=handler) as router:
        assert handler.steps == ["switch 0", "flush 0"]
        service.show(p0=at("a", 1, "h1", frozen=True))
        await eventually(lambda: handler.steps[2:] == ["stop 0", "stash 0", "drain 0"])
        assert service.acks == []
        handler.drained.set()
        await service.receives(lambda: service.acks == [(0, "h1")])
        service.show(p0=at("b", 2))
        await eventually(lambda: handler.steps[5:] == ["switch 0", "flush 0"])
        assert not service.stream.request.loads
        with pytest.raises(Exception, match="handler of its own"):
            router.route(TOPIC, b"key")


@pytest.mark.parametrize("step", ["stop", "stash", "drain"])
async def test_a_step_that_fails_is_not_acknowledged_and_concerns_no_other_partition(step: str) -> None:
    handler = Steps()
    handler.drained.set()
    async with ScriptedRouters(p0=at("a", 1), p1=at("a", 1)) as service, routing(service, handler=handler) as router:
        handler.failing = step
        service.show(p0=at("a", 1, "h0", frozen=True))
        await eventually(lambda: router.statistics().overdue_drains == 1)
        handler.failing = ""
        service.show(p1=at("a", 1, "h1", frozen=True))
        await service.receives(lambda: service.acks == [(1, "h1")])
        await a_while()
        assert service.acks == [(1, "h1")]
