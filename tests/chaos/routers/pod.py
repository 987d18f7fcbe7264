"""A pod: an owner of partitions that serves requests of routers, with the client library's own runner and gates.

It talks to an instance's `members` directly, without a wire, and does what the library's session does around the
runner: it renews by its own clock, acks, reconnects, and starts over when it is evicted. Requests come in order over
each connection. A pod that hangs reads and sends nothing, while its clock goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

import anyio
import anyio.abc

from assigner.api import CommandStream, Registration
from assigner.client.handler import Handler
from assigner.client.runner import Runner
from assigner.clock import Clock
from assigner.core.client.gate import GateClosed, StaleEpoch
from assigner.core.client.messages import AckKind, Ownership
from assigner.errors import AssignerError, Evicted, NotRegistered, NotTheTarget, Superseded
from assigner.instance import Instance
from assigner.model.commands import Release, Warm
from assigner.model.keys import TopicPartition
from tests.chaos.routers.request_checks import RequestChecks
from tests.chaos.routers.requests import Delivery, NothingDone, Unknown
from tests.chaos.routers.suspension import Suspension
from tests.support.cluster import GROUP


class Pod(Handler):
    def __init__(
        self,
        name: str,
        session: str,
        *,
        ttl: float,
        dice: random.Random,
        clock: Clock,
        instances: Callable[[], list[Instance]],
        checks: RequestChecks,
    ) -> None:
        self.name = name
        self.session = session
        self.address = f"{name}:{session}"
        """Where routers reach this very process."""
        self.runner = Runner(self, clock, handler_concurrency=100, warm_concurrency=10)
        self.gone = ""
        """Why it is over for good."""
        self.draining = False
        self._drained = False
        """It owns nothing any more, and is to end."""
        self.calm = False
        """Handlers are quick and do not fail."""
        self.slow_warm = 0.0
        self.stopped = Suspension(clock)
        self._ttl = ttl
        self._dice = dice
        self._clock = clock
        self._instances = instances
        self._checks = checks
        self._instance: Instance | None = None
        self._link: anyio.CancelScope | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._inbox: deque[Delivery] = deque()
        self._arrived = anyio.Event()
        self._open: set[Delivery] = set()
        """What has arrived and is not answered."""
        self._evictions = 0

    def open_gates(self) -> dict[TopicPartition, int]:
        """What it would work on now, by its own clock."""
        return {} if self.gone else self.runner.state.owned(self._clock.now())

    def serves(self) -> int:
        """How many requests have arrived and are not answered."""
        return len(self._open)

    # --- a life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        # As the library does: by this the gates tell who waits that their work has ended.
        self.runner.changes.attach(asyncio.get_running_loop())
        try:
            async with anyio.create_task_group() as self._tasks:
                self.runner.begin(self._tasks)
                self._tasks.start_soon(self._read_requests)
                while not self.gone:
                    await self._connect()
                    if self._drained:
                        await self._finish()
                    await self._rest(0.05, 0.5)
                self._tasks.cancel_scope.cancel()
        finally:
            self._refuse_all()

    def end(self, why: str) -> None:
        self.gone = self.gone or why
        if self._tasks:
            self._tasks.cancel_scope.cancel()

    def _refuse_all(self) -> None:
        """Whoever waits for an answer sees the connection break."""
        for delivery in list(self._open) if self.gone else ():
            begun = delivery.begun
            self._answer(delivery, Unknown(self.gone) if begun else NothingDone(f"{self.address} is {self.gone}"))

    def disconnect(self) -> None:
        if self._link:
            self._link.cancel()

    @property
    def instance(self) -> Instance | None:
        return self._instance

    def hang(self, seconds: float) -> None:
        """The process stands still. Its clock does not."""
        self.stopped.begin(seconds)

    async def drain(self) -> None:
        """Leave in order: hand everything over if there is somebody to take it, else finish what was begun and go."""
        self.draining = True
        if self._instance is not None and self._instance in self._instances():
            await self._ask_to_leave(self._instance)

    async def _ask_to_leave(self, instance: Instance) -> None:
        try:
            waits = await instance.members.deregister(GROUP, self.name, self.session, gates_closed=False)
        except AssignerError:
            # The next registration asks again.
            return
        if not waits:
            self.runner.release_all("draining")
            await self.runner.wait_idle(None)
            self._drained = True
            self.disconnect()

    async def _finish(self) -> None:
        """End once nothing is in progress: what was begun may have outlived the lease that it was begun under."""
        self.runner.leave("drained")
        await self.runner.wait_idle(None)
        self.end("drained")

    async def _rest(self, least: float, most: float) -> None:
        await anyio.sleep(self._dice.uniform(least, most))
        await self.stopped.awake()

    # --- one registration --------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        instances = self._instances()
        if not instances:
            return
        self._instance = self._dice.choice(instances)
        with anyio.CancelScope() as self._link:
            try:
                await self._listen(self._instance)
            except Superseded:
                self.end("superseded")
            except Evicted as error:
                self.runner.session_lost(str(error))
                await self.runner.wait_idle(self._ttl)
                self._evictions += 1
                self.session = f"{self.session.split('+')[0]}+{self._evictions}"
            except NotRegistered as error:
                self.runner.session_lost(str(error))
            except AssignerError:
                # The service or its store is away for the moment: what counts is the lease.
                pass

    async def _listen(self, instance: Instance) -> None:
        registration = Registration(
            group=GROUP, name=self.name, session=self.session, address=self.address, renews=True
        )
        stream = await instance.members.register(registration, self._clock.now)
        ended: list[AssignerError] = []
        try:
            async with anyio.create_task_group() as link:
                try:
                    await self._follow(instance, stream, link, ended)
                    self._drained = True
                except AssignerError as error:
                    ended.append(error)
                link.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await stream.leave()
        if ended:
            raise ended[0]

    async def _follow(
        self, instance: Instance, stream: CommandStream, link: anyio.abc.TaskGroup, ended: list[AssignerError]
    ) -> None:
        async for commands in stream.commands():
            await self.stopped.awake()
            self.runner.apply(commands)
            if commands.full:
                link.start_soon(self._renew, instance, link.cancel_scope, ended)
                for kind in AckKind:
                    link.start_soon(self._send_acks, instance, kind)
                if self.draining:
                    link.start_soon(self._ask_to_leave, instance)

    async def _renew(self, instance: Instance, link: anyio.CancelScope, ended: list[AssignerError]) -> None:
        while True:
            sent = self._clock.now()
            try:
                ttl = await instance.members.renew(GROUP, self.name, self.session)
                await self.stopped.awake()
                self.runner.renewed(sent, ttl)
            except (NotRegistered, Superseded, Evicted) as error:
                ended.append(error)
                link.cancel()
            except AssignerError:
                pass
            await self._rest(self._ttl / 5, self._ttl / 3)

    async def _send_acks(self, instance: Instance, kind: AckKind) -> None:
        state = self.runner.state
        call = instance.members.ready if kind is AckKind.READY else instance.members.released
        while True:
            await self.runner.changes.until(lambda: bool(state.pending_acks(kind, 1)))
            await self._rest(0.0, 0.1)
            acks = state.pending_acks(kind, 100)
            try:
                rejected = await call(GROUP, self.name, self.session, acks) if acks else []
            except AssignerError:
                await self._rest(0.1, 0.5)
                continue
            lasting = frozenset(one.tp for one in rejected if isinstance(one.error, NotTheTarget))
            passing = frozenset(one.tp for one in rejected) - lasting
            self.runner.acknowledged(kind, [ack for ack in acks if ack.tp not in passing], lasting)
            if passing:
                await self._rest(0.1, 0.5)

    # --- the handler -------------------------------------------------------------------------------------------------

    async def assigned(self, partition: Ownership) -> None:
        await self._rest(0.0, 0.1 if self.calm else 0.4)

    async def warm(self, partition: TopicPartition, order: Warm) -> None:
        await self._rest(0.0, 0.2 if self.calm else 1.0 + self.slow_warm)
        if not self.calm and self._dice.random() < 0.05:
            raise RuntimeError("no luck")

    async def release(self, partition: Ownership, order: Release) -> None:
        await self._rest(0.0, 0.1 if self.calm else 0.4)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        await self._rest(0.0, 0.1)

    # --- requests ----------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """A request has arrived at the pod's host."""
        if self.gone:
            delivery.answer(NothingDone(f"{self.address} is {self.gone}"))
            return
        self._open.add(delivery)
        self._inbox.append(delivery)
        self._arrived.set()

    async def _read_requests(self) -> None:
        assert self._tasks
        while True:
            await self.stopped.awake()
            while self._inbox:
                self._tasks.start_soon(self._serve, self._inbox.popleft())
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def _serve(self, delivery: Delivery) -> None:
        request, tp, epoch = delivery.request, delivery.request.tp, delivery.epoch
        try:
            async with self.runner.requests.entering(tp, epoch, within=self._ttl / 2):
                delivery.begun = True
                self._checks.admitted(self, delivery)
                await self._rest(0.0, 0.05 if self.calm else request.takes)
                # What a store behind it would do as well: nothing takes effect after the gate was shut by the clock.
                self.runner.gate(tp).check(epoch)
                self._checks.took_effect(self, delivery)
        except (GateClosed, StaleEpoch) as error:
            # Before its effect nothing is done, however far it had come.
            self._answer(delivery, NothingDone(str(error)))
        else:
            self._answer(delivery, None)

    def _answer(self, delivery: Delivery, failure: NothingDone | Unknown | None) -> None:
        self._open.discard(delivery)
        delivery.answer(failure)
