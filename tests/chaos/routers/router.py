"""A router: the library's own table, permit, cutovers, registration and executor, without a wire.

It speaks to an instance's `routers` directly; what would go over a wire is encoded, decoded and translated as there. A
router that hangs reads and sends nothing, while its clock goes on. Its requests travel to pods over one connection for
each pod, in order, each after a short time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import msgspec

from assigner.aio.wakeup import Wakeup
from assigner.api import RouterRegistration
from assigner.client.channel import Address, Dialer, Unavailable, error_of
from assigner.client.registration import Broken, RegistrationRejected
from assigner.clock import Clock
from assigner.core.routing.permit import RoutingPermit
from assigner.core.routing.table import RoutingTable
from assigner.errors import AssignerError, NotRegistered, Superseded
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, RoutingOpening, TableChanges
from assigner.proto.runtime import message_class
from assigner.routing.cutovers import CutoverTasks
from assigner.routing.executor import CutoverExecutor
from assigner.routing.handler import RouterClosed, Target
from assigner.routing.registration import RegisteredRouter, RouterEnd, RouterState
from assigner.routing.rpc import RouterIdentity
from assigner.routing.stash import StashLimits, StashOverflow
from assigner.server.services.route_encoding import encode
from assigner.server.transport.status import status_of
from tests.chaos.routers.pod import Pod
from tests.chaos.routers.request_checks import Lease, RequestChecks
from tests.chaos.routers.requests import Delivery, NothingDone, Request, Unknown
from tests.chaos.routers.suspension import Suspension
from tests.support.cluster import GROUP

if TYPE_CHECKING:
    from tests.chaos.routers.traffic import Traffic

NEWER_WITHIN = 1.0
"""Seconds that a refused request waits for a newer route before it is sent again."""


class AckManner(Enum):
    PROMPTLY = "promptly"
    LATE = "late"
    TWICE = "twice"
    NEVER = "never"


class ChaosRouter:
    def __init__(
        self,
        name: str,
        session: str,
        *,
        ttl: float,
        dice: random.Random,
        clock: Clock,
        instances: Callable[[], list[Instance]],
        pods: Callable[[], list[Pod]],
        checks: RequestChecks,
        traffic: Traffic,
        limits: StashLimits,
    ) -> None:
        self.name = name
        self.session = session
        self.table = RoutingTable()
        self.permit = RoutingPermit()
        self.executor = CutoverExecutor(self.table, self._may_route, clock.now, limits=limits)
        self.changes = Wakeup()
        self.cutovers = CutoverTasks(self.executor, self.changes, 2 * ttl)
        self.lease = Lease(ttl)
        self.first_revision = 0
        """What its first table showed."""
        self.gone = ""
        """Why it is over for good."""
        self.leaving = False
        self.calm = False
        self.acks = AckManner.PROMPTLY
        self.stopped = Suspension(clock)
        self._inbox: deque[Request] = deque()
        self._arrived = anyio.Event()
        self.instance: Instance | None = None
        self.dice = dice
        self.clock = clock
        self.checks = checks
        self._ttl = ttl
        self._instances = instances
        self._pods = pods
        self._traffic = traffic
        self._link: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._accepted: list[Request] = []
        """On their way through this router."""
        self._arrivals: dict[str, float] = {}
        """When the last request over a connection arrives."""

    @property
    def revision(self) -> int:
        return self.table.revision

    @property
    def takes(self) -> bool:
        """Whether programs send their requests here."""
        return not self.gone and not self.leaving and self._tasks is not None

    def _may_route(self) -> bool:
        return self.permit.holds(self.clock.now())

    # --- a life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        state = RouterState(self.table, self.permit, self.cutovers, self.changes, self.clock, self._publish)
        try:
            async with anyio.create_task_group() as self._tasks:
                self.cutovers.begin(self._tasks)
                self._tasks.start_soon(self._read_requests)
                while not self.gone:
                    await self._connect(state)
                    await self.rest(0.05, 0.4)
                self._tasks.cancel_scope.cancel()
        finally:
            for request in self._accepted if self.gone else ():
                request.abandoned = True
                request.end(f"router {self.gone}", self.clock.now())

    def end(self, why: str) -> None:
        self.gone = self.gone or why
        if self._tasks:
            self._tasks.cancel_scope.cancel()

    async def leave(self, why: str = "left") -> None:
        """Send what is in flight to its end and nothing else, then deregister, as `Router.close` does."""
        if self.leaving:
            return
        self.leaving = True
        for request in self._accepted:
            # Those of its key that come later go another way, and may be faster.
            request.retried += 1
        self.executor.close(why)
        await self.executor.until_idle()
        if self.instance in self._instances():
            # If that fails, its lease will end.
            with suppress(AssignerError):
                await self._rpc(self.instance).deregister()
        self.end(why)

    def disconnect(self) -> None:
        if self._link:
            self._link.cancel()

    def hang(self, seconds: float) -> None:
        """The process stands still. Its clock does not."""
        self.stopped.begin(seconds)

    async def rest(self, least: float, most: float) -> None:
        await anyio.sleep(self.dice.uniform(least, most))
        await self.stopped.awake()

    # --- one registration after another ------------------------------------------------------------------------------

    def _rpc(self, instance: Instance) -> DirectRpc:
        return DirectRpc(self, instance)

    def _publish(self, changes: TableChanges) -> None:
        self.executor.resume()

    async def _connect(self, state: RouterState) -> None:
        instances = self._instances()
        if not instances:
            return
        self.instance = self.dice.choice(instances)
        registered = _Registered(self._rpc(self.instance), state)
        end: RouterEnd | None = None
        with anyio.CancelScope() as self._link:
            end = await registered.run(lambda: None)
        match end:
            case RegistrationRejected(error=Superseded()):
                self.lease.lost(self.clock.now())
                self.permit.end(self.clock.now())
                assert self._tasks
                await self.leave("superseded")
            case RegistrationRejected(error=NotRegistered()):
                self.lease.lost(self.clock.now())
                self.permit.end(self.clock.now())
            case _:
                pass

    def repeat(self, instance: Instance, acks: Sequence[FreezeAck]) -> None:
        """The network delivers these acks a second time, whatever has happened by then."""

        async def again() -> None:
            await anyio.sleep(self.dice.uniform(0.1, 6.0))
            with suppress(AssignerError):
                await instance.routers.cutover_ack(GROUP, self.name, self.session, acks)

        assert self._tasks
        self._tasks.start_soon(again)

    # --- requests ----------------------------------------------------------------------------------------------------

    def accept(self, request: Request) -> None:
        """A request has arrived at the router's host."""
        self._accepted.append(request)
        self._inbox.append(request)
        self._arrived.set()

    async def _read_requests(self) -> None:
        assert self._tasks
        while True:
            await self.stopped.awake()
            while self._inbox:
                self._tasks.start_soon(self._forward, self._inbox.popleft())
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def _forward(self, request: Request) -> None:
        try:
            while not request.outcome:
                await self._try(request)
        except RouterClosed:
            self._accepted.remove(request)
            self._traffic.send_again(request)
            return
        except StashOverflow as error:
            request.end(f"overflow: {error.bound.value}", self.clock.now())
        self._accepted.remove(request)

    async def _try(self, request: Request) -> None:
        async with self.executor.route(request.tp.topic, request.key) as target:
            self.checks.sent(self, self.lease, request, target)
            try:
                # The process may be stopped right here: it has its target, and sends the request later.
                await self.stopped.awake()
                failure = await self._send(request, target)
                await self.stopped.awake()
            finally:
                self.checks.answered(self, request)
        match failure:
            case None:
                request.end("served", self.clock.now())
            case Unknown(why):
                request.end(f"pod {why}", self.clock.now())
            case NothingDone():
                request.retried += 1
                with anyio.move_on_after(NEWER_WITHIN):
                    await self.changes.until_about(request.tp, lambda: self._is_newer(target))

    def _is_newer(self, target: Target) -> bool:
        route = self.table.route(target.topic, target.partition)
        return route is not None and (route.epoch, route.owner) != (target.epoch, target.owner)

    async def _send(self, request: Request, target: Target) -> NothingDone | Unknown | None:
        answers: list[NothingDone | Unknown | None] = []
        answered = anyio.Event()

        def take(answer: NothingDone | Unknown | None) -> None:
            answers.append(answer)
            answered.set()

        delivery = Delivery(request, self.session, target.epoch, take)
        now = self.clock.now()
        slow = self.dice.random() < 0.05 and not self.calm
        at = now + self.dice.uniform(0.0, 2.0 if slow else 0.05)
        self._arrivals[target.address] = at = max(at, self._arrivals.get(target.address, 0.0) + 1e-6)
        asyncio.get_running_loop().call_later(at - now, self._arrive, target.address, delivery)
        await answered.wait()
        return answers[0]

    def _arrive(self, address: str, delivery: Delivery) -> None:
        pod = next((pod for pod in self._pods() if pod.address == address), None)
        if pod is None:
            delivery.answer(NothingDone(f"there is nobody at {address!r}"))
        else:
            pod.deliver(delivery)

    # --- how it is ---------------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        return self.executor.counts().stashed

    def doing(self) -> str:
        counts = self.executor.counts()
        hangs = ", hangs" if self.stopped.lasts else ""
        routes = sorted((str(tp), route) for tp, route in self.table)
        return (
            f"router {self.name}/{self.session}: may route {self._may_route()}{hangs}, {counts}, "
            f"frozen {self.cutovers.core.frozen}, at revision {self.revision} {routes}"
        )


class _Registered(RegisteredRouter):
    """One registration, by calls that need no connection."""

    def __init__(self, rpc: DirectRpc, state: RouterState) -> None:
        nowhere = Address("127.0.0.1", 1)
        super().__init__(nowhere, rpc.identity, Dialer(None, 5.0, 5.0), state, timeout=5.0, first_message=5.0)
        self._direct: Any = rpc

    async def run(self, on_open: Callable[[], None]) -> RouterEnd:
        self._rpc = self._direct
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._serve_stream, self._direct, on_open)
        return self._end or Broken("stopped")


class DirectRpc:
    """What `RouterRpc` does, at an instance of this process."""

    def __init__(self, router: ChaosRouter, instance: Instance) -> None:
        self.identity = RouterIdentity(group=GROUP, name=router.name, session=router.session)
        self._router = router
        self._instance = instance
        self._who = (GROUP, router.name, router.session)

    async def register(self) -> AsyncGenerator[Any, None]:
        router, message = self._router, message_class("RoutingUpdate")
        router.lease.registering(router.clock.now())
        has_table = False
        with _translated():
            stream = await self._instance.routers.register(RouterRegistration(*self._who))
            try:
                async with aclosing(stream.updates()) as updates:
                    opening: RoutingOpening | None = RoutingOpening(stream.ttl)
                    async for changes in updates:
                        for part in encode(msgspec.structs.replace(changes, opening=opening)):
                            if part is not None:
                                await router.stopped.awake()
                                yield message.FromString(part)
                        opening = None
                        # The reader comes back when it has applied what it was given.
                        has_table = has_table or not changes.more
                        if has_table and not router.table.is_behind:
                            router.first_revision = router.first_revision or router.revision
                            router.lease.table_completed()
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.leave()

    async def renew(self, timeout: float) -> float:
        router, sent = self._router, self._router.clock.now()
        ttl = 0.0
        with anyio.move_on_after(timeout):
            with _translated():
                ttl = await self._instance.routers.renew(*self._who)
            await router.stopped.awake()
            router.lease.renewed(sent, router.clock.now())
            return ttl
        raise Unavailable("RenewRouter was not answered in time")

    async def acknowledge(self, acks: Sequence[FreezeAck]) -> dict[TopicPartition, str]:
        router = self._router
        await router.stopped.awake()
        for ack in acks:
            route = router.table.route(ack.tp.topic, ack.tp.partition)
            if route is not None and route.frozen and route.handoff_id == ack.handoff_id:
                router.checks.acking(router, ack.tp, ack.handoff_id, route)
        match router.acks:
            case AckManner.NEVER:
                await router.rest(0.5, 1.0)
                raise Unavailable("CutoverAck was lost")
            case AckManner.LATE:
                await anyio.sleep(router.dice.uniform(0.3, 6.0))
            case AckManner.TWICE:
                router.repeat(self._instance, acks)
            case AckManner.PROMPTLY:
                pass
        with _translated():
            rejected = await self._instance.routers.cutover_ack(*self._who, acks)
        await router.stopped.awake()
        return {one.tp: str(one.error) for one in rejected}

    async def deregister(self) -> None:
        with _translated():
            await self._instance.routers.deregister(*self._who)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what the client's channel makes of the status that the server makes of the error."""
    try:
        yield
    except AssignerError as error:
        status = status_of(error, "/Router/Call")
        raise error_of(status.status, status.message or "", status.error) from error
