"""Random courses of events, from a seed: instances freeze and come and go, consumers crash, hang, drain, take each
other's names and fail to warm, the store loses answers and ends watches, topics grow. Everything is checked on the way:

- what `tests/chaos/checks.py` says of every revision of the store: epochs, generations, floors, terms, commits;
- in `exclusive` groups no two consumers hold a partition at the same time, each by its own clock;
- when the faults end, every partition is owned by somebody who knows it, nothing is in flight, and it is even.

In virtual time and on the memory store: a course of some minutes takes a second, and a seed replays it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import msgspec

from assigner.backends.memory import MemoryBackend, MemoryState
from assigner.clock import LoopClock
from assigner.core.group import GroupState
from assigner.errors import AssignerError
from assigner.instance import Instance
from assigner.model.keys import AssignmentKey, PlanKey, TopicPartition
from assigner.model.records import Assignment, GroupOptions, HandoffMode, Plan, decode
from assigner.settings import StoreSection
from assigner.store import Batch, Event, PutEvent, Store
from assigner.testing.faults import AnswerAfter, EffectAfter, Fault, FaultyStore, Injected, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from tests.chaos.checks import Checks
from tests.chaos.histories.group_life import STRATEGIES, finite_decisions
from tests.chaos.histories.history_member import TTL, Member
from tests.support.cluster import GROUP, Cluster

SETTLES_WITHIN = 240.0
"""Every timeout and backoff of `OPTIONS` several times over."""
OPTIONS = GroupOptions(
    debounce=0.3, warming_timeout=12.0, release_timeout=8.0, balance_backoff=10.0, quarantine_after=1000
)


class Course:
    def __init__(self, cluster: Cluster, seed: int, mode: HandoffMode, topics: tuple[str, ...] = ("t",)) -> None:
        """`topics`: more than one move as one."""
        self.cluster = cluster
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
        self.checks = Checks(cluster, lambda: self.members)
        self.happened: Counter[str] = Counter()
        self._injected: list[tuple[str, Injected]] = []

    @property
    def faults(self) -> Counter[str]:
        """Calls disturbed, by kind."""
        counted: Counter[str] = Counter()
        for kind, injected in self._injected:
            counted[kind] += injected.hits
        return counted

    # --- what goes on ------------------------------------------------------------------------------------------------

    async def run(self, steps: int) -> None:
        await self._set_partitions()
        await self.start_instance()
        with finite_decisions():
            await self._run(steps)

    async def _run(self, steps: int) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            await tasks.start(self._watch)
            for _ in range(2):
                await self.join()
            for _ in range(steps):
                await self._step()
                self.checks.look_at_gates()
                self.checks.raise_violations()
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
            (3, self.switch_option),
            (1, self.everybody_away),
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
        self.log.append(f"{self.cluster.clock.now():.2f} {action.__name__}")
        self.happened[action.__name__] += 1
        await action()
        await anyio.sleep(self.dice.choice([0.0, 0.05, 0.5, 2.0, 6.0, 15.0]) * self.dice.random())

    def some_instance(self) -> Instance:
        return self.dice.choice(list(self.cluster.instances.values()))

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
        if len(self.cluster.instances) < 3:
            self._instances += 1
            name = f"i{self._instances}"

            def wrap(store: Store) -> Store:
                return FaultyStore(self.checks.observed(store, name), deadline=2.0)

            await self.cluster.start_instance(name, wrap=wrap)

    async def stop_instance(self) -> None:
        if len(self.cluster.instances) > 1:
            name = self.dice.choice(list(self.cluster.instances))
            self._faults(self.cluster.instances[name]).heal()
            await self.cluster.stop_instance(name)

    async def freeze_instance(self) -> None:
        instance = self.some_instance()
        self._faults(instance).freeze()
        self._tasks.start_soon(self._thaw_instance_later, instance)

    async def _thaw_instance_later(self, instance: Instance) -> None:
        await anyio.sleep(self.dice.uniform(0, 2 * TTL))
        self._faults(instance).thaw()

    async def lose_answers(self) -> None:
        self._disturb(LoseAnswer(self.dice.random() < 0.7), kinds=["transact"], times=self.dice.randint(1, 4))

    async def act_late(self) -> None:
        error = self.dice.uniform(0, 2)
        fault = EffectAfter(error, error + self.dice.uniform(0, TTL))
        self._disturb(fault, kinds=["transact"], times=self.dice.randint(1, 4))

    async def answer_late(self) -> None:
        fault = AnswerAfter(self.dice.uniform(0, 4))
        self._disturb(fault, times=self.dice.randint(1, 6))

    async def refuse(self) -> None:
        self._disturb(Refuse(), times=self.dice.randint(1, 10))

    def _disturb(self, fault: Fault, **which: Any) -> None:
        injected = self._faults(self.some_instance()).inject(fault, **which)
        self._injected.append((type(fault).__name__, injected))

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
            await self.cluster.add_topic(topic, partitions=self.partitions)

    async def rebalance(self) -> None:
        with suppress(AssignerError):
            await self.some_instance().operations.rebalance(GROUP)

    # --- operators ------------------------------------------------------------------------------------------------

    async def revoke_lease(self) -> None:
        consumers = (await self.cluster.state()).consumers
        if consumers:
            await self.cluster.store.revoke(self.dice.choice(list(consumers.values())).lease)

    async def delete_registration(self) -> None:
        consumers = (await self.cluster.state()).consumers
        if consumers:
            await self.cluster.store.delete(self.dice.choice(list(consumers.values())).key)

    async def delete_handoff(self) -> None:
        handoffs = (await self.cluster.state()).handoffs
        if handoffs:
            await self.cluster.store.delete(self.dice.choice(list(handoffs.values())).key)

    async def depose(self) -> None:
        await self.cluster.store.delete(self.cluster.group.leader)

    async def switch_option(self) -> None:
        drawn: dict[str, Any] = {
            "strategy": self.dice.choice(STRATEGIES),
            "debounce": self.dice.choice((0.0, 0.3, 2.0)),
            "max_concurrent_handoffs": self.dice.choice((1, 3, 1000)),
            "warm_concurrency": self.dice.choice((1, 2, 100)),
            "rollout": self.dice.choice(("", "auto")),
        }
        option = self.dice.choice(sorted(drawn))
        self.log.append(f"{option} = {drawn[option]}")
        await self.cluster.set_options(**{option: drawn[option]})

    async def everybody_away(self) -> None:
        for member in self._living():
            member.alive = False
            member.scope.cancel()
        await anyio.sleep(self.dice.uniform(0.5, 3.5) * TTL)
        await self.join()

    async def toggle_pause(self) -> None:
        self.paused = not self.paused
        await self.cluster.set_options(paused=self.paused)

    # --- what must hold ----------------------------------------------------------------------------------------------

    async def _watch(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        keys = self.cluster.group
        async with self.cluster.store.watch(self.cluster.keys.root, start_revision=self.cluster.began + 1) as items:
            task_status.started()
            async for item in items:
                self.checks.take(item.events if isinstance(item, Batch) else ())
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
        self.history.append(f"{self.cluster.clock.now():.2f} {key} {value.decode()}")

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
        self.log.append(f"{self.cluster.clock.now():.2f} heal")
        for instance in self.cluster.instances.values():
            self._faults(instance).heal()
        if self.paused:
            await self.toggle_pause()
        usual = {name: getattr(OPTIONS, name) for name in ("strategy", "debounce", "rollout")}
        await self.cluster.set_options(**usual, max_concurrent_handoffs=1000, warm_concurrency=100)
        for member in self.members:
            member.frozen.set()
            member.warm_fails, member.warm_takes, member.release_takes = 0.0, 0.5, 0.2
        if not [member for member in self._living() if not member.draining]:
            await self.join()
        await self.rebalance()

    async def _settles(self) -> None:
        last: list[GroupState] = []

        async def settled() -> bool:
            if not [member for member in self._living() if not member.draining]:
                # The last one learns only now that its name was taken, by somebody who is gone.
                await self.join()
            last[:] = [await self.cluster.state()]
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
    async with Cluster(backend, StoreSection(root="/test/"), ttl=TTL, options=options) as cluster:
        await cluster.set_options()
        yield Course(cluster, seed, mode, topics)
