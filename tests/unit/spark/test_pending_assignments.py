"""A batch waits for pending assignments before it is planned, so that they need not wait for the next trigger."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from assigner.client import Warm
from assigner.model.keys import TopicPartition
from assigner.spark.member import member
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import ActedQuery, Sink, an_assigner, run_until

TOPIC = "pending"


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_another_query_releases_is_in_the_batch_that_is_planned_next(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, sink = MockKafka(), Sink()
    kafka.produce(TOPIC, 10)
    with an_assigner(TOPIC) as assigner:
        old = ActedQuery(assigner, kafka, "old", TOPIC, sink)
        run_until(lambda: len(old.held) == 4, old)
        new = ActedQuery(assigner, kafka, "new", TOPIC, sink)
        run_until(lambda: len(old.held) == len(new.held) == 2, old, new)
        # These queries plan one after the other, so only now.
        monkeypatch.setattr(member, "PENDING_SECONDS", 30.0)
        old.reader.planner.member_thread.drain()
        wait(lambda: len(new.reader.planner.statistics().pending) == 2)
        wait(lambda: len(old.reader.planner.statistics().releasing) == 2)
        old.batch()
        new.batch()
        assert len(new.held) == 4
        new.stop()
        old.stop()


def test_what_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "PENDING_SECONDS", 0.01)
    kafka = MockKafka()
    kafka.produce(TOPIC, 10)
    with an_assigner(TOPIC) as assigner:
        query = ActedQuery(assigner, kafka, "m", TOPIC, Sink())
        run_until(lambda: len(query.held) == 4, query)
        planner, tp = query.reader.planner, TopicPartition(TOPIC, 0)
        planner.member_thread.call(lambda member: member.warm(tp, Warm(tp, handoff_id="never assigned")))
        for _ in range(member.PENDING_BATCHES):
            assert planner.statistics().pending
            query.batch()
        assert not planner.statistics().pending
        query.stop()
