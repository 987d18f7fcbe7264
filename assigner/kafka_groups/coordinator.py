"""Runs the machine of one classic group for one term: requests in, answers out, timers, and the write in between.

The machine decides at once and on the event loop. What it asks for is carried out here: an answer goes to whoever waits
for it, a write to the store, one at a time. So an answer is never ahead of the store: the machine gives the answers
that depend on a write when it is told that the write is done.

- **A write whose outcome is unknown is resolved**, however long that takes: meanwhile whoever depends on it waits, and
  everybody else is served.
- **A leader that was deposed says so.** Its writes fail by the term's fence. Whoever waits is told that this is not the
  coordinator, and nothing is decided here any more.
- **A store that is away costs nobody the group.** Members are told to try again, and their sessions go on.

While the group is being loaded, a heartbeat is answered without an error, because a client takes any other answer for
the loss of its membership; a SyncGroup is told to join again, as Kafka's broker does, since clients expect no other
answer there.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TypeVar, cast

import anyio
import anyio.abc
import msgspec

from assigner.aio.backoff import Backoff
from assigner.aio.supervision import unending
from assigner.aio.wakeup import Wakeup
from assigner.clock import Clock
from assigner.core.kafka_groups.classic.actions import (
    Actions,
    Assign,
    Event,
    GenerationBegan,
    GenerationStable,
    Limits,
    MemberRemoved,
    MemberReplaced,
    RebalanceBegan,
    Reply,
    Write,
)
from assigner.core.kafka_groups.classic.machine import ClassicGroup
from assigner.election import Term
from assigner.errors import AssignerError, LimitReached, StoreError
from assigner.kafka_groups.assignor import ServerAssignor
from assigner.kafka_groups.held import HeldRequests
from assigner.kafka_groups.records import Deposed, GroupRecords, Overwritten
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicGroupDescription,
    ClassicGroupRecord,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    SyncAnswer,
    SyncRequest,
)
from assigner.observability.metrics import Metrics

LOADING = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
NOT_HERE = KafkaError.NOT_COORDINATOR
A = TypeVar("A", JoinAnswer, SyncAnswer)

log = get_logger("assigner.kafka_groups.coordinator")


class GroupCoordinator:
    def __init__(
        self,
        name: str,
        term: Term,
        records: GroupRecords,
        clock: Clock,
        limits: Limits,
        held: HeldRequests,
        assignor: ServerAssignor,
        metrics: Metrics,
    ) -> None:
        """`name`: what the group is called by its members."""
        self.name = name
        self.term = term
        self.records = records
        self._clock = clock
        self._limits = limits
        self._held = held
        self._assignor = assignor
        self._metrics = metrics
        self._log = log.bind(group=term.group, term=term.revision)
        self._machine: ClassicGroup | None = None
        self._over = False
        self._numbers = count(1)
        self._waiting: dict[int, tuple[asyncio.Future[JoinAnswer | SyncAnswer], JoinAnswer | SyncAnswer]] = {}
        """Who waits for an answer, and the answer if the term ends first."""
        self._wake = Wakeup()
        self._writes = Wakeup()
        """Notified when a write is asked for, and when one has ended."""
        self._write: Write | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self.commits = 0
        """How many commits have begun."""
        self._committing = 0
        self._began: float | None = None
        """When the rebalance in progress began."""
        self.assigned: Mapping[str, int] | None = None
        """The topics, and how many partitions of each, that the service assigned last; None: it did not."""
        self.to_reload = anyio.Event()
        """Set when the group has to be loaded again in the same term."""

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def refusal(self) -> KafkaError:
        """Why no request can be answered now, if none can."""
        if self._over or not self.term.held():
            return NOT_HERE
        return LOADING if self._machine is None else KafkaError.NONE

    @property
    def machine(self) -> ClassicGroup:
        """The machine, where there is no `refusal`."""
        assert self._machine is not None
        return self._machine

    async def join(self, request: JoinRequest) -> JoinAnswer:
        if self.refusal:
            return JoinAnswer(error=self.refusal, member_id=request.member_id)
        size = sum(len(name) + len(metadata) for name, metadata in request.protocols)
        mint = str(uuid.uuid4())
        later, over = (JoinAnswer(error=error, member_id=request.member_id) for error in (LOADING, NOT_HERE))
        try:
            with self._held.one_more(size):
                return await self._answered(lambda number, now: self.machine.join(number, request, mint, now), over)
        except LimitReached:
            return later

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        if self.refusal:
            return _for_sync(SyncAnswer(error=self.refusal))
        size = sum(len(assignment) for _, assignment in request.assignments)
        over = SyncAnswer(error=NOT_HERE)
        try:
            with self._held.one_more(size):
                return await self._answered(lambda number, now: self.machine.sync(number, request, now), over)
        except LimitReached:
            return _for_sync(SyncAnswer(error=LOADING))

    async def _answered(self, give: Callable[[int, float], Actions], over: A) -> A:
        """Give the machine a request under a number, and wait for its answer under it. `over`: the answer if the term
        ends first."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = (answer, over)
        try:
            self._carry_out(give(number, self._clock.now()))
            return cast(A, await answer)
        finally:
            # Of whoever stopped waiting, the machine thinks as of a member that is slow.
            self._waiting.pop(number, None)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        if self.refusal:
            return HeartbeatAnswer(error=KafkaError.NONE if self.refusal is LOADING else self.refusal)
        return self.machine.heartbeat(request, self._clock.now())

    def leave(self, request: LeaveRequest) -> LeaveAnswer:
        if self.refusal:
            return LeaveAnswer(error=self.refusal)
        answer, actions = self.machine.leave(request, self._clock.now())
        self._carry_out(actions)
        return answer

    def describe(self) -> ClassicGroupDescription:
        if self.refusal:
            return ClassicGroupDescription(group=self.name, error=self.refusal)
        return self.machine.describe()

    async def create(self) -> None:
        """Have the group on record, though nobody has joined it. Returns when it is, or could not be written."""
        if not self.records.revision:
            self._carry_out(self.machine.create())
            await self.settled()

    async def settled(self) -> None:
        """Wait until no write is under way: what is known here is what is on record, unless a write failed."""
        await self._writes.until(lambda: self._write is None)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Count a commit while the block runs."""
        self.commits += 1
        self._committing += 1
        try:
            yield
        finally:
            self._committing -= 1

    def is_unused_since(self, commits: int) -> bool:
        """Whether nobody is a member, is about to be, or has committed since there were so many commits."""
        return not self.refusal and self.machine.is_forgettable and (self.commits, self._committing) == (commits, 0)

    def end(self) -> None:
        """Answer everybody that this is not the coordinator, and decide nothing more."""
        if self._over:
            return
        self._over, self._write = True, None
        if self._machine is not None:
            self._machine.unload(NOT_HERE)
        for answer, over in self._waiting.values():
            if not answer.done():
                answer.set_result(over)
        self._wake.notify()
        self._writes.notify()

    def rebalance(self, reason: str) -> None:
        """Have everybody join again."""
        if not self.refusal:
            self._carry_out(self.machine.rebalance(reason, self._clock.now()))

    def reload(self, reason: str) -> None:
        """Have the group loaded again in this term. Whoever waits looks for the coordinator, and finds it here."""
        self._log.info("classic_group_reloaded", reason=reason)
        self.end()
        self.to_reload.set()

    # --- the work of the term ----------------------------------------------------------------------------------------

    async def run(self, *, server_assigns: bool = False) -> None:
        """Coordinate the group until the term is over, or the group has to be loaded again. `server_assigns`: whether
        the service assigns in place of a member."""
        try:
            await self._load(msgspec.structs.replace(self._limits, server_assigns=server_assigns))
            async with anyio.create_task_group() as self._tasks:
                for what, work in (("time", self._keep_time), ("writer", self._keep_writing)):
                    self._tasks.start_soon(unending, what, work, name=f"{what} of {self.term.group}")
                await self._wake.until(lambda: self._over)
                self._tasks.cancel_scope.cancel()
        finally:
            self.end()

    async def _load(self, limits: Limits) -> None:
        record = await self._read()
        if record is None:
            self._machine = ClassicGroup(self.name, limits)
            return
        self._machine, actions = ClassicGroup.load(self.name, record, limits, self._clock.now())
        self._log.info("classic_group_loaded", generation=record.generation, members=len(record.members))
        self._carry_out(actions)

    async def _read(self) -> ClassicGroupRecord | None:
        backoff = Backoff(f"load {self.term.group}")
        while True:
            try:
                return await self.records.load()
            except StoreError as error:
                self._log.warning("classic_group_not_loaded", error=str(error), tries=backoff.tries + 1)
                await backoff.pause()

    async def _keep_time(self) -> None:
        while True:
            mark = self._wake.mark()
            at, now = self.machine.wake_at, self._clock.now()
            if not self.term.held():
                self.end()
            if at is not None and at <= now:
                self._carry_out(self.machine.tick(now))
                continue
            with anyio.move_on_after(None if at is None else at - now):
                await self._wake.since(mark)

    async def _keep_writing(self) -> None:
        while True:
            await self._writes.until(lambda: self._write is not None)
            assert self._write is not None
            actions = await self._written(self._write)
            self._write = None
            self._carry_out(actions)
            self._writes.notify()

    async def _written(self, write: Write) -> Actions:
        try:
            await self.records.write(write.record)
        except StoreError as error:
            self._log.warning("classic_group_not_written", error=str(error))
            return self.machine.failed(write.number, LOADING, self._clock.now())
        except Deposed as error:
            self._log.info("classic_group_lost", reason=str(error))
            self.end()
            return Actions()
        except Overwritten as error:
            self._log.error("classic_group_overwritten", reason=str(error))
            self.reload(str(error))
            return Actions()
        return self.machine.written(write.number, self._clock.now())

    # --- carrying out ------------------------------------------------------------------------------------------------

    def _carry_out(self, actions: Actions) -> None:
        if self._over:
            return
        for event in actions.events:
            self._report(event)
        self._reply(actions.replies)
        if actions.write is not None:
            self._write = actions.write
            self._writes.notify()
        if actions.assign is not None and self._tasks is not None:
            self._tasks.start_soon(self._assign, actions.assign)
        self._wake.notify()

    def _reply(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            answer, _ = self._waiting.get(reply.waiter, (None, None))
            if answer is not None and not answer.done():
                answer.set_result(_for_sync(reply.answer) if isinstance(reply.answer, SyncAnswer) else reply.answer)

    async def _assign(self, wanted: Assign) -> None:
        try:
            computed, self.assigned = await self._assignor.assign(self.term.group, wanted)
        except AssignerError as error:
            self._log.error("classic_assignment_failed", generation=wanted.generation, error=str(error))
            self._carry_out(self.machine.not_assigned(wanted.generation, self._clock.now()))
        else:
            self._log.info(
                "classic_group_assigned",
                generation=wanted.generation,
                moved=computed.moved,
                withheld=computed.withheld,
                unassigned=computed.unassigned,
            )
            self._carry_out(
                self.machine.assigned(wanted.generation, computed.assignments, follow_up=computed.follow_up)
            )

    def _report(self, event: Event) -> None:
        match event:
            case RebalanceBegan(generation, reason):
                self._began = self._clock.now() if self._began is None else self._began
                self._log.info("classic_rebalance_began", generation=generation, reason=reason)
            case GenerationBegan(generation, members, protocol, leader):
                self._log.info(
                    "classic_generation_began", generation=generation, members=members, protocol=protocol, leader=leader
                )
            case GenerationStable(generation, members):
                if self._began is not None:
                    self._metrics.classic_rebalanced(self._clock.now() - self._began)
                    self._began = None
                self._log.info("classic_generation_stable", generation=generation, members=members)
            case MemberRemoved(member_id, instance_id, reason):
                self._metrics.classic_member_removed(self.term.group)
                self._log.info("classic_member_removed", member=member_id, instance_id=instance_id or "", reason=reason)
            case MemberReplaced(instance_id, old, new):
                self._log.info("classic_member_replaced", instance_id=instance_id, old=old, new=new)


def _for_sync(answer: SyncAnswer) -> SyncAnswer:
    """Clients know no SyncGroup that can't be answered yet, but all join again if told to."""
    return SyncAnswer(error=KafkaError.REBALANCE_IN_PROGRESS) if answer.error is LOADING else answer
