"""Random courses of events, from a seed: instances freeze and come and go, consumers crash, hang, drain, take each
other's names and fail to warm, the store loses answers and ends watches, topics grow. Everything is checked on the way:

- epochs and generations only go up, and another owner always has another epoch;
- in `exclusive` groups no two consumers hold a partition at the same time, each by its own clock;
- when the faults end, every partition is owned by somebody who knows it, nothing is in flight, and it is even.

In virtual time and on the memory store: a course of some minutes takes a second, and a seed replays it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc
import msgspec

from assigner.api import Answer, Commands, Registration, Seat
from assigner.clock import LoopClock
from assigner.core.group import GroupState
from assigner.errors import AssignerError, Evicted, Superseded
from assigner.instance import Instance
from assigner.keys import AssignmentKey, PlanKey, TopicPartition
from assigner.records import Assignment, GroupOptions, HandoffMode, Plan, decode
from assigner.settings import StoreSection
from assigner.store import Batch, Event, PutEvent
from assigner.testing.faults import AnswerAfter, EffectAfter, FaultyStore, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from backends.memory import MemoryBackend, MemoryState
from tests.world import GROUP, World

TTL = 10.0
SETTLES_WITHIN = 240.0
"""Every timeout and backoff of `OPTIONS` several times over."""
OPTIONS = GroupOptions(
    debounce=0.3, warming_timeout=12.0, release_timeout=8.0, balance_backoff=10.0, quarantine_after=1000
)


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

    def holds(self, tp: TopicPartition) -> int | None:
        """The epoch it would admit work with now, if any."""
        if not self.alive or self._course.world.clock.now() >= self.deadline:
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
        clock = self._course.world.clock
        registration = Registration(group=GROUP, name=self.name, session=self.session, renews=True)
        seat = await instance.members.register(registration, clock.now)
        try:
            await self._follow(seat, instance)
        except* AssignerError as errors:
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        finally:
            with anyio.CancelScope(shield=True):
                await seat.leave()

    async def _follow(self, seat: Seat, instance: Instance) -> None:
        async with anyio.create_task_group() as tasks:
            if self.draining:
                await instance.members.deregister(GROUP, self.name, self.session, gates_closed=False)
            async for commands in seat.commands():
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
            sent = self._course.world.clock.now()
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
            tasks.start_soon(self._warm, instance, Answer(warm.tp, warm.handoff_id))
        for release in commands.releases:
            tasks.start_soon(self._release, instance, Answer(release.tp, release.handoff_id), release.epoch)

    def _copy(self, commands: Commands) -> None:
        if commands.full:
            self.copies.clear()
        for warm in commands.warms:
            # A copy that was promised is there, unless this very message tells of it.
            if warm.standby and warm.tp not in self.copies | set(commands.standbys_added):
                self._course.mistakes.append(f"{self.session} was to warm {warm.tp} from a copy it was not told of")
        gone = {*commands.standbys_removed, *(tp for tp, _ in commands.assigned)}
        self.copies = self.copies - gone | {*commands.standbys_added}

    async def _warm(self, instance: Instance, answer: Answer) -> None:
        await anyio.sleep(self._course.dice.uniform(0, self.warm_takes))
        await self._while_frozen()
        failed = "on purpose" if self._course.dice.random() < self.warm_fails else ""
        await self._answer(instance.members.ready, Answer(answer.tp, answer.handoff_id, failed))

    async def _release(self, instance: Instance, answer: Answer, epoch: int) -> None:
        if answer.tp in self.gates:
            await anyio.sleep(self._course.dice.uniform(0, self.release_takes))
            await self._while_frozen()
            if self.gates.get(answer.tp, epoch + 1) <= epoch:
                del self.gates[answer.tp]
        await self._answer(instance.members.released, answer)

    async def _answer(self, call: Callable[..., Awaitable[object]], answer: Answer) -> None:
        for _ in range(20):
            try:
                await call(GROUP, self.name, self.session, [answer])
            except AssignerError:
                await anyio.sleep(0.5)
            else:
                return


class Course:
    def __init__(self, world: World, seed: int, mode: HandoffMode, topics: tuple[str, ...] = ("t",)) -> None:
        """`topics`: more than one move as one."""
        self.world = world
        self.topics = topics
        self.dice = random.Random(seed)
        self.mode = mode
        self.members: list[Member] = []
        self.log: list[str] = []
        self.history: deque[str] = deque(maxlen=5000)
        """What was stored, for whoever has to find out what went wrong."""
        self._epochs: dict[TopicPartition, Assignment] = {}
        self._generation = 0
        self._count = 0
        self._instances = 0
        self.partitions = 6
        self.paused = False
        self.mistakes: list[str] = []

    # --- what goes on ------------------------------------------------------------------------------------------------

    async def run(self, steps: int) -> None:
        await self._set_partitions()
        await self.start_instance()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            await tasks.start(self._watch)
            for _ in range(2):
                await self.join()
            for _ in range(steps):
                await self._step()
            await self._heal()
            await self._settles()
            tasks.cancel_scope.cancel()

    async def _step(self) -> None:
        overlap = self.mode is HandoffMode.OVERLAP
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (4, self.join),
            (3, self.crash),
            (3, self.freeze_member),
            (2, self.take_over),
            (2, self.drain),
            (2, self.make_clumsy),
            (2, self.start_instance),
            (2, self.stop_instance),
            (2, self.freeze_instance),
            (4, self.lose_answers),
            (3, self.act_late),
            (3, self.answer_late),
            (3, self.refuse),
            (3, self.end_watches),
            (1, self.grow),
            # A partition that is no more is taken away at once; if it comes back meanwhile, two may hold it.
            (1 if overlap else 0, self.shrink),
            (1, self.rebalance),
            # A lease that somebody ends behind its holder's back protects it no more.
            (2 if overlap else 0, self.revoke_lease),
            (1, self.delete_registration),
            (1, self.delete_handoff),
            (1, self.depose),
            (1, self.toggle_pause),
        ]
        weights = [weight for weight, _ in actions]
        action = self.dice.choices([act for _, act in actions], weights)[0]
        self.log.append(f"{self.world.clock.now():.2f} {action.__name__}")
        await action()
        await anyio.sleep(self.dice.choice([0.0, 0.05, 0.5, 2.0, 6.0, 15.0]) * self.dice.random())

    def some_instance(self) -> Instance:
        return self.dice.choice(list(self.world.instances.values()))

    def _living(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    # --- consumers ---------------------------------------------------------------------------------------------------

    async def join(self, name: str = "") -> None:
        if len(self._living()) >= 6:
            return
        self._count += 1
        member = Member(self, name or f"c{self._count}", self._count)
        self.members.append(member)
        self._tasks.start_soon(member.run)

    async def crash(self) -> None:
        if len(self._living()) > 1:
            victim = self.dice.choice(self._living())
            victim.alive = False
            victim.scope.cancel()

    async def freeze_member(self) -> None:
        awake = [member for member in self._living() if member.frozen.is_set()]
        if awake:
            victim = self.dice.choice(awake)
            victim.frozen = anyio.Event()
            self._tasks.start_soon(self._thaw_later, victim)

    async def _thaw_later(self, member: Member) -> None:
        await anyio.sleep(self.dice.uniform(0, 2.5 * TTL))
        member.frozen.set()

    async def take_over(self) -> None:
        if self._living():
            await self.join(self.dice.choice(self._living()).name)

    async def drain(self) -> None:
        if len(self._living()) > 2:
            member = self.dice.choice(self._living())
            member.draining = True
            with suppress(AssignerError):
                await self.some_instance().members.deregister(GROUP, member.name, member.session, gates_closed=False)

    async def make_clumsy(self) -> None:
        for member in self._living():
            member.warm_fails = self.dice.choice([0.0, 0.3])
            member.warm_takes = self.dice.choice([0.0, 1.0, 20.0])
            member.release_takes = self.dice.choice([0.0, 0.5, 12.0])

    # --- the service -------------------------------------------------------------------------------------------------

    async def start_instance(self) -> None:
        if len(self.world.instances) < 3:
            self._instances += 1
            await self.world.start_instance(f"i{self._instances}", wrap=lambda store: FaultyStore(store, deadline=2.0))

    async def stop_instance(self) -> None:
        if len(self.world.instances) > 1:
            name = self.dice.choice(list(self.world.instances))
            self._faults(self.world.instances[name]).heal()
            await self.world.stop_instance(name)

    async def freeze_instance(self) -> None:
        instance = self.some_instance()
        self._faults(instance).freeze()
        self._tasks.start_soon(self._thaw_instance_later, instance)

    async def _thaw_instance_later(self, instance: Instance) -> None:
        await anyio.sleep(self.dice.uniform(0, 2 * TTL))
        self._faults(instance).thaw()

    async def lose_answers(self) -> None:
        applied = self.dice.random() < 0.7
        times = self.dice.randint(1, 4)
        self._faults(self.some_instance()).inject(LoseAnswer(applied), kinds=["transact"], times=times)

    async def act_late(self) -> None:
        error = self.dice.uniform(0, 2)
        fault = EffectAfter(error, error + self.dice.uniform(0, TTL))
        self._faults(self.some_instance()).inject(fault, kinds=["transact"], times=self.dice.randint(1, 4))

    async def answer_late(self) -> None:
        fault = AnswerAfter(self.dice.uniform(0, 4))
        self._faults(self.some_instance()).inject(fault, times=self.dice.randint(1, 6))

    async def refuse(self) -> None:
        self._faults(self.some_instance()).inject(Refuse(), times=self.dice.randint(1, 10))

    async def end_watches(self) -> None:
        self._faults(self.some_instance()).end_watches()

    def _faults(self, instance: Instance) -> FaultyStore:
        assert isinstance(instance.store, FaultyStore)
        return instance.store

    async def grow(self) -> None:
        self.partitions += self.dice.randint(1, 3)
        await self._set_partitions()

    async def shrink(self) -> None:
        self.partitions = max(4, self.partitions - self.dice.randint(1, 3))
        await self._set_partitions()

    async def _set_partitions(self) -> None:
        for topic in self.topics:
            await self.world.add_topic(topic, partitions=self.partitions)

    async def rebalance(self) -> None:
        with suppress(AssignerError):
            await self.some_instance().operations.rebalance(GROUP)

    # --- operators ------------------------------------------------------------------------------------------------

    async def revoke_lease(self) -> None:
        consumers = (await self.world.state()).consumers
        if consumers:
            await self.world.store.revoke(self.dice.choice(list(consumers.values())).lease)

    async def delete_registration(self) -> None:
        consumers = (await self.world.state()).consumers
        if consumers:
            await self.world.store.delete(self.dice.choice(list(consumers.values())).key)

    async def delete_handoff(self) -> None:
        handoffs = (await self.world.state()).handoffs
        if handoffs:
            await self.world.store.delete(self.dice.choice(list(handoffs.values())).key)

    async def depose(self) -> None:
        await self.world.store.delete(self.world.group.leader)

    async def toggle_pause(self) -> None:
        self.paused = not self.paused
        await self.world.set_options(paused=self.paused)

    # --- what must hold ----------------------------------------------------------------------------------------------

    async def _watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        keys = self.world.group
        async with self.world.store.watch(keys.prefix, start_revision=self.world.began + 1) as items:
            task_status.started()
            async for item in items:
                for event in item.events if isinstance(item, Batch) else ():
                    self._note(event)
                    if isinstance(event, PutEvent):
                        match keys.parse(event.entry.key):
                            case AssignmentKey(tp):
                                self._assigned(tp, decode(Assignment, event.entry.value)[0])
                            case PlanKey():
                                self._planned(decode(Plan, event.entry.value)[0])
                            case _:
                                pass

    def _note(self, event: Event) -> None:
        key, value = (event.entry.key, event.entry.value) if isinstance(event, PutEvent) else (event.key, b"deleted")
        self.history.append(f"{self.world.clock.now():.2f} {key} {value.decode()}")

    def _assigned(self, tp: TopicPartition, after: Assignment) -> None:
        before = self._epochs.get(tp)
        if before:
            assert after.epoch >= before.epoch, f"{tp}: {before} then {after}"
            if (before.owner, before.session) != (after.owner, after.session):
                assert after.epoch > before.epoch, f"{tp}: {before} then {after}"
        self._epochs[tp] = after

    def _planned(self, plan: Plan) -> None:
        assert plan.generation >= self._generation
        self._generation = plan.generation

    def granted(self, member: Member, tp: TopicPartition) -> None:
        """The gate is open now, if the member's clock agrees: nobody else's may be."""
        if member.holds(tp) is None:
            return
        for other in self.members:
            epoch = other.holds(tp) if other is not member else None
            if epoch is None:
                continue
            assert epoch != member.gates[tp], f"{tp}: {member.session} and {other.session} with epoch {epoch}"
            if self.mode is HandoffMode.EXCLUSIVE:
                raise AssertionError(f"{tp}: {other.session}@{epoch} still holds what {member.session} was given")

    async def _heal(self) -> None:
        self.log.append(f"{self.world.clock.now():.2f} heal")
        for instance in self.world.instances.values():
            self._faults(instance).heal()
        if self.paused:
            await self.toggle_pause()
        for member in self.members:
            member.frozen.set()
            member.warm_fails, member.warm_takes, member.release_takes = 0.0, 0.5, 0.2
        if not [member for member in self._living() if not member.draining]:
            await self.join()
        await self.rebalance()

    async def _settles(self) -> None:
        last: list[GroupState] = []

        async def settled() -> bool:
            last[:] = [await self.world.state()]
            return not self._unsettled(last[0])

        try:
            await eventually(settled, within=SETTLES_WITHIN, every=0.5, what="everything is in its place")
        except AssertionError:
            raise AssertionError(f"{self._unsettled(last[0])}\n{self.describe(last[0])}") from None

    def _unsettled(self, state: GroupState) -> str:
        if state.handoffs:
            return "handoffs are left"
        if len(state.assignments) != self.partitions * len(self.topics):
            return f"{len(state.assignments)} of {self.partitions} partitions are owned"
        for tp, held in state.assignments.items():
            owner = state.consumers.get(held.record.owner)
            if owner is None or owner.record.session != held.record.session:
                return f"{tp} is owned by nobody there"
        if problem := self._uncopied(state):
            return problem
        counts = [len(state.owned[name]) for name in state.consumers]
        if max(counts) - min(counts) > len(self.topics):
            return "uneven"
        if any(self._owners(state, number) > 1 for number in range(self.partitions)):
            return "partitions that move as one have several owners"
        return "; ".join(problem for member in self._living() if (problem := self._mistaken(member, state)))

    def _uncopied(self, state: GroupState) -> str:
        """Every partition has its copies, on others that are there, and on no one else."""
        wanted = min(state.options.standby_count, len(state.consumers) - 1)
        for tp, held in state.assignments.items():
            named = state.standbys[tp].record.holders if tp in state.standbys else ()
            if len(named) != wanted or not set(named) <= state.consumers.keys() - {held.record.owner}:
                return f"{tp} of {held.record.owner} is copied by {named}"
        return "records of no partition are left" if state.standbys.keys() - state.assignments.keys() else ""

    def _owners(self, state: GroupState, number: int) -> int:
        return len({state.assignments[TopicPartition(topic, number)].record.owner for topic in self.topics})

    def _mistaken(self, member: Member, state: GroupState) -> str:
        registered = state.consumers.get(member.name)
        if registered is None or registered.record.session != member.session:
            return f"{member.session} is not registered"
        if member.copies != state.copies[member.name]:
            return f"{member.session} believes to copy {member.copies} and should {state.copies[member.name]}"
        wanted = {tp: state.assignments[tp].record.epoch for tp in state.owned[member.name]}
        return "" if member.gates == wanted else f"{member.session} believes {member.gates} and should {wanted}"

    def describe(self, state: GroupState) -> str:
        lines = [f"{name}: {c.record}" for name, c in state.consumers.items()]
        lines += [str(a.record) for a in state.assignments.values()] + [str(h.record) for h in state.handoffs.values()]
        lines += [f"leader {state.leader.record if state.leader else None}", f"plan {state.plan}"]
        lines += [f"{m.session} alive={m.alive} draining={m.draining}" for m in self._living()]
        return "\n".join(lines + self.log[-30:])


@asynccontextmanager
async def course(
    seed: int, mode: HandoffMode, topics: tuple[str, ...] = ("t",), standbys: int = 0
) -> AsyncIterator[Course]:
    backend = MemoryBackend.shared(MemoryState(LoopClock()))
    together = (topics,) if len(topics) > 1 else ()
    options = msgspec.structs.replace(OPTIONS, handoff_mode=mode, copartitioned=together, standby_count=standbys)
    async with World(backend, StoreSection(root="/test/"), ttl=TTL, options=options) as world:
        await world.set_options()
        yield Course(world, seed, mode, topics)
