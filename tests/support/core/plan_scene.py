"""A group written down record by record, and the problem a plan of it is made from."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assigner.core.group import Change, GroupState
from assigner.core.liveness import SessionLiveness
from assigner.core.loads.weights import GroupLoads
from assigner.core.planning.request import Request, RequestBuilder, flat_partitions
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import (
    Assignment,
    Consumer,
    GroupOptions,
    Handoff,
    Plan,
    Standbys,
    Step,
    TopicConfig,
    encode,
)
from assigner.store import DeleteEvent, Entry, PutEvent

KEYS = Keys("/r/", default_group="g", default_prefix="").group("g")


class Scene:
    """A group written down record by record, and what a plan is made from."""

    def __init__(self, **options: object) -> None:
        self.state = GroupState(KEYS)
        self._revision = 0
        self.options(**options)

    def options(self, **options: object) -> None:
        self._put(KEYS.options, msgspec.convert(options, GroupOptions))

    def topic(
        self, name: str, partitions: int, racks: tuple[tuple[str, ...], ...] = (), *, missing: bool = False
    ) -> None:
        config = TopicConfig(topic=name, partition_count=partitions, replica_racks=racks, missing=missing)
        self._put(KEYS.topic(name), config)

    def consumer(self, name: str, *topics: str, **fields: object) -> None:
        known = {"consumer_name": name, "session": f"s-{name}", "topics": topics, **fields}
        self._put(KEYS.consumer(name), msgspec.convert(known, Consumer), lease=len(name) + 1)

    def gone(self, name: str) -> None:
        self.state.apply(DeleteEvent(KEYS.consumer(name), self._revision))

    def owned(self, name: str, *partitions: int, topic: str = "t") -> None:
        for number in partitions:
            record = Assignment(topic=topic, partition=number, owner=name, session=f"s-{name}", epoch=1)
            self._put(KEYS.assignment(TopicPartition(topic, number)), record)

    def copies(self, partition: int, *holders: str, topic: str = "t") -> None:
        record = Standbys(topic=topic, partition=partition, holders=holders)
        self._put(KEYS.standby(TopicPartition(topic, partition)), record)

    def handoff(self, partition: int, old: str, new: str, step: Step = Step.WARMING) -> Change:
        record = Handoff(
            topic="t",
            partition=partition,
            old_owner=old,
            old_session=f"s-{old}",
            new_owner=new,
            new_session=f"s-{new}",
            step=step,
            phase=step.phase,
        )
        return self._put(KEYS.handoff(TopicPartition("t", partition)), record)

    def plan(self, record: Plan) -> Change:
        return self._put(KEYS.plan, record)

    def _put(self, key: str, record: msgspec.Struct, lease: int = 0) -> Change:
        self._revision += 1
        change = self.state.apply(PutEvent(Entry(key, encode(record), self._revision, self._revision, 1, lease)))
        assert change is not None
        return change

    def request(
        self,
        *,
        now: float = 100.0,
        at_once: int = 3,
        loads: GroupLoads | None = None,
        stays: Callable[[TopicPartition], bool] = lambda tp: False,
    ) -> Request:
        """`now`: the term began at 0, and a TTL is 30."""
        liveness = SessionLiveness(self.state, ttl=30.0, term_started=0.0)
        partitions = flat_partitions(self.state)
        builder = RequestBuilder(self.state, liveness, now, must_stay=stays, partitions=partitions, loads=loads)
        for _ in range(1 + len(partitions) // at_once):
            request = builder.step(at_once)
            if request:
                return request
        raise AssertionError("the builder does not come to an end")
