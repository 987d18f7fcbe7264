"""A group for the pure core, told record by record, and what it decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from assigner.core.coordination.machine import BUDGET, Coordination, Decisions
from assigner.core.group import GroupState
from assigner.core.planning.request import OwnerTarget
from assigner.core.standbys import StandbyTarget
from assigner.core.writes import Purpose, Write
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import (
    Assignment,
    Consumer,
    GroupOptions,
    Handoff,
    Standbys,
    Step,
    TopicConfig,
    encode,
)
from assigner.store import Delete, DeleteEvent, Entry, Put, PutEvent

KEYS = Keys("/r/", default_group="g", default_prefix="").group("g")
TTL = 30.0


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


class Scene:
    """A leader of a group whose store is this test."""

    def __init__(self, partitions: int = 4, *, names: str = "abc", topic_id: str = "", **options: object) -> None:
        self.state = GroupState(KEYS, GroupOptions(standby_count=1, debounce=0.0, **options))  # type: ignore[arg-type]
        self.revision = 0
        self.values: dict[str, bytes] = {}
        """What was put at each key last."""
        self.now = 0.0
        self.core: Coordination | None = None
        self._partitions = partitions
        self.put_topic(topic_id)
        for name in names:
            self.join(name)

    def put_topic(self, topic_id: str) -> None:
        self.put(KEYS.topic("t"), TopicConfig(topic="t", partition_count=self._partitions, topic_id=topic_id))

    def join(self, name: str, **fields: object) -> None:
        record = Consumer(consumer_name=name, session=f"{name}1", **fields)  # type: ignore[arg-type]
        self.put(KEYS.consumer(name), record)

    def own(self, number: int, owner: str, topic_id: str = "") -> None:
        record = Assignment(topic="t", partition=number, owner=owner, session=f"{owner}1", epoch=1, topic_id=topic_id)
        self.put(KEYS.assignment(tp(number)), record)

    def copy(self, number: int, *names: str, topic_id: str = "") -> None:
        self.put(KEYS.standby(tp(number)), Standbys(topic="t", partition=number, holders=names, topic_id=topic_id))

    def handoff(self, number: int, old: str, new: str, step: Step = Step.WARMING) -> None:
        record = Handoff(
            topic="t",
            partition=number,
            old_owner=old,
            old_session=f"{old}1",
            new_owner=new,
            new_session=f"{new}1",
            step=step,
            phase=step.phase,
            handoff_id=f"h{number}",
        )
        self.put(KEYS.handoff(tp(number)), record)

    def put(self, key: str, record: msgspec.Struct, raw: bytes | None = None) -> None:
        self.revision += 1
        value = self.values[key] = encode(record) if raw is None else raw
        self._apply(PutEvent(Entry(key, value, self.revision, self.revision, 1, lease=7)))

    def delete(self, key: str) -> None:
        self.revision += 1
        self._apply(DeleteEvent(key, self.revision))

    def _apply(self, event: PutEvent | DeleteEvent) -> None:
        change = self.state.apply(event)
        self.state.revision = self.revision
        if self.core and change:
            self.core.observe(change, self.now)
            self.core.caught_up()

    # --- the leader ---

    def lead(self) -> Coordination:
        self.core = Coordination(self.state, term=1, ttl=TTL, now=self.now, offset_key=lambda tp: f"/o/{tp}")
        return self.core

    def plan(self, standbys: Mapping[int, tuple[str, Iterable[str]]], moves: Mapping[int, str] | None = None) -> None:
        """Have a plan arrive: partition -> (owner, holders)."""
        core = self.core or self.lead()
        self.decide(carry_out=True)
        wanted = [StandbyTarget(tp(number), owner, tuple(held)) for number, (owner, held) in standbys.items()]
        core.solved([OwnerTarget(tp(number), owner) for number, owner in (moves or {}).items()], wanted)

    def decide(self, *, carry_out: bool = False, budget: int = BUDGET) -> Decisions:
        assert self.core
        said = self.core.decide(self.now, 0.0, budget)
        for write in said.writes if carry_out else ():
            self.commit(write)
        return said

    def commit(self, write: Write) -> None:
        assert self.core
        for operation in write.operations:
            match operation:
                case Put(key, value):
                    self.put(key, Standbys(topic="", partition=0), value)
                case Delete(key):
                    self.delete(key)
        self.core.committed(write, self.revision)

    def settle(self) -> list[Write]:
        """Carry everything out; the writes about standbys, in order."""
        written: list[Write] = []
        for _ in range(20):
            said = self.decide(carry_out=True)
            written += about_standbys(said)
            if not said.writes and not said.more:
                break
        return written

    def records(self) -> dict[int, tuple[str, ...]]:
        return {where.partition: record.record.holders for where, record in self.state.standbys.items()}


def about_standbys(said: Decisions) -> list[Write]:
    return [write for write in said.writes if write.purpose is Purpose.STANDBYS]
