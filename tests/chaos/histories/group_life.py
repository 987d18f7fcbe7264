"""Chaotic courses from a seed: everything that may happen happens, and `tests/chaos/checks.py` looks on all the while.

A seed draws a group (mode, strategy, limits, sets, debounce, standbys) and what befalls it: consumers and instances
come, go, hang and take each other's names; the store refuses, delays, loses answers, acts after its caller gave up and
answers long after it acted; operators switch options and delete topics in mid-flight; everybody stays away. Then all
is healed: the group has to settle within a stated time and stay settled, every drain has to end, and an outage of all
instances from which everybody comes back has to move nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import anyio.abc

from assigner.core.coordination.machine import Coordination, Decisions
from assigner.errors import AssignerError
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions, HandoffMode, Offset, decode
from assigner.store import Found, Store
from assigner.testing.faults import AnswerAfter, Delay, EffectAfter, Fault, FaultyStore, Injected, LoseAnswer, Refuse
from tests.chaos.checks import Checks, Violation
from tests.chaos.histories.consumer import ChaosConsumer
from tests.chaos.histories.settling import Settling
from tests.support.cluster import Cluster, cluster_on

MOST_CONSUMERS = 6
MOST_DECISIONS = 3000
"""Of one leader at one instant: more is a loop without a pause."""
STRATEGIES = ("sticky_balanced", "sticky_balanced", "range", "jump_hash", "rendezvous", "spread_first", "copartitioned")
EXTRA = "extra"
"""A topic that comes and goes."""


def options_of(seed: int, mode: HandoffMode) -> GroupOptions:
    dice = random.Random(f"options of {seed}")
    return GroupOptions(
        handoff_mode=mode,
        strategy=dice.choice(STRATEGIES),
        debounce=dice.choice((0.2, 0.2, 0.0, 1.0)),
        warming_timeout=15.0,
        release_timeout=8.0,
        balance_backoff=5.0,
        quarantine_after=dice.choice((1000, 1000, 2)),
        standby_count=dice.choice((0, 0, 0, 1)),
        copartitioned=(("left", "right"),) if seed % 3 == 0 else (),
    )


@contextmanager
def finite_decisions() -> Iterator[None]:
    """Stop a leader that decides again and again without letting time pass."""
    decide = Coordination.decide
    counts: Counter[tuple[int, float]] = Counter()

    def counted(self: Coordination, now: float, wall: float, *budget: int) -> Decisions:
        counts[id(self), now] += 1
        if counts[id(self), now] > MOST_DECISIONS:
            raise Violation(f"loop: more than {MOST_DECISIONS} decisions at one instant")
        return decide(self, now, wall, *budget)

    Coordination.decide = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Coordination.decide = decide  # type: ignore[method-assign]
    assert max(counts.values(), default=0) <= MOST_DECISIONS, "loop: a leader decided without letting time pass"


class Chaos:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        """All topics of the group's options are one co-partition set; without any, there is one topic."""
        self.cluster = cluster
        self.topics = [topic for topics in cluster.options.copartitioned for topic in topics] or ["t"]
        self.dice = random.Random(seed)
        self.consumers: list[ChaosConsumer] = []
        self.checks = Checks(cluster, lambda: self.consumers)
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []
        """What was done, for who has to understand a failure."""
        self._injected: list[tuple[str, Injected]] = []
        self._numbers = 0
        self._switches = 2
        """Of the handoff mode: each leaves some time in which both modes are to be seen."""
        self._deleted_at = float("-inf")
        self._uneven = self.dice.random() < 0.3
        self._tasks: anyio.abc.TaskGroup

    async def run(self, steps: int) -> None:
        with finite_decisions():
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self.checks.watch)
                partitions = self.dice.randint(4, 9)
                for topic in self.topics:
                    await self.cluster.add_topic(topic, partitions=partitions)
                await self.cluster.set_options()
                for _ in range(2):
                    await self.start_instance()
                for _ in range(4):
                    await self.join()
                for _ in range(steps):
                    await anyio.sleep(self.dice.choice((0.0, 0.1, 0.3, 1.0, 2.0)))
                    await self._something()
                    self.checks.look_at_gates()
                    self.checks.raise_violations()
                settling = Settling(self)
                await settling.calm_down()
                if self.dice.random() < 0.5:
                    await settling.outage()
                self.checks.raise_violations()
                self._tasks.cancel_scope.cancel()

    @property
    def faults(self) -> Counter[str]:
        """Calls disturbed, by kind."""
        counted: Counter[str] = Counter()
        for kind, injected in self._injected:
            counted[kind] += injected.hits
        return counted

    # --- what may happen ---------------------------------------------------------------------------------------------

    async def _something(self) -> None:
        happenings: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.join),
            (5, self._crash),
            (8, self._reconnect),
            (4, self._take_over),
            (5, self._drain),
            (4, self._freeze),
            (2, self._resubscribe),
            (1, self._everybody_away),
            (3, self._replace_instance),
            (12, self._disturb_calls),
            (3, self._hang_store),
            (4, self._break_watches),
            (1, self._depose),
            (2, self._ask_for_rebalance),
            (5, self._switch_option),
            (2, self._change_topic),
        ]
        weights = [weight for weight, _ in happenings]
        what = self.dice.choices([what for _, what in happenings], weights)[0]
        self.happened[what.__name__.strip("_")] += 1
        await what()

    def note(self, what: str) -> None:
        self.story.append(f"{self.cluster.clock.now():.1f} {what}")

    def alive(self) -> list[ChaosConsumer]:
        return [consumer for consumer in self.consumers if not consumer.gone]

    async def join(self, name: str = "") -> None:
        if not name and len({c.name for c in self.alive()}) >= MOST_CONSUMERS:
            return
        self._numbers += 1
        consumer = ChaosConsumer(
            name or f"c{self._numbers}",
            f"s{self._numbers}",
            ttl=self.cluster.ttl,
            dice=random.Random(self.dice.random()),
            instances=lambda: list(self.cluster.instances.values()),
            now=self.cluster.clock.now,
            opened=self.checks.opened,
            answered=self._committed,
            generation=self.dice.choice(("v1", "v1", "v2")),
            capacity=self.dice.choice((0.5, 1.0, 2.0)) if self._uneven else 1.0,
        )
        self.note(f"join {consumer.name} as {consumer.session} {consumer.registration}")
        self.consumers.append(consumer)
        self._tasks.start_soon(consumer.run)

    async def _committed(self, tp: TopicPartition, offset: int) -> None:
        read = await self.cluster.store.get(self.cluster.keys.offset("g", tp))
        assert isinstance(read, Found), f"offset: {tp} has none although {offset} was answered"
        self.checks.answered(tp, offset, read.revision, decode(Offset, read.entry.value)[0].offset)

    def _anybody(self) -> ChaosConsumer | None:
        alive = self.alive()
        return self.dice.choice(alive) if alive else None

    async def _crash(self) -> None:
        if consumer := self._anybody():
            self.note(f"crash {consumer.name}")
            consumer.end("crashed")

    async def _reconnect(self) -> None:
        if consumer := self._anybody():
            self.note(f"disconnect {consumer.name}")
            consumer.disconnect()

    async def _take_over(self) -> None:
        if consumer := self._anybody():
            await self.join(consumer.name)

    async def _drain(self) -> None:
        if (consumer := self._anybody()) and len(self.alive()) > 2:
            self.note(f"drain {consumer.name}")
            self._tasks.start_soon(consumer.drain)

    async def _freeze(self) -> None:
        if consumer := self._anybody():
            seconds = self.dice.uniform(0.3, 1.5) * self.cluster.ttl
            self.note(f"freeze {consumer.name} for {seconds:.1f}")
            consumer.freeze(seconds)

    async def _resubscribe(self) -> None:
        """It names fewer topics, or all of them again, when it registers the next time."""
        if consumer := self._anybody():
            known = sorted((await self.cluster.state()).topics)
            topics = self.dice.choice(((), tuple(known), tuple(known[: self.dice.randint(1, len(known))])))
            self.note(f"{consumer.name} subscribes to {topics}")
            consumer.registration["topics"] = topics
            consumer.disconnect()

    async def _everybody_away(self) -> None:
        seconds = self.dice.uniform(0.5, 3.5) * self.cluster.ttl
        crash = self.dice.random() < 0.5
        self.note(f"everybody {'crashes' if crash else 'hangs'}, nobody comes for {seconds:.1f}")
        for consumer in self.alive():
            if crash:
                consumer.end("crashed")
            else:
                consumer.freeze(seconds)
        await anyio.sleep(seconds)
        for _ in range(self.dice.randint(1, 3)):
            await self.join()

    # --- the service and its store -----------------------------------------------------------------------------------

    async def start_instance(self, *, quick: bool = False) -> None:
        self._numbers += 1
        name = f"i{self._numbers}"

        def wrap(store: Store) -> Store:
            self.cluster.faults[name] = FaultyStore(self.checks.observed(store, name))
            return self.cluster.faults[name]

        await self.cluster.start_instance(name, wrap=wrap)
        if quick:
            return
        # What is decided and what is written are some way apart, as they are on a real network.
        for seconds in (0.05, 0.3, 1.0):
            self.cluster.faults[name].inject(
                Delay(seconds), kinds={"transact"}, times=None, where=lambda *_: self.dice.random() < 0.1
            )

    async def _replace_instance(self) -> None:
        name = self.dice.choice(sorted(self.cluster.instances))
        if self.dice.random() < 0.5:
            self.note(f"crash instance {name}")
            self.cluster.crash_instance(name)
        else:
            self.note(f"stop instance {name}")
            self.cluster.faults[name].heal()
            await self.cluster.stop_instance(name)
            del self.cluster.faults[name]
        self.cut_off(name)
        await self.start_instance()

    def cut_off(self, name: str) -> None:
        for consumer in self.consumers:
            if consumer._instance and consumer._instance.name == name:
                consumer.disconnect()

    async def _disturb_calls(self) -> None:
        name = self.dice.choice(sorted(self.cluster.faults))
        gave_up = self.dice.uniform(0.0, 5.0)
        fault: Fault = self.dice.choice(
            (
                Refuse(),
                LoseAnswer(applied=True),
                LoseAnswer(applied=False),
                Delay(self.dice.uniform(0.1, 3.0)),
                EffectAfter(gave_up, gave_up + self.dice.uniform(0.0, 8.0)),
                AnswerAfter(self.dice.uniform(0.1, 8.0)),
            )
        )
        times = self.dice.randint(1, 6)
        self.note(f"{times} x {fault} at {name}")
        self._injected.append((type(fault).__name__, self.cluster.faults[name].inject(fault, times=times)))

    async def _hang_store(self) -> None:
        name = self.dice.choice(sorted(self.cluster.faults))
        faults, seconds = self.cluster.faults[name], self.dice.uniform(0.5, 1.2 * self.cluster.ttl)
        self.note(f"the store hangs for {name}, {seconds:.1f} s")

        async def hang() -> None:
            faults.freeze()
            await anyio.sleep(seconds)
            if self.cluster.faults.get(name) is faults:
                faults.thaw()

        self._tasks.start_soon(hang)

    async def _break_watches(self) -> None:
        name = self.dice.choice(sorted(self.cluster.faults))
        self.note(f"watches break at {name}")
        if self.dice.random() < 0.5:
            self.cluster.faults[name].end_watches()
        else:
            self.cluster.faults[name].compact_watches(1)

    async def _depose(self) -> None:
        self.note("the leader's key is deleted")
        await self.cluster.store.delete(self.cluster.group.leader)

    # --- operators ---------------------------------------------------------------------------------------------------

    async def _ask_for_rebalance(self) -> None:
        instance: Instance = self.dice.choice(list(self.cluster.instances.values()))

        async def ask() -> None:
            with suppress(AssignerError):
                await instance.operations.rebalance("g")

        self.note("ask for a rebalance")
        self._tasks.start_soon(ask)

    async def _switch_option(self) -> None:
        together = (tuple(self.topics),) if len(self.topics) > 1 else ()
        drawn: dict[str, Any] = {
            "strategy": self.dice.choice(STRATEGIES),
            "debounce": self.dice.choice((0.0, 0.2, 1.0)),
            "max_concurrent_handoffs": self.dice.choice((1, 3, 1000)),
            "warm_concurrency": self.dice.choice((1, 2, 100)),
            "rollout": self.dice.choice(("", "auto", "v2")),
            "standby_count": self.dice.choice((0, 1, 2)),
            "quarantine_after": self.dice.choice((1, 2, 1000)),
            "copartitioned": self.dice.choice((together, ())),
            "handoff_mode": self.dice.choice(tuple(HandoffMode)),
        }
        option = self.dice.choice(sorted(drawn))
        if option == "handoff_mode":
            if not self._switches:
                return
            self._switches -= 1
        self.note(f"{option} = {drawn[option]}")
        await self.cluster.set_options(**{option: drawn[option]})

    async def _change_topic(self) -> None:
        """The extra topic comes, grows or goes; no sooner again than its last owners have shut their gates."""
        now = self.cluster.clock.now()
        config = (await self.cluster.state()).topics.get(EXTRA)
        if config is None and now > self._deleted_at + 2 * self.cluster.ttl:
            self.note(f"{EXTRA} is new")
            await self.cluster.add_topic(EXTRA, partitions=self.dice.randint(1, 5))
        elif config is not None and self.dice.random() < 0.5:
            self.note(f"{EXTRA} grows")
            await self.cluster.add_topic(EXTRA, partitions=config.record.partition_count + 1)
        elif config is not None:
            self.note(f"{EXTRA} is deleted")
            self._deleted_at = now
            await self.cluster.store.delete(config.key)
            for consumer in self.consumers:
                # Who names a topic that is not there is refused.
                named = consumer.registration.get("topics", ())
                if EXTRA in named:
                    consumer.registration["topics"] = tuple(topic for topic in named if topic != EXTRA)
                    # At once: otherwise it would want something else only after the outage in the end, and rightly
                    # get it.
                    consumer.disconnect()


async def course(
    seed: int,
    mode: HandoffMode | None = None,
    *,
    steps: int = 60,
    begun: Callable[[Chaos], object] = lambda chaos: None,
) -> None:
    """One course to its end. Every other seed is of an exclusive group, if no mode is asked for. `begun` is told of
    it, for who wants to know how far it came."""
    mode = mode or (HandoffMode.EXCLUSIVE if seed % 2 else HandoffMode.OVERLAP)
    async with cluster_on("memory", ttl=9.0, options=options_of(seed, mode)) as cluster:
        chaos = Chaos(cluster, seed)
        begun(chaos)
        try:
            await chaos.run(steps)
        except BaseException as error:
            error.add_note("\n".join((f"seed {seed}", *chaos.story[-60:])))
            raise
