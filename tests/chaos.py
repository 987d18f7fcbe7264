"""Chaotic courses from a seed: everything that may happen happens, and the invariants are looked at all the while.

The truth is the store's own history, watched from the first revision on a handle that nobody disturbs, together with
what each consumer believes: the gates of the client library's own state. After the chaos everything is healed, and the
group has to settle within a stated time and stay settled.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.abc

from assigner.core.group import GroupState
from assigner.errors import AssignerError
from assigner.instance import Instance
from assigner.keys import AssignmentKey, ConsumerKey, PlanKey, TopicPartition
from assigner.records import Assignment, Consumer, HandoffMode, Plan, Status, decode
from assigner.store import Batch, DeleteEvent, Event, PutEvent
from assigner.testing.faults import Delay, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from tests.chaos_consumer import ChaosConsumer
from tests.peculiar_stores import key_of
from tests.world import World

MOST_CONSUMERS = 6


class Invariants:
    """Looks at every change of the store, and at every gate that opens."""

    def __init__(self, world: World, consumers: list[ChaosConsumer]) -> None:
        self._world = world
        self._consumers = consumers
        self._registered: dict[str, str] = {}
        """Name -> session, as of the revision looked at."""
        self._assigned: dict[TopicPartition, Assignment] = {}
        self._highest: dict[TopicPartition, int] = {}
        self._holder: dict[tuple[TopicPartition, int], tuple[str, str]] = {}
        """Who was given an epoch."""
        self._plan = Plan()
        self.assignments = 0

    async def watch(self) -> None:
        async with self._world.store.watch(self._world.group.prefix, start_revision=self._world.began + 1) as items:
            async for item in items:
                if isinstance(item, Batch):
                    self.take(item.events)

    def take(self, events: tuple[Event, ...]) -> None:
        by_revision: dict[int, list[Event]] = {}
        for event in events:
            revision = event.entry.mod_revision if isinstance(event, PutEvent) else event.mod_revision
            by_revision.setdefault(revision, []).append(event)
        for _, together in sorted(by_revision.items()):
            for event in together:
                self._registration(event)
            for event in together:
                self._record(event)

    def _registration(self, event: Event) -> None:
        match event:
            case PutEvent(entry) if isinstance(key := self._world.group.parse(entry.key), ConsumerKey):
                self._registered[key.name] = decode(Consumer, entry.value)[0].session
            case DeleteEvent(key=raw) if isinstance(key := self._world.group.parse(raw), ConsumerKey):
                self._registered.pop(key.name, None)

    def _record(self, event: Event) -> None:
        raw = event.entry.key if isinstance(event, PutEvent) else event.key
        match self._world.group.parse(raw), event:
            case AssignmentKey(tp), PutEvent(entry):
                self._assignment(tp, decode(Assignment, entry.value)[0])
            case AssignmentKey(tp), DeleteEvent():
                assert self._plan.epoch_floor >= self._highest[tp], f"I2: {tp} was deleted above the floor"
                self._assigned.pop(tp, None)
            case PlanKey(), PutEvent(entry):
                plan = decode(Plan, entry.value)[0]
                assert plan.generation >= self._plan.generation, f"I2: the generation fell to {plan.generation}"
                assert plan.epoch_floor >= self._plan.epoch_floor, f"I2: the floor fell to {plan.epoch_floor}"
                self._plan = plan

    def _assignment(self, tp: TopicPartition, record: Assignment) -> None:
        self.assignments += 1
        assert record.epoch > self._highest.get(tp, 0), f"I2: {tp} went from {self._highest[tp]} to {record.epoch}"
        self._highest[tp] = record.epoch
        self._holder[tp, record.epoch] = (record.owner, record.session)
        before = self._assigned.get(tp)
        if before is None or (before.owner, before.session) != (record.owner, record.session):
            session = self._registered.get(record.owner)
            assert session == record.session, f"I1: {tp} was given to {record.owner}, who was not registered so"
        self._assigned[tp] = record

    def opened(self, consumer: ChaosConsumer, tp: TopicPartition, epoch: int) -> None:
        """A gate opened: nobody else may be inside, or, in overlap mode, only with another epoch."""
        given = self._holder.get((tp, epoch))
        assert given in (None, (consumer.name, consumer.session)), f"I1: epoch {epoch} of {tp} is of {given}"
        for other in self._consumers:
            theirs = other.open_gates().get(tp) if other is not consumer else None
            if theirs is None:
                continue
            assert self._world.options.handoff_mode is HandoffMode.OVERLAP, (
                f"I1: {tp} is open at {consumer.name}/{consumer.session} with {epoch} "
                f"and at {other.name}/{other.session} with {theirs}"
            )
            assert theirs != epoch, f"I1: {tp} is open twice with epoch {epoch}"

    def settled(self, state: GroupState, alive: set[str]) -> bool:
        every = sum(topic.record.partition_count for topic in state.topics.values())
        units: dict[int, set[str]] = {}
        for tp, held in state.assignments.items():
            units.setdefault(tp.partition, set()).add(held.record.owner)
        counts = [sum(name in owners for owners in units.values()) for name in alive]
        return (
            set(state.consumers) == alive
            and all(consumer.record.status is Status.READY for consumer in state.consumers.values())
            and not state.handoffs
            and len(state.assignments) == every
            and all(len(owners) == 1 and owners <= alive for owners in units.values())
            and max(counts) - min(counts) <= 1
        )

    def beliefs_agree(self, state: GroupState) -> bool:
        believed = {
            (tp, c.name, c.session, epoch)
            for c in self._consumers
            for tp, epoch in c.open_gates().items()
            if not c.gone
        }
        stored = {
            (tp, held.record.owner, held.record.session, held.record.epoch) for tp, held in state.assignments.items()
        }
        return believed == stored


class Chaos:
    def __init__(self, world: World, seed: int) -> None:
        """All topics of the group's options are one co-partition set; without any, there is one topic."""
        self.world = world
        self.topics = [topic for topics in world.options.copartitioned for topic in topics] or ["t"]
        self.dice = random.Random(seed)
        self.consumers: list[ChaosConsumer] = []
        self.invariants = Invariants(world, self.consumers)
        self.story: list[str] = []
        """What was done, for who has to understand a failure."""
        self._numbers = 0
        self._tasks: anyio.abc.TaskGroup

    async def run(self, steps: int) -> None:
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self.invariants.watch)
            partitions = self.dice.randint(4, 9)
            for topic in self.topics:
                await self.world.add_topic(topic, partitions=partitions)
            for _ in range(2):
                await self._start_instance()
            for _ in range(4):
                await self._join()
            for _ in range(steps):
                await anyio.sleep(self.dice.choice((0.0, 0.1, 0.3, 1.0, 2.0)))
                await self._something()
            await self._calm_down()
            self._tasks.cancel_scope.cancel()

    # --- what may happen ---------------------------------------------------------------------------------------------

    async def _something(self) -> None:
        happenings: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self._join),
            (5, self._crash),
            (8, self._reconnect),
            (4, self._take_over),
            (5, self._drain),
            (4, self._freeze),
            (3, self._replace_instance),
            (10, self._disturb_calls),
            (3, self._hang_store),
            (4, self._break_watches),
            (2, self._ask_for_rebalance),
        ]
        weights = [weight for weight, _ in happenings]
        await self.dice.choices([what for _, what in happenings], weights)[0]()

    def _note(self, what: str) -> None:
        self.story.append(f"{self.world.clock.now():.1f} {what}")

    def _alive(self) -> list[ChaosConsumer]:
        return [consumer for consumer in self.consumers if not consumer.gone]

    async def _join(self, name: str = "") -> None:
        if not name and len({c.name for c in self._alive()}) >= MOST_CONSUMERS:
            return
        self._numbers += 1
        consumer = ChaosConsumer(
            name or f"c{self._numbers}",
            f"s{self._numbers}",
            ttl=self.world.ttl,
            dice=random.Random(self.dice.random()),
            instances=lambda: list(self.world.instances.values()),
            now=self.world.clock.now,
            opened=self.invariants.opened,
        )
        self._note(f"join {consumer.name} as {consumer.session}")
        self.consumers.append(consumer)
        self._tasks.start_soon(consumer.run)

    def _anybody(self) -> ChaosConsumer | None:
        alive = self._alive()
        return self.dice.choice(alive) if alive else None

    async def _crash(self) -> None:
        if consumer := self._anybody():
            self._note(f"crash {consumer.name}")
            consumer.end("crashed")

    async def _reconnect(self) -> None:
        if consumer := self._anybody():
            self._note(f"disconnect {consumer.name}")
            consumer.disconnect()

    async def _take_over(self) -> None:
        if consumer := self._anybody():
            await self._join(consumer.name)

    async def _drain(self) -> None:
        if (consumer := self._anybody()) and len(self._alive()) > 2:
            self._note(f"drain {consumer.name}")
            self._tasks.start_soon(consumer.drain)

    async def _freeze(self) -> None:
        if consumer := self._anybody():
            seconds = self.dice.uniform(0.3, 1.5) * self.world.ttl
            self._note(f"freeze {consumer.name} for {seconds:.1f}")
            consumer.freeze(seconds)

    async def _start_instance(self) -> None:
        self._numbers += 1
        faults = await self.world.start_faulty(f"i{self._numbers}")
        # What is decided and what is written are some way apart, as they are on a real network.
        for seconds in (0.05, 0.3, 1.0):
            faults.inject(Delay(seconds), kinds={"transact"}, times=None, where=lambda *_: self.dice.random() < 0.1)

    async def _replace_instance(self) -> None:
        name = self.dice.choice(sorted(self.world.instances))
        if self.dice.random() < 0.5:
            self._note(f"crash instance {name}")
            self.world.crash_instance(name)
        else:
            self._note(f"stop instance {name}")
            self.world.faults[name].heal()
            await self.world.stop_instance(name)
            del self.world.faults[name]
        for consumer in self.consumers:
            if consumer._instance and consumer._instance.name == name:
                consumer.disconnect()
        await self._start_instance()

    async def _disturb_calls(self) -> None:
        name = self.dice.choice(sorted(self.world.faults))
        fault = self.dice.choice(
            (Refuse(), LoseAnswer(applied=True), LoseAnswer(applied=False), Delay(self.dice.uniform(0.1, 3.0)))
        )
        times = self.dice.randint(1, 6)
        self._note(f"{times} x {fault} at {name}")
        self.world.faults[name].inject(fault, times=times)

    async def _hang_store(self) -> None:
        name = self.dice.choice(sorted(self.world.faults))
        faults, seconds = self.world.faults[name], self.dice.uniform(0.5, 1.2 * self.world.ttl)
        self._note(f"the store hangs for {name}, {seconds:.1f} s")

        async def hang() -> None:
            faults.freeze()
            await anyio.sleep(seconds)
            if self.world.faults.get(name) is faults:
                faults.thaw()

        self._tasks.start_soon(hang)

    async def _break_watches(self) -> None:
        name = self.dice.choice(sorted(self.world.faults))
        self._note(f"watches break at {name}")
        if self.dice.random() < 0.5:
            self.world.faults[name].end_watches()
        else:
            self.world.faults[name].compact_watches(1)

    async def _ask_for_rebalance(self) -> None:
        instance: Instance = self.dice.choice(list(self.world.instances.values()))

        async def ask() -> None:
            with suppress(AssignerError):
                await instance.operations.rebalance("g")

        self._note("ask for a rebalance")
        self._tasks.start_soon(ask)

    # --- and then --------------------------------------------------------------------------------------------------

    async def _calm_down(self) -> None:
        self._note("calm")
        for faults in self.world.faults.values():
            faults.heal()
        for consumer in self.consumers:
            consumer.calm = True
        await anyio.sleep(1.6 * self.world.ttl)
        # Those who are leaving wait for somebody to take over from them.
        while sum(not consumer.draining for consumer in self._alive()) < 2:
            await self._join()
            self.consumers[-1].calm = True
        await self.until_settled(within=10 * self.world.ttl)
        before = await self.world.state()
        await anyio.sleep(3 * self.world.ttl)
        since = await self.world.history(before.revision)
        moved = [event for event in since if isinstance(self.world.group.parse(key_of(event)), AssignmentKey)]
        assert not moved, f"I4: it oscillates: {since}"
        assert self.invariants.assignments >= len(before.assignments), "nothing happened at all"

    async def until_settled(self, within: float) -> None:
        async def settled() -> bool:
            state = await self.world.state()
            alive = {consumer.name for consumer in self._alive()}
            return self.invariants.settled(state, alive) and self.invariants.beliefs_agree(state)

        try:
            await eventually(settled, within=within, every=0.5, what="I4: everything is owned, evenly, and believed so")
        except AssertionError as error:
            error.add_note(await self._picture())
            raise

    async def _picture(self) -> str:
        """How things stand, for who has to understand a failure."""
        state = await self.world.state()
        lines = [f"leader {state.leader and state.leader.record.holder}, instances {sorted(self.world.instances)}"]
        for name, registered in sorted(state.consumers.items()):
            record = registered.record
            lines.append(f"registered {name}/{record.session} {record.status.value} {record.evicted!r}")
        for tp, held in sorted(state.assignments.items()):
            handoff = state.handoffs.get(tp)
            lines.append(f"{tp}: {held.record.owner}/{held.record.session} {held.record.epoch} {handoff}")
        lines += [f"believes {c.name}/{c.session} {c.open_gates()} {c.doing()}" for c in self._alive()]
        return "\n".join(lines)
