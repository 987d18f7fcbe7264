"""After the chaos: all is healed, and every request has to come to its end, and none may be lost any more.

1. Everything is healed. What waits is served within `SERVED_WITHIN`; then nothing is frozen, stashed or handed over.
2. Pods join and leave in order, routers too, and requests go on: each is served, at its first try, in the order of its
   key.
3. The routers leave. Moves go on without a freeze, because there is nobody to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from assigner.core.group import GroupState
from assigner.model.keys import HandoffKey, RouterKey
from assigner.model.records import Handoff, Status, Step, decode
from assigner.store import PutEvent
from assigner.testing.waiting import eventually
from tests.chaos.checks import Violation
from tests.chaos.routers.requests import Request
from tests.chaos.routers.router import AckManner
from tests.support.faulty_stores import key_of

if TYPE_CHECKING:
    from tests.chaos.routers.course import RouterCourse

QUIET = 5.0
"""Longer than any pause that a leader makes between two things it wants to do: backoffs above all."""
QUIET_IN_ORDER = 2.5
"""The same where nothing has failed."""
SERVED_WITHIN = 90.0
"""Seconds after the healing: hangs, leases, timeouts of warming, freezing and releasing, and their backoffs."""
EXCUSED = ("served", "overflow", "pod crashed", "router died")
"""How a request may end while there is chaos."""


class Settling:
    def __init__(self, course: RouterCourse) -> None:
        self._course = course
        self._cluster = course.cluster
        self._traffic = course.traffic

    async def settle(self) -> None:
        await self._heal()
        await self._until_settled("after the chaos", SERVED_WITHIN, QUIET)
        self._nothing_is_lost()
        await self._move_in_order()
        await self._move_without_routers()

    async def _heal(self) -> None:
        course = self._course
        course.note("calm")
        for faults in self._cluster.faults.values():
            faults.heal()
        for pod in course.pods:
            pod.calm = True
        for router in course.routers:
            router.calm, router.acks = True, AckManner.PROMPTLY
        self._traffic.calm, self._traffic.pause = True, (0.1, 0.6)
        while len(course.staying()) < 2:
            course.join(calm=True)
        self._somebody_routes()

    def _somebody_routes(self) -> None:
        if self._course.traffic.is_on and not any(router.takes for router in self._course.routers):
            self._course.join_router(calm=True)

    # --- 1 -----------------------------------------------------------------------------------------------------------

    async def _until_settled(self, when: str, within: float, quiet: float = QUIET_IN_ORDER) -> None:
        """Everything is in its place, and has been for so long that nothing more is to come."""
        last: list[GroupState] = []
        clock = self._cluster.clock
        since, found = clock.now(), -1

        async def settled() -> bool:
            nonlocal since, found
            last[:] = [await self._cluster.state()]
            self._course.checks.raise_violations()
            # The last one may have been about to leave.
            self._somebody_routes()
            moved = max((held.mod_revision for held in last[0].assignments.values()), default=0)
            if self._unsettled(last[0]) or moved != found:
                since, found = clock.now(), moved
            return clock.now() - since > quiet

        try:
            await eventually(settled, within=within, every=0.5, what="settled")
        except Violation:
            raise
        except AssertionError:
            why = Violation(f"stuck: {when}: {self._unsettled(last[0]) or 'it does not come to rest'}")
            why.add_note(self._picture(last[0]))
            raise why from None

    def _unsettled(self, state: GroupState) -> str:
        """What is not yet as it has to be."""
        course = self._course
        alive = {pod.name for pod in course.alive()}
        if state.consumers.keys() != alive:
            return f"registered are {sorted(state.consumers)}, there are {sorted(alive)}"
        for name, consumer in state.consumers.items():
            if consumer.record.status is not Status.READY:
                return f"{name} has not come to the end of its drain"
        if state.handoffs or state.acks:
            return f"handoffs of {sorted(map(str, state.handoffs))}, acks of {sorted(map(str, state.acks))}"
        if state.displaced_routers or state.routers.keys() != {router.name for router in course.routers_alive()}:
            return f"registered routers are {sorted(state.routers)} and {sorted(map(str, state.displaced_routers))}"
        owned = {tp for tp, held in state.assignments.items() if held.record.owner in alive}
        if len(owned) != state.partitions():
            return f"only {len(owned)} partitions are owned by somebody who is there"
        return self._mistaken(state) or self._waiting()

    def _mistaken(self, state: GroupState) -> str:
        stored = {tp: (held.record.owner, held.record.epoch) for tp, held in state.assignments.items()}
        for pod in self._course.alive():
            if pod.open_gates() != {tp: epoch for tp, (owner, epoch) in stored.items() if owner == pod.name}:
                return f"{pod.session} believes {pod.open_gates()}, stored is {stored}"
        for router in self._course.routers_alive():
            believed = {tp: (route.owner, route.epoch) for tp, route in router.router.table}
            frozen = sorted(str(tp) for tp, route in router.router.table if route.frozen)
            if believed != stored or frozen:
                return f"{router.session} believes {believed} and frozen {frozen}, stored is {stored}"
            if router.router.statistics().frozen or not router.router.may_route:
                return f"{router.doing()} does not route"
        return ""

    def _waiting(self) -> str:
        late = self._traffic.on_their_way(began_before=self._cluster.clock.now() - 2.0)
        stashes = {router.name: router.waiting() for router in self._course.routers_alive() if router.waiting()}
        return f"{late[:5]} are on their way, stashed {stashes}" if late or stashes else ""

    def _picture(self, state: GroupState) -> str:
        """How things stand, for who has to understand a failure."""
        lines = [f"leader {state.leader and state.leader.record.holder}, instances {sorted(self._cluster.instances)}"]
        lines += [f"{state.options}\n{state.plan}"]
        lines += [f"registered {consumer.record}" for consumer in state.consumers.values()]
        lines += [f"registered {router.record}" for router in state.routers.values()]
        for tp, held in sorted(state.assignments.items()):
            handoff = state.handoffs.get(tp)
            acks = [ack.record for ack in state.acks.get(tp, {}).values()]
            lines.append(f"{tp}: {held.record.owner}/{held.record.session} {held.record.epoch} {handoff} {acks}")
        for pod in self._course.alive():
            lines.append(f"pod {pod.name}/{pod.session} {pod.open_gates()}, serves {pod.serves()}")
        lines += [router.doing() for router in self._course.routers_alive()]
        return "\n".join(lines)

    def _nothing_is_lost(self) -> None:
        for request in self._traffic.requests:
            if request.outcome and not request.outcome.startswith(EXCUSED):
                raise Violation(f"lost: {request}")
            if request.outcome == "served" and request.served != 1:
                raise Violation(f"lost: {request} was answered and took effect {request.served} times")
        if not self._course.checks.seen["effects"]:
            raise Violation("nothing happened at all")

    # --- 2 -----------------------------------------------------------------------------------------------------------

    async def _move_in_order(self) -> None:
        course = self._course
        course.note("moves in order")
        first = len(self._traffic.requests)
        before = course.checks.seen["cutovers"]
        self._traffic.pause = (0.02, 0.3)
        course.join(calm=True)
        course.join(calm=True)
        if len(course.routers_alive()) < 2:
            course.join_router(calm=True)
        await self._until_settled("after joins in order", 30.0)
        await self._drain_an_owner("after a drain in order")
        self._nothing_is_lost()
        self._each_is_served_at_its_first_try(self._traffic.requests[first:])
        if course.checks.seen["cutovers"] == before:
            raise Violation("no partition moved by a freeze although routers are there")

    async def _drain_an_owner(self, when: str) -> None:
        leaving = self._course.dice.choice([pod for pod in self._course.staying() if pod.open_gates()])
        self._course.note(f"{leaving.name} leaves in order")
        await leaving.drain()
        await self._until_settled(when, 30.0)

    def _each_is_served_at_its_first_try(self, requests: list[Request]) -> None:
        now = self._cluster.clock.now()
        for request in requests:
            if request.outcome != "served" and (request.outcome or request.began < now - 2.0):
                raise Violation(f"lost: {request} although all moves were in order")
            if request.retried:
                raise Violation(f"lost: {request} had to be sent {request.retried} times more, all in order")

    # --- 3 -----------------------------------------------------------------------------------------------------------

    async def _move_without_routers(self) -> None:
        course = self._course
        course.note("all routers leave")
        self._traffic.is_on = False
        async with anyio.create_task_group() as tasks:
            for router in course.routers_alive():
                tasks.start_soon(router.leave)
        await self._until_settled("without routers", 30.0)
        before = await self._cluster.state()
        course.join(calm=True)
        await self._drain_an_owner("after a join and a drain without routers")
        moved = False
        for event in await self._cluster.history(before.revision):
            key = self._cluster.group.parse(key_of(event))
            if isinstance(key, RouterKey):
                raise Violation(f"waits: {event} without a router")
            if isinstance(key, HandoffKey) and isinstance(event, PutEvent):
                moved = True
                if decode(Handoff, event.entry.value)[0].at is Step.FREEZING:
                    raise Violation(f"waits: {key.tp} is frozen although no router is registered")
        if not moved:
            raise Violation("nothing moved although an owner left")
