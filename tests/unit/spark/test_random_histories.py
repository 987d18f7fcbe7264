"""Random courses of queries that come, die between any two steps, are restarted and drained: nothing is lost, and in a
fenced sink nothing is there twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from assigner.embedded import EmbeddedAssigner
from assigner.model.records import HandoffMode
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import ActedQuery, Checkpoint, Sink, Step, an_assigner, run_until
from tests.support.spark.fake_state import StatefulCheckpoint, StatefulQuery, TallyTable

pytestmark = pytest.mark.slow

MEMBERS = ("m1", "m2", "m3")
STEPS = 25


class Course:
    def __init__(self, seed: int, assigner: EmbeddedAssigner, kafka: MockKafka, topic: str) -> None:
        self._dice = random.Random(seed)
        self._assigner, self._kafka, self._topic = assigner, kafka, topic
        self.sink = Sink(fenced=True)
        self._checkpoints: dict[str, Checkpoint] = {}
        self.running: dict[str, ActedQuery] = {}
        self._dead: list[ActedQuery] = []
        self.kills = 0

    def start(self) -> None:
        away = sorted(set(MEMBERS) - self.running.keys())
        if away:
            member = self._dice.choice(away)
            query = self.running[member] = self._query(member, self._checkpoints.get(member))
            self._checkpoints[member] = query.checkpoint

    def _query(self, member: str, checkpoint: Checkpoint | None) -> ActedQuery:
        return ActedQuery(self._assigner, self._kafka, member, self._topic, self.sink, checkpoint)

    def is_complete(self) -> bool:
        return not self.sink.missing(self._kafka, self._topic)

    def kill(self) -> None:
        """At a moment that nobody chose."""
        if self.running:
            query = self.running.pop(self._dice.choice(sorted(self.running)))
            query.batch(upto=self._dice.choice(list(Step)))
            query.cut_off()
            self._dead.append(query)
            self.kills += 1

    def stop(self) -> None:
        if self.running:
            self.running.pop(self._dice.choice(sorted(self.running))).stop()

    def drain(self) -> None:
        if len(self.running) > 1:
            member = self._dice.choice(sorted(self.running))
            # As `assigner.spark.query_drain` does, which waits for a first batch.
            self.running[member].finish_what_an_earlier_process_began()
            self.running[member].reader.planner.member_thread.drain()
            run_until(lambda: not self.running[member].held, *self.running.values())
            self.running.pop(member).stop()

    def produce(self) -> None:
        self._kafka.produce(self._topic, self._dice.randint(1, 20))

    def batches(self) -> None:
        for _ in range(self._dice.randint(1, 5)):
            for query in self.running.values():
                query.batch()

    def run(self) -> None:
        actions: list[Callable[[], None]] = [
            *[self.start] * 4, *[self.produce] * 4, *[self.batches] * 6, *[self.kill] * 2, self.stop, self.drain
        ]  # fmt: skip
        for _ in range(STEPS):
            self._dice.choice(actions)()
        self.start()
        self.produce()
        run_until(self.is_complete, *self.running.values())

    def end(self) -> None:
        for query in self.running.values():
            query.stop()
        for query in self._dead:
            query.bury()


class CourseWithStates(Course):
    """The same with a state per partition, which moves along."""

    def __init__(self, seed: int, assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, table: TallyTable) -> None:
        super().__init__(seed, assigner, kafka, topic)
        self._table = table

    def _query(self, member: str, checkpoint: Checkpoint | None) -> ActedQuery:
        assert checkpoint is None or isinstance(checkpoint, StatefulCheckpoint)
        # Few snapshots, so that states are behind when an owner dies.
        options = {"snapshotEvery": "25"}
        return StatefulQuery(self._assigner, self._kafka, member, self._topic, self._table, checkpoint, **options)

    def is_complete(self) -> bool:
        return self._table.is_complete(self._kafka, self._topic)


@pytest.mark.parametrize(("seed", "mode"), [(1, HandoffMode.EXCLUSIVE), (10, HandoffMode.OVERLAP)])
def test_a_random_course_loses_nothing_and_repeats_nothing_behind_a_fence(seed: int, mode: HandoffMode) -> None:
    kafka, topic = MockKafka(), "t"
    kafka.produce(topic, 10)
    with an_assigner(topic, mode=mode, ttl=1.5) as assigner:
        course = Course(seed, assigner, kafka, topic)
        try:
            course.run()
        finally:
            course.end()
    assert course.kills
    assert not course.sink.missing(kafka, topic)
    assert not course.sink.repeated


@pytest.mark.parametrize(("seed", "mode"), [(8, HandoffMode.EXCLUSIVE), (11, HandoffMode.OVERLAP)])
def test_a_random_course_counts_every_record_once_in_the_states(seed: int, mode: HandoffMode, tmp_path: Path) -> None:
    kafka, topic, table = MockKafka(), "t", TallyTable(tmp_path)
    kafka.produce(topic, 10)
    with an_assigner(topic, mode=mode, ttl=1.5) as assigner:
        course = CourseWithStates(seed, assigner, kafka, topic, table)
        try:
            course.run()
        finally:
            course.end()
    assert course.kills
    assert not table.wrong()
