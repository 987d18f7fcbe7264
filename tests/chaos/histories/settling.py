"""After the chaos: all is healed, and the group has to come to rest, stay at rest, and sit out an outage unmoved."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from assigner.core.group import GroupState
from assigner.errors import AssignerError
from assigner.model.keys import AssignmentKey, HandoffKey, TopicPartition
from assigner.model.records import Consumer, Status
from assigner.testing.waiting import eventually
from tests.chaos.checks import Violation
from tests.support.faulty_stores import key_of

if TYPE_CHECKING:
    from tests.chaos.histories.group_life import Chaos


QUIET = 8.0
"""Longer than any pause that a leader makes between two things it wants to do: backoffs above all."""


class Settling:
    def __init__(self, chaos: Chaos) -> None:
        self._chaos = chaos
        self._world = chaos.cluster

    async def calm_down(self) -> None:
        """Heal everything; those who are leaving find somebody to take over from them."""
        chaos, cluster = self._chaos, self._world
        chaos.note("calm")
        for faults in cluster.faults.values():
            faults.heal()
        for consumer in chaos.consumers:
            consumer.calm = True
        await cluster.set_options(rollout="", quarantine_after=1000)
        await anyio.sleep(1.6 * cluster.ttl)
        free = sum(not (c.draining or c.registration.get("topics")) for c in chaos.alive())
        for number in range(free, 2):
            # By name: a bound on how many there are is for the chaos, and would leave nobody to take over.
            await chaos.join(f"calm{number}")
            chaos.consumers[-1].calm = True
        await self._forgive()
        await self.until_settled(within=20 * cluster.ttl)
        before = await cluster.state()
        await anyio.sleep(3 * cluster.ttl)
        await self._nothing_moved(before.revision, "rest: it moves although nothing happens")
        if not chaos.checks.seen["assignments"]:
            raise Violation("nothing happened at all")

    async def _forgive(self) -> None:
        """Ask for a rebalance, which also ends quarantines."""

        async def asked() -> bool:
            for instance in self._world.instances.values():
                with suppress(AssignerError):
                    await instance.operations.rebalance("g")
                    return True
            return False

        await eventually(asked, within=5 * self._world.ttl, every=0.5, what="stuck: an operator is answered")

    async def outage(self) -> None:
        """All instances crash at once and others come; so do all consumers, each a little later."""
        chaos, cluster = self._chaos, self._world
        chaos.happened["outage_of_all_instances"] += 1
        before = await cluster.state()
        away = chaos.dice.uniform(0.2, 2.0) * cluster.ttl
        chaos.note(f"outage of all instances for {away:.1f}")
        for name in list(cluster.instances):
            cluster.crash_instance(name)
            chaos.cut_off(name)
        await anyio.sleep(away)
        for consumer in chaos.alive():
            consumer.freeze(chaos.dice.uniform(0.0, 0.7) * cluster.ttl)
        for _ in range(2):
            await chaos.start_instance(quick=True)
        await anyio.sleep(3 * cluster.ttl)
        await self._nothing_moved(before.revision, "outage: everybody came back and yet")
        await self.until_settled(within=3 * cluster.ttl)

    async def _nothing_moved(self, since: int, what: str) -> None:
        events = await self._world.history(since)
        moved = [e for e in events if isinstance(self._world.group.parse(key_of(e)), AssignmentKey | HandoffKey)]
        if moved:
            raise self._with_picture(Violation(f"{what}: {moved[:6]}"), await self._world.state())

    async def until_settled(self, within: float) -> None:
        """Everything is in its place, and has been for so long that nothing more is to come."""
        last: list[GroupState] = []
        since = self._world.clock.now()
        owners: dict[TopicPartition, int] = {}

        async def settled() -> bool:
            nonlocal since, owners
            last[:] = [await self._world.state()]
            self._chaos.checks.raise_violations()
            now, found = self._world.clock.now(), {tp: a.mod_revision for tp, a in last[0].assignments.items()}
            if self._unsettled(last[0]) or found != owners:
                since, owners = now, found
            return now - since > QUIET

        try:
            await eventually(settled, within=within, every=1.0, what="settled")
        except Violation:
            raise
        except AssertionError:
            why = Violation(f"stuck: {self._unsettled(last[0]) or 'it does not come to rest'}")
            raise self._with_picture(why, last[0]) from None

    def _unsettled(self, state: GroupState) -> str:
        """What is not yet as it has to be."""
        alive = {consumer.name for consumer in self._chaos.alive()}
        if state.consumers.keys() != alive:
            return f"registered are {sorted(state.consumers)}, there are {sorted(alive)}"
        for name, consumer in state.consumers.items():
            if consumer.record.status is not Status.READY:
                return f"{name} has not come to the end of its drain"
        if state.handoffs:
            return f"handoffs of {sorted(map(str, state.handoffs))}"
        members = [consumer.record for consumer in state.consumers.values()]
        return self._unowned(state, members) or self._uneven(state, members) or self._mistaken(state)

    def _unowned(self, state: GroupState, members: Iterable[Consumer]) -> str:
        for topic, config in state.topics.items():
            subscribers = {m.consumer_name for m in members if not m.topics or topic in m.topics}
            for number in range(config.record.partition_count):
                held = state.assignments.get(TopicPartition(topic, number))
                if subscribers and (held is None or held.record.owner not in subscribers):
                    return f"{topic}/{number} is of {held and held.record.owner}, not of {sorted(subscribers)}"
        for tp, owned in state.assignments.items():
            known = state.topics.get(tp.topic)
            if known is None or tp.partition >= known.record.partition_count:
                return f"{tp} is of {owned.record.owner} and does not exist"
        return ""

    def _uneven(self, state: GroupState, members: list[Consumer]) -> str:
        """Sets lie together; where all members are alike and the strategy balances, they have as much."""
        units: dict[int, set[str]] = {}
        for tp, held in state.assignments.items():
            if tp.topic in self._chaos.topics:
                units.setdefault(tp.partition, set()).add(held.record.owner)
        alike = all(m.capacity == 1.0 and not m.topics for m in members)
        together = not state.options.copartitioned or all(len(owners) == 1 for owners in units.values())
        if alike and not together:
            return "a set lies apart"
        balanced = state.options.strategy == "sticky_balanced" and len(state.topics) == len(self._chaos.topics)
        if alike and balanced and (state.options.copartitioned or len(self._chaos.topics) == 1):
            counts = [sum(m.consumer_name in owners for owners in units.values()) for m in members]
            if max(counts) - min(counts) > 1:
                return f"uneven: {counts}"
        return ""

    def _mistaken(self, state: GroupState) -> str:
        believed = {(tp, c.name, c.session, epoch) for c in self._chaos.alive() for tp, epoch in c.open_gates().items()}
        stored = {
            (tp, held.record.owner, held.record.session, held.record.epoch) for tp, held in state.assignments.items()
        }
        return f"on record and believed differ: {sorted(map(str, believed ^ stored))}" if believed != stored else ""

    def _with_picture(self, error: Violation, state: GroupState) -> Violation:
        """How things stand, for who has to understand a failure."""
        lines = [f"leader {state.leader and state.leader.record.holder}, instances {sorted(self._world.instances)}"]
        lines.append(f"{state.options}\n{state.plan}")
        for name, registered in sorted(state.consumers.items()):
            record = registered.record
            lines.append(f"registered {name}/{record.session} {record.status.value} {record.topics} {record.evicted!r}")
        for tp, held in sorted(state.assignments.items()):
            handoff = state.handoffs.get(tp)
            lines.append(f"{tp}: {held.record.owner}/{held.record.session} {held.record.epoch} {handoff}")
        lines += [f"believes {c.name}/{c.session} {c.open_gates()} {c.doing()}" for c in self._chaos.alive()]
        error.add_note("\n".join(lines))
        return error
