"""A consumer of the random courses: well-behaved, and written without the client library's state.

It resumes, rejoins, and keeps its gates by its own clock; warming and releasing take as long as the course wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from assigner.api import CommandStream, Registration
from assigner.errors import AssignerError, Evicted, Superseded
from assigner.instance import Instance
from assigner.model.commands import Ack, Commands
from assigner.model.keys import TopicPartition
from tests.support.cluster import GROUP

if TYPE_CHECKING:
    from tests.chaos.histories.random_histories import Course

TTL = 10.0


class Member:
    """A consumer as a well-behaved client would be: resumes, rejoins, and keeps its gates by its own clock."""

    def __init__(self, course: Course, name: str, number: int) -> None:
        self.name = name
        self.session = f"{name}-{number}"
        self.gates: dict[TopicPartition, int] = {}
        self.copies: set[TopicPartition] = set()
        self.deadline = 0.0
        self.alive = True
        self.frozen = anyio.Event()
        self.frozen.set()
        self.warm_fails = 0.0
        self.warm_takes = 1.0
        self.release_takes = 0.5
        self.draining = False
        self.scope = anyio.CancelScope()
        self._course = course
        self._number = number

    def open_gates(self) -> dict[TopicPartition, int]:
        return dict(self.gates) if self.alive and self._course.cluster.clock.now() < self.deadline else {}

    def holds(self, tp: TopicPartition) -> int | None:
        """The epoch it would admit work with now, if any."""
        if not self.alive or self._course.cluster.clock.now() >= self.deadline:
            return None
        return self.gates.get(tp)

    async def run(self) -> None:
        with self.scope:
            while self.alive:
                await self._while_frozen()
                try:
                    await self._link(self._course.some_instance())
                except Superseded:
                    self._stop()
                except Evicted:
                    self._forget()
                    self._number += 1000
                    self.session = f"{self.name}-{self._number}"
                except AssignerError:
                    pass
                if self.draining and not self.gates:
                    self._stop()
                await anyio.sleep(self._course.dice.uniform(0.1, 1.5))

    def _stop(self) -> None:
        self.alive = False
        self._forget()

    def _forget(self) -> None:
        self.gates.clear()
        self.deadline = 0.0

    async def _while_frozen(self) -> None:
        while not self.frozen.is_set():
            await self.frozen.wait()

    async def _link(self, instance: Instance) -> None:
        clock = self._course.cluster.clock
        registration = Registration(group=GROUP, name=self.name, session=self.session, renews=True)
        stream = await instance.members.register(registration, clock.now)
        try:
            await self._follow(stream, instance)
        except* AssignerError as errors:
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        finally:
            with anyio.CancelScope(shield=True):
                await stream.leave()

    async def _follow(self, stream: CommandStream, instance: Instance) -> None:
        async with anyio.create_task_group() as tasks:
            if self.draining:
                await instance.members.deregister(GROUP, self.name, self.session, gates_closed=False)
            async for commands in stream.commands():
                await self._while_frozen()
                self._take(commands, instance, tasks)
                if commands.full:
                    tasks.start_soon(self._renew, instance)
            self.gates.clear()
            self._stop()
            tasks.cancel_scope.cancel()

    async def _renew(self, instance: Instance) -> None:
        while True:
            await self._while_frozen()
            sent = self._course.cluster.clock.now()
            await instance.members.renew(GROUP, self.name, self.session)
            self._renewed(sent)
            await anyio.sleep(TTL / 5)

    def _renewed(self, sent: float) -> None:
        self.deadline = max(self.deadline, sent + TTL * 2 / 3)
        for tp in self.gates:
            self._course.granted(self, tp)

    def _take(self, commands: Commands, instance: Instance, tasks: anyio.abc.TaskGroup) -> None:
        if commands.full:
            self.gates = {tp: epoch for tp, epoch in self.gates.items() if (tp, epoch) in commands.assigned}
        releasing = {release.tp: release.epoch for release in commands.releases}
        for tp, epoch in commands.unassigned:
            if self.gates.get(tp, 0) <= epoch:
                self.gates.pop(tp, None)
        for tp, epoch in commands.assigned:
            if releasing.get(tp) != epoch:
                self.gates[tp] = epoch
                self._course.granted(self, tp)
        self._copy(commands)
        for warm in commands.warms:
            tasks.start_soon(self._warm, instance, Ack(warm.tp, warm.handoff_id))
        for release in commands.releases:
            tasks.start_soon(self._release, instance, Ack(release.tp, release.handoff_id), release.epoch)

    def _copy(self, commands: Commands) -> None:
        if commands.full:
            self.copies.clear()
        for warm in commands.warms:
            # A copy that was promised is there, unless this very message tells of it.
            if warm.standby and warm.tp not in self.copies | set(commands.standbys_added):
                self._course.mistakes.append(f"{self.session} was to warm {warm.tp} from a copy it was not told of")
        gone = {*commands.standbys_removed, *(tp for tp, _ in commands.assigned)}
        self.copies = self.copies - gone | {*commands.standbys_added}

    async def _warm(self, instance: Instance, answer: Ack) -> None:
        await anyio.sleep(self._course.dice.uniform(0, self.warm_takes))
        await self._while_frozen()
        failed = "on purpose" if self._course.dice.random() < self.warm_fails else ""
        await self._answer(instance.members.ready, Ack(answer.tp, answer.handoff_id, failed))

    async def _release(self, instance: Instance, answer: Ack, epoch: int) -> None:
        if answer.tp in self.gates:
            await anyio.sleep(self._course.dice.uniform(0, self.release_takes))
            await self._while_frozen()
            if self.gates.get(answer.tp, epoch + 1) <= epoch:
                del self.gates[answer.tp]
        await self._answer(instance.members.released, answer)

    async def _answer(self, call: Callable[..., Awaitable[object]], answer: Ack) -> None:
        for _ in range(20):
            try:
                await call(GROUP, self.name, self.session, [answer])
            except AssignerError:
                await anyio.sleep(0.5)
            else:
                return
