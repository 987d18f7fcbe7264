"""A consumer for chaotic courses: the client's own state and gates, with handlers that take their time and fail.

It talks to an instance's `Members` directly, without a wire, and does what the client library does around the state:
renews by its own clock, answers until acknowledged, reconnects, and starts over when it is evicted.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import msgspec

from assigner.api import CommandStream, OffsetCommit, Registration, WantedOffsets
from assigner.core.client import messages as calls
from assigner.core.client.state import ClientState
from assigner.errors import AssignerError, Evicted, NotRegistered, NotTheTarget, Superseded
from assigner.instance import Instance
from assigner.model.commands import Commands
from assigner.model.keys import TopicPartition

Opened = Callable[["ChaosConsumer", TopicPartition, int], None]
Answered = Callable[[TopicPartition, int], Awaitable[None]]


class ChaosConsumer:
    def __init__(
        self,
        name: str,
        session: str,
        *,
        ttl: float,
        dice: random.Random,
        instances: Callable[[], list[Instance]],
        now: Callable[[], float],
        opened: Opened,
        answered: Answered,
        **registration: Any,
    ) -> None:
        """`opened` hears of each gate that opens, `answered` of each commit that was answered."""
        self.name = name
        self.session = session
        self.client = ClientState()
        self.gone: str = ""
        """Why it is over for good."""
        self.draining = False
        self.calm = False
        """Handlers are quick and do not fail."""
        self.highest: dict[TopicPartition, int] = {}
        """The highest epoch that was ever granted to this session."""
        self._ttl = ttl
        self._dice = dice
        self._instances = instances
        self._now = now
        self._opened = opened
        self._answered = answered
        self.registration = registration
        """What it says of itself when it registers the next time."""
        self._positions: dict[tuple[TopicPartition, int], int] = {}
        """How far it has got, by partition and epoch."""
        self._instance: Instance | None = None
        self._stream: anyio.CancelScope | None = None
        self._frozen_until = 0.0
        self._wake = anyio.Event()
        self._running: dict[TopicPartition, anyio.CancelScope] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._sessions = 0
        self._refused: AssignerError | None = None
        self.trouble = ""

    def open_gates(self) -> dict[TopicPartition, int]:
        """What it would work on now, by its own clock."""
        return {} if self.gone else self.client.owned(self._now())

    def doing(self) -> str:
        where = self._instance.name if self._instance else "nowhere"
        frozen = ", frozen" if self._now() < self._frozen_until else ""
        return f"at {where}, live {self.client.live}{frozen}, running {[*self.client.running()]}, last {self.trouble}"

    # --- a life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._watch_lease)
            while not self.gone:
                await self._connect()
                await self._rest(0.05, 0.5)
            self._tasks.cancel_scope.cancel()

    def end(self, why: str) -> None:
        self.gone = self.gone or why
        if self._tasks:
            self._tasks.cancel_scope.cancel()

    def disconnect(self) -> None:
        if self._stream:
            self._stream.cancel()

    def freeze(self, seconds: float) -> None:
        """The process stands still. Its clock does not."""
        self._frozen_until = self._now() + seconds

    async def drain(self) -> None:
        """Leave in order: hand everything over if there is somebody to take it, else just stop."""
        self.draining = True
        if self._instance not in self._instances():
            return
        try:
            if not await self._instance.members.deregister("g", self.name, self.session, gates_closed=False):
                self.end("drained")
        except AssignerError as error:
            self.trouble = repr(error)

    async def _awake(self) -> None:
        if self._now() < self._frozen_until:
            await anyio.sleep(self._frozen_until - self._now())
            await self._awake()

    async def _rest(self, least: float, most: float) -> None:
        await anyio.sleep(self._dice.uniform(least, most))
        await self._awake()

    async def _connect(self) -> None:
        instances = self._instances()
        if not instances:
            return
        self._instance = self._dice.choice(instances)
        with anyio.CancelScope() as self._stream:
            try:
                await self._listen(self._instance)
            except Superseded:
                self.end("superseded")
            except Evicted as error:
                self._do(self.client.session_lost(str(error)))
                self._sessions += 1
                self.session = f"{self.session.split('+')[0]}+{self._sessions}"
                self.highest.clear()
            except NotRegistered as error:
                self._do(self.client.session_lost(str(error)))
            except AssignerError as error:
                # The service or its store is away for the moment: what counts is the lease.
                self.trouble = repr(error)

    async def _listen(self, instance: Instance) -> None:
        registration = Registration(group="g", name=self.name, session=self.session, renews=True, **self.registration)
        command_stream = await instance.members.register(registration, self._now)
        ended: AssignerError | None = None
        try:
            async with anyio.create_task_group() as link:
                try:
                    await self._follow(instance, command_stream, link)
                    self.end("drained")
                except AssignerError as error:
                    ended = error
                link.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await command_stream.leave()
        refused, self._refused = self._refused, None
        if ended or refused:
            raise ended or refused or AssertionError

    async def _follow(self, instance: Instance, command_stream: CommandStream, link: anyio.abc.TaskGroup) -> None:
        first = True
        async for commands in command_stream.commands():
            await self._awake()
            assert commands.full == first, f"{self.name}: the first message must be full, and no other"
            self._take(commands)
            if first:
                # Not before it is known what the session holds: a renewal brings gates back to life.
                link.start_soon(self._renew, instance, link.cancel_scope)
                link.start_soon(self._answer, instance)
                link.start_soon(self._commit, instance)
            first = False

    def _take(self, commands: Commands) -> None:
        for tp, epoch in commands.assigned:
            assert epoch >= self.highest.get(tp, 0), f"{self.name}: {tp} went back from {self.highest[tp]} to {epoch}"
            self.highest[tp] = epoch
        # This consumer keeps no copies.
        self._do(self.client.apply(msgspec.structs.replace(commands, standbys_added=(), standbys_removed=())))

    # --- handlers ----------------------------------------------------------------------------------------------------

    def _do(self, actions: list[calls.Action]) -> None:
        assert self._tasks
        for action in actions:
            match action:
                case calls.Start(tp=tp, call=call):
                    self._tasks.start_soon(self._call, tp, call)
                case calls.Cancel(tp=tp):
                    if tp in self._running:
                        self._running[tp].cancel()
        self._wake.set()

    async def _call(self, tp: TopicPartition, call: calls.Call) -> None:
        outcome: calls.Outcome = calls.Stopped()
        with anyio.CancelScope() as self._running[tp]:
            outcome = await self._handler(call)
        del self._running[tp]
        actions = self.client.finished(tp, outcome)
        epoch = self.client.owned(self._now()).get(tp)
        if isinstance(call, calls.CallAssigned) and epoch is not None:
            self._opened(self, tp, epoch)
        self._do(actions)

    async def _handler(self, call: calls.Call) -> calls.Outcome:
        match call:
            case calls.Pause(seconds=seconds):
                await anyio.sleep(seconds)
            case calls.CallWarm():
                await self._rest(0.0, 0.2 if self.calm else 4.0)
                if not self.calm and self._dice.random() < 0.1:
                    return calls.Failed("no luck")
            case _:
                await self._rest(0.0, 0.1 if self.calm else 0.6)
        return calls.Done()

    # --- what goes on beside the stream ------------------------------------------------------------------------------

    async def _renew(self, instance: Instance, link: anyio.CancelScope) -> None:
        while True:
            sent = self._now()
            try:
                ttl = await instance.members.renew("g", self.name, self.session)
                await self._awake()
                self._do(self.client.renewed(sent, ttl))
            except (NotRegistered, Superseded, Evicted) as error:
                self._refused = error
                link.cancel()
            except AssignerError as error:
                self.trouble = repr(error)
            await self._rest(self._ttl / 8, self._ttl / 4)

    async def _watch_lease(self) -> None:
        while True:
            pause = 1.0 if self.calm else 0.2
            await self._rest(pause, pause)
            if self.client.live and not self.client.lease.holds(self._now()):
                self._do(self.client.lease_lost())

    async def _answer(self, instance: Instance) -> None:
        while True:
            self._wake = anyio.Event()
            sent = 0
            for kind in calls.AckKind:
                sent += await self._send(instance, kind)
            if sent:
                await self._rest(0.1, 0.3)
            else:
                await self._wake.wait()

    async def _send(self, instance: Instance, kind: calls.AckKind) -> int:
        answers = self.client.pending_acks(kind, 100)
        if not answers:
            return 0
        send: Any = {"ready": instance.members.ready, "released": instance.members.released}[kind.value]
        try:
            said = await send("g", self.name, self.session, answers)
        except AssignerError:
            return len(answers)
        await self._awake()
        lasting = frozenset(refused.tp for refused in said if isinstance(refused.error, NotTheTarget))
        passing = frozenset(refused.tp for refused in said) - lasting
        self._do(self.client.acknowledged(kind, [a for a in answers if a.tp not in passing], lasting))
        return len(answers)

    # --- work --------------------------------------------------------------------------------------------------------

    async def _commit(self, instance: Instance) -> None:
        """Work a little behind some of the open gates and say so. Nothing is committed that was not read before."""
        while True:
            await self._rest(0.5, 3.0)
            gates = list(self.open_gates().items())
            for tp, epoch in self._dice.sample(gates, min(2, len(gates))):
                try:
                    await self._commit_one(instance, tp, epoch)
                except AssignerError as error:
                    self.trouble = repr(error)

    async def _commit_one(self, instance: Instance, tp: TopicPartition, epoch: int) -> None:
        if (tp, epoch) not in self._positions:
            found = dict((await instance.offsets.fetch("g", WantedOffsets((tp,)))).offsets)[tp]
            self._positions = {at: offset for at, offset in self._positions.items() if at[0] != tp}
            self._positions[tp, epoch] = found.offset if found else 0
        # Also if it is not answered, it may be on record.
        self._positions[tp, epoch] += self._dice.randint(1, 5)
        offset = self._positions[tp, epoch]
        commit = OffsetCommit(tp, epoch, offset)
        if not await instance.offsets.commit("g", self.name, self.session, [commit]):
            await self._answered(tp, offset)
