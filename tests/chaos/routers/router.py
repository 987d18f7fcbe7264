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
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.abc
import msgspec

from assigner.api import RouterRegistration
from assigner.client.channel import Dialer, Unavailable, error_of, parse_addresses
from assigner.client.registration import Broken
from assigner.client.session import Timing
from assigner.clock import Clock
from assigner.errors import AssignerError, NotRegistered, Superseded
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, RoutingOpening
from assigner.proto.runtime import message_class
from assigner.routing.handler import RouterClosed, Target
from assigner.routing.registration import RegisteredRouter, RouterEnd, RouterState
from assigner.routing.router import Router
from assigner.routing.rpc import RouterIdentity
from assigner.routing.session import RouterSession
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

NOWHERE = "127.0.0.1:1"
TIMING = Timing(first_pause=0.1, longest_pause=1.0, close_timeout=None)
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
        self.router = Router(
            NOWHERE, GROUP, name, session=session, clock=clock, stash=limits, drain_timeout=2 * ttl, timing=TIMING
        )
        self.router._session = _DirectSession(self, self.router._session)
        self.lease = Lease(ttl)
        self.shown: set[tuple[TopicPartition, str]] = set()
        self.gone = ""
        """Why it is over for good."""
        self.leaving = False
        self.calm = False
        self.acks = AckManner.PROMPTLY
        self.stopped = Suspension(clock)
        self.instance: Instance | None = None
        self.dice = dice
        self.clock = clock
        self.checks = checks
        self._instances = instances
        self._pods = pods
        self._traffic = traffic
        self._link: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._inbox: deque[Request] = deque()
        self._arrived = anyio.Event()
        self._accepted: dict[Request, None] = {}
        """On their way through this router."""
        self._arrivals: dict[str, float] = {}
        """When the last request over a connection arrives."""

    @property
    def revision(self) -> int:
        return self.router.table.revision

    @property
    def takes(self) -> bool:
        """Whether programs send their requests here."""
        return not self.gone and not self.leaving

    # --- a life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        life = self.router._task = asyncio.create_task(self.router._run())
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._read_requests)
                try:
                    await self.router.closed()
                except Superseded:
                    self._give_everything_back()
                    self.end("superseded")
                except AssignerError as error:
                    # It was refused before it had ever been registered: the program ends.
                    self._give_everything_back()
                    self.end(f"refused: {error}")
                else:
                    self._give_everything_back()
                    self.end("left")
        finally:
            life.cancel()
            for request in self._accepted if self.gone else ():
                # Those that are in flight may still arrive.
                request.abandoned = True
                request.end(f"router {self.gone}", self.clock.now())

    def end(self, why: str) -> None:
        self.gone = self.gone or why
        if self._tasks:
            self._tasks.cancel_scope.cancel()

    async def leave(self) -> None:
        """Send what is in flight to its end and nothing else, then deregister."""
        if self.leaving or self.gone:
            return
        self.leaving = True
        for request in self._accepted:
            # Those of its key that come later go another way, and may be faster.
            request.retried += 1
        await self.router.close()

    def disconnect(self) -> None:
        if self._link:
            self._link.cancel()

    def hang(self, seconds: float) -> None:
        """The process stands still. Its clock does not."""
        self.stopped.begin(seconds)

    async def rest(self, least: float, most: float) -> None:
        await anyio.sleep(self.dice.uniform(least, most))
        await self.stopped.awake()

    async def register(self, state: RouterState) -> RouterEnd:
        """Register at any instance, and stay there."""
        await self.stopped.awake()
        instances = self._instances()
        if not instances:
            return Broken("there is no instance")
        self.instance = self.dice.choice(instances)
        registered = _Registered(DirectRpc(self, self.instance), state)
        with anyio.CancelScope() as self._link:
            return await registered.run(self.router._session._opened)
        return Broken("disconnected")

    async def deregister(self) -> None:
        if self.instance in self._instances():
            # If that fails, its lease will end.
            with suppress(AssignerError):
                await DirectRpc(self, self.instance).deregister()

    def repeat(self, instance: Instance, acks: Sequence[FreezeAck]) -> None:
        """The network delivers these acks a second time, whatever has happened by then."""

        async def again() -> None:
            await anyio.sleep(self.dice.uniform(0.1, 12.0))
            with suppress(AssignerError):
                await instance.routers.cutover_ack(GROUP, self.name, self.session, acks)

        if self._tasks and not self.gone:
            self._tasks.start_soon(again)

    # --- requests ----------------------------------------------------------------------------------------------------

    def accept(self, request: Request) -> None:
        """A request has arrived at the router's host."""
        self._accepted[request] = None
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
            if not self.gone:
                self._give_back(request)
            return
        except StashOverflow as error:
            request.end(f"overflow: {error.bound.value}", self.clock.now())
        self._accepted.pop(request, None)

    def _give_everything_back(self) -> None:
        """Nothing is in flight: what is still here was not sent."""
        for request in list(self._accepted):
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        """Its program sends it by another router."""
        if request in self._accepted:
            del self._accepted[request]
            self._traffic.send_again(request)

    async def _try(self, request: Request) -> None:
        async with self.router.route(request.tp.topic, request.key) as target:
            self.checks.sent(self, self.lease, request, target)
            try:
                # The process may be stopped right here: it has its target, and sends the request later.
                await self.stopped.awake()
                failure = await self._send(request, target)
                await self.stopped.awake()
            finally:
                self.checks.ended(self, request)
        match failure:
            case None:
                request.end("served", self.clock.now())
            case Unknown(why):
                request.end(f"pod {why}", self.clock.now())
            case NothingDone():
                request.retried += 1
                await self.router.newer_than(target, within=NEWER_WITHIN)

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
        return self.router.statistics().stashed

    def doing(self) -> str:
        hangs = "hangs, " if self.stopped.lasts else ""
        routes = sorted((str(tp), route) for tp, route in self.router.table)
        return f"router {self.name}/{self.session}: {hangs}{self.router.statistics()}, {routes}"


class _DirectSession(RouterSession):
    """The library's session, which registers by calls that need no connection."""

    def __init__(self, host: ChaosRouter, usual: RouterSession) -> None:
        super().__init__(parse_addresses(NOWHERE), usual.identity, usual._dialer, usual._state, TIMING)
        self._host = host

    async def _register(self) -> RouterEnd:
        self.turns.next()
        end = await self._host.register(self._state)
        self.turns.succeeded()
        return end

    async def deregister(self) -> None:
        await self._host.deregister()


class _Registered(RegisteredRouter):
    """One registration, by calls that need no connection."""

    def __init__(self, rpc: DirectRpc, state: RouterState) -> None:
        super().__init__(parse_addresses(NOWHERE)[0], rpc.identity, Dialer(None, 5.0, 5.0), state, 5.0, 5.0)
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
        with self._translated():
            stream = await self._instance.routers.register(RouterRegistration(*self._who))
            try:
                async with aclosing(cast(Any, stream.updates())) as updates:
                    opening: RoutingOpening | None = RoutingOpening(stream.ttl)
                    async for changes in updates:
                        for part in encode(msgspec.structs.replace(changes, opening=opening)):
                            if part is not None:
                                await router.stopped.awake()
                                yield message.FromString(part)
                        opening = None
                        # The reader comes back when it has applied what it was given.
                        router.shown.update((tp, route.handoff_id) for tp, route in changes.routes if route.frozen)
                        has_table = has_table or not changes.more
                        if has_table and not router.router.table.is_behind:
                            router.lease.table_completed()
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.leave()

    async def renew(self, timeout: float) -> float:
        router, sent = self._router, self._router.clock.now()
        ttl = 0.0
        with anyio.move_on_after(timeout):
            with self._translated():
                ttl = await self._instance.routers.renew(*self._who)
            await router.stopped.awake()
            router.lease.renewed(sent, router.clock.now())
            return ttl
        raise Unavailable("RenewRouter was not answered in time")

    async def acknowledge(self, acks: Sequence[FreezeAck]) -> dict[TopicPartition, str]:
        router = self._router
        await router.stopped.awake()
        for ack in acks:
            route = router.router.table.route(ack.tp.topic, ack.tp.partition)
            if route is not None and route.frozen and route.handoff_id == ack.handoff_id:
                router.checks.acking(router, ack.tp, ack.handoff_id, route)
        match router.acks:
            case AckManner.NEVER:
                await router.rest(0.5, 1.0)
                raise Unavailable("CutoverAck was lost")
            case AckManner.LATE:
                await anyio.sleep(router.dice.choice((0.5, 3.0, 8.0)) * router.dice.uniform(0.5, 1.5))
            case AckManner.TWICE:
                router.repeat(self._instance, acks)
            case AckManner.PROMPTLY:
                pass
        with self._translated():
            rejected = await self._instance.routers.cutover_ack(*self._who, acks)
        await router.stopped.awake()
        return {one.tp: str(one.error) for one in rejected}

    async def deregister(self) -> None:
        with self._translated():
            await self._instance.routers.deregister(*self._who)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise what the client's channel makes of the status that the server makes of the error."""
        try:
            yield
        except AssignerError as error:
            status = status_of(error, "/Router/Call")
            named = error_of(status.status, status.message or "", status.error)
            if isinstance(named, NotRegistered | Superseded):
                self._router.lease.lost(self._router.clock.now())
            raise named from error
