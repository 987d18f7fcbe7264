"""Courses from a seed: pods and routers join, leave, drain, crash and hang, and requests pass through all the while.

A seed draws a group and what befalls it: bursts of joins within one debounce window, routers that come late, die, stand
still past their lease and come back, connect to another instance, ack late, twice or never; instances that are
replaced, a store that delays, refuses and loses answers, handoffs and acks that an operator deletes. The checks look at
every revision and every request. Then all is healed, and `Settling` says how it has to end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress

import anyio
import anyio.abc

from assigner.core.group import GroupState
from assigner.errors import AssignerError
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.records import FreezeOverdue, GroupOptions, Handoff, HandoffMode, Stored
from assigner.routing.stash import StashLimits
from assigner.store import Store
from assigner.testing.faults import AnswerAfter, Delay, EffectAfter, Fault, FaultyStore, Injected, LoseAnswer, Refuse
from assigner.testing.waiting import eventually
from tests.chaos.histories.group_life import finite_decisions
from tests.chaos.routers.pod import Pod
from tests.chaos.routers.request_checks import RequestChecks
from tests.chaos.routers.router import AckManner, ChaosRouter
from tests.chaos.routers.settling import Settling
from tests.chaos.routers.traffic import Traffic
from tests.support.cluster import GROUP, Cluster, cluster_on

TTL = 9.0
PARTITIONS = 6
MOST_PODS = 5
MOST_ROUTERS = 3
REPAIRED_WITHIN = 8.0
"""Seconds for a leader to notice what an operator deleted, unless it is lost meanwhile."""


def options_of(seed: int, mode: HandoffMode) -> GroupOptions:
    dice = random.Random(f"router options of {seed}")
    return GroupOptions(
        handoff_mode=mode,
        strategy=dice.choice(("sticky_balanced", "sticky_balanced", "jump_hash", "rendezvous")),
        debounce=dice.choice((0.2, 0.0, 1.0)),
        warming_timeout=10.0,
        freeze_timeout=dice.choice((2.0, 4.0)),
        freeze_overdue=dice.choice((FreezeOverdue.ABANDON, FreezeOverdue.ABANDON, FreezeOverdue.PROCEED)),
        release_timeout=8.0,
        balance_backoff=3.0,
        quarantine_after=1000,
    )


class RouterCourse:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.dice = random.Random(f"routers {seed}")
        self.pods: list[Pod] = []
        self.routers: list[ChaosRouter] = []
        self.checks = RequestChecks(cluster, lambda: self.pods)
        self.checks.choose(cluster.options.freeze_overdue)
        self.traffic = Traffic(
            random.Random(self.dice.random()), cluster.clock, lambda: [r for r in self.routers if r.takes], PARTITIONS
        )
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []
        """What was done, for who has to understand a failure."""
        self._limits = self.dice.choice((StashLimits(age=60.0), StashLimits(age=60.0), StashLimits(age=6.0)))
        self._injected: list[tuple[str, Injected]] = []
        self.emphasis: Mapping[str, int] = {}
        """How many times as often something happens as usual, by its name."""
        self.acks = AckManner.PROMPTLY
        """How a router acks at first."""
        self._hung: set[str] = set()
        """Instances whose store hangs."""
        self._numbers = 0
        self._tasks: anyio.abc.TaskGroup

    async def run(self, steps: int) -> None:
        with finite_decisions():
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self.checks.watch)
                await self.cluster.add_topic(partitions=PARTITIONS)
                await self.cluster.set_options()
                for _ in range(2):
                    await self.start_instance()
                for _ in range(2):
                    self.join()
                for _ in range(self.dice.choice((1, 2, 2))):
                    self.join_router()
                self._tasks.start_soon(self.traffic.run)
                for _ in range(steps):
                    await anyio.sleep(self.dice.choice((0.0, 0.1, 0.3, 1.0, 2.0)))
                    await self._something()
                    self.checks.look_at_gates()
                    self.checks.raise_violations()
                await Settling(self).settle()
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
            (8, self._burst_of_joins),
            (6, self._drain),
            (3, self._crash),
            (3, self._restart),
            (3, self._hang),
            (3, self._reconnect),
            (6, self._router_joins),
            (4, self._router_dies),
            (3, self._router_leaves),
            (6, self._router_hangs),
            (5, self._router_reconnects),
            (6, self._router_acks_otherwise),
            (3, self._replace_instance),
            (6, self._disturb_calls),
            (2, self._hang_store),
            (2, self._break_watches),
            (1, self._depose),
            (5, self._delete_handoff),
            (2, self._delete_ack),
            (2, self._ask_for_rebalance),
        ]
        weights = [weight * self.emphasis.get(what.__name__.strip("_"), 1) for weight, what in happenings]
        what = self.dice.choices([what for _, what in happenings], weights)[0]
        self.happened[what.__name__.strip("_")] += 1
        await what()

    def note(self, what: str) -> None:
        self.story.append(f"{self.cluster.clock.now():.2f} {what}")

    # --- pods --------------------------------------------------------------------------------------------------------

    def alive(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.gone]

    def staying(self) -> list[Pod]:
        return [pod for pod in self.alive() if not pod.draining]

    def join(self, name: str = "", *, calm: bool = False) -> Pod:
        self._numbers += 1
        pod = Pod(
            name or f"p{self._numbers}",
            f"s{self._numbers}",
            ttl=TTL,
            dice=random.Random(self.dice.random()),
            clock=self.cluster.clock,
            instances=self._instances,
            checks=self.checks,
        )
        pod.calm = calm
        pod.slow_warm = self.dice.choice((0.0, 0.0, 3.0))
        self.note(f"join {pod.name} as {pod.session}")
        self.pods.append(pod)
        self._tasks.start_soon(pod.run)
        return pod

    def _instances(self) -> list[Instance]:
        return list(self.cluster.instances.values())

    async def _burst_of_joins(self) -> None:
        """Several at once, within one debounce window or during the handoffs of those before."""
        for _ in range(self.dice.randint(1, 4)):
            if len(self.alive()) < MOST_PODS:
                self.join()
                await anyio.sleep(self.dice.choice((0.0, 0.05, 0.4)))

    async def _drain(self) -> None:
        if len(self.staying()) > 1:
            pod = self.dice.choice(self.staying())
            self.note(f"drain {pod.name}")
            self._tasks.start_soon(pod.drain)

    async def _crash(self) -> None:
        if len(self.alive()) > 1:
            pod = self.dice.choice(self.alive())
            self.note(f"crash {pod.name}")
            pod.end("crashed")

    async def _restart(self) -> None:
        """The process is gone, and another one of its name is there."""
        if self.staying():
            pod = self.dice.choice(self.staying())
            self.note(f"restart {pod.name}")
            pod.end("crashed")
            await anyio.sleep(self.dice.choice((0.0, 1.0)))
            self.join(pod.name)

    async def _hang(self) -> None:
        if self.alive():
            pod, seconds = self.dice.choice(self.alive()), self.dice.uniform(0.2, 1.5) * TTL
            self.note(f"{pod.name} hangs for {seconds:.1f}")
            pod.hang(seconds)

    async def _reconnect(self) -> None:
        if self.alive():
            self.dice.choice(self.alive()).disconnect()

    # --- routers -----------------------------------------------------------------------------------------------------

    def routers_alive(self) -> list[ChaosRouter]:
        return [router for router in self.routers if not router.gone]

    def join_router(self, name: str = "", *, calm: bool = False) -> ChaosRouter:
        self._numbers += 1
        router = ChaosRouter(
            name or f"r{self._numbers}",
            f"s{self._numbers}",
            ttl=TTL,
            dice=random.Random(self.dice.random()),
            clock=self.cluster.clock,
            instances=self._instances,
            pods=lambda: self.pods,
            checks=self.checks,
            traffic=self.traffic,
            limits=StashLimits(age=60.0) if calm else self._limits,
        )
        router.calm = calm
        router.acks = AckManner.PROMPTLY if calm else self.acks
        self.note(f"router {router.name} joins as {router.session}")
        self.routers.append(router)
        self._tasks.start_soon(router.run)
        return router

    def _any_router(self) -> ChaosRouter | None:
        alive = self.routers_alive()
        return self.dice.choice(alive) if alive else None

    async def _router_joins(self) -> None:
        if len(self.routers_alive()) < MOST_ROUTERS:
            self.join_router()

    async def _router_dies(self) -> None:
        """Another process of its name may come at once, as after a restart."""
        if router := self._any_router():
            self.note(f"router {router.name} dies")
            router.end("died")
            if self.dice.random() < 0.5:
                self.join_router(router.name)

    async def _router_leaves(self) -> None:
        if router := self._any_router():
            self.note(f"router {router.name} leaves")
            self._tasks.start_soon(router.leave)

    async def _router_hangs(self) -> None:
        if router := self._any_router():
            seconds = self.dice.choice((0.3, 0.7, 0.9, 1.2, 2.0)) * self.dice.uniform(0.8, 1.2) * TTL
            self.note(f"router {router.name} hangs for {seconds:.1f}")
            router.hang(seconds)

    async def _router_reconnects(self) -> None:
        if router := self._any_router():
            self.note(f"router {router.name} reconnects")
            router.disconnect()

    async def _router_acks_otherwise(self) -> None:
        if router := self._any_router():
            router.acks = self.dice.choice((*AckManner, AckManner.LATE, AckManner.TWICE))
            self.note(f"router {router.name} acks {router.acks.value}")

    # --- the service and its store -----------------------------------------------------------------------------------

    async def start_instance(self) -> None:
        self._numbers += 1
        name = f"i{self._numbers}"

        def wrap(store: Store) -> Store:
            self.cluster.faults[name] = FaultyStore(self.checks.observed(store, name))
            return self.cluster.faults[name]

        await self.cluster.start_instance(name, wrap=wrap)
        # What is decided and what is written are some way apart, as they are on a real network.
        for seconds in (0.05, 0.5):
            self.cluster.faults[name].inject(
                Delay(seconds), kinds={"transact"}, times=None, where=lambda *_: self.dice.random() < 0.1
            )

    async def _replace_instance(self) -> None:
        name = self.dice.choice(sorted(self.cluster.instances))
        instance = self.cluster.instances[name]
        if self.dice.random() < 0.5:
            self.note(f"crash instance {name}")
            self.cluster.crash_instance(name)
        else:
            self.note(f"stop instance {name}")
            self.cluster.faults[name].heal()
            await self.cluster.stop_instance(name)
            del self.cluster.faults[name]
        for pod in self.pods:
            if pod.instance is instance:
                pod.disconnect()
        for router in self.routers:
            if router.instance is instance:
                router.disconnect()
        await self.start_instance()

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
        faults, seconds = self.cluster.faults[name], self.dice.uniform(0.5, 1.2 * TTL)
        self.note(f"the store hangs for {name}, {seconds:.1f} s")

        async def hang() -> None:
            faults.freeze()
            self._hung.add(name)
            await anyio.sleep(seconds)
            self._hung.discard(name)
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

    async def _delete_handoff(self) -> None:
        """Behind the service's back; one that freezes its partition, if there is one.

        Somebody leads who sees it: what is deleted while nobody does leaves no trace if no router has acked it."""
        state = await self.cluster.state()
        if state.handoffs:
            with suppress(AssertionError):
                state = await self.cluster.until("frozen", lambda s: any(_frozen(s)), within=1.0)
        handoffs, frozen = list(state.handoffs.values()), list(_frozen(state))
        if not handoffs or state.leader is None or not self._is_well(state.leader.record.holder):
            return
        handoff = self.dice.choice(frozen or handoffs)
        tp = TopicPartition(handoff.record.topic, handoff.record.partition)
        self.note(f"the handoff {handoff.key} ({handoff.record.at.value}) is deleted")
        await self.cluster.store.delete(handoff.key)
        target = [pod for pod in self.alive() if pod.name == handoff.record.new_owner]
        if target and self.dice.random() < 0.4:
            # So no plan makes the same move again.
            self.note(f"crash {target[0].name}, its target")
            target[0].end("crashed")

        async def repaired() -> bool:
            return self._is_repaired(tp, handoff.record.old_epoch, await self.cluster.state())

        if handoff.record.freezes:
            with suppress(AssertionError):
                await eventually(repaired, within=REPAIRED_WITHIN, every=0.1)

    def _is_well(self, instance: str) -> bool:
        return instance in self.cluster.faults and instance not in self._hung

    def _is_repaired(self, tp: TopicPartition, epoch: int, state: GroupState) -> bool:
        held = state.assignments.get(tp)
        return tp in state.handoffs or held is None or held.record.epoch > epoch

    async def _delete_ack(self) -> None:
        acks = [ack for of_one in (await self.cluster.state()).acks.values() for ack in of_one.values()]
        if acks:
            ack = self.dice.choice(acks)
            self.note(f"the ack {ack.key} is deleted")
            await self.cluster.store.delete(ack.key)

    async def _ask_for_rebalance(self) -> None:
        instance: Instance = self.dice.choice(self._instances())

        async def ask() -> None:
            with suppress(AssignerError):
                await instance.operations.rebalance(GROUP)

        self.note("ask for a rebalance")
        self._tasks.start_soon(ask)


def _frozen(state: GroupState) -> Iterator[Stored[Handoff]]:
    return (handoff for handoff in state.handoffs.values() if handoff.record.freezes)


async def course(
    seed: int,
    mode: HandoffMode | None = None,
    *,
    steps: int = 25,
    begun: Callable[[RouterCourse], object] = lambda course: None,
) -> None:
    """One course to its end. Every other seed is of an exclusive group, if no mode is asked for. `begun` is told of
    it, for who wants to know how far it came."""
    mode = mode or (HandoffMode.EXCLUSIVE if seed % 2 else HandoffMode.OVERLAP)
    async with cluster_on("memory", ttl=TTL, options=options_of(seed, mode)) as cluster:
        running = RouterCourse(cluster, seed)
        begun(running)
        try:
            await running.run(steps)
        except BaseException as error:
            error.add_note("\n".join((f"seed {seed} {mode.value}", *running.story[-60:])))
            raise
        finally:
            for outcome, count in running.traffic.outcomes().items():
                running.checks.seen[f"requests {outcome}"] += count
