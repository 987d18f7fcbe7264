"""A partition that is on its way when a batch is planned is waited for, so that it does not rest for a trigger more."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from assigner.model.keys import TopicPartition
from assigner.spark.member import member
from tests.support.fake_spark_query import ActedQuery, Sink, an_assigner, run_until
from tests.support.servers.mock_kafka import MockKafka

TOPIC = "arrivals"


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def member_of(query: ActedQuery) -> member.QueryMember:
    return query.reader._planning().link._member


def test_what_another_query_lets_go_is_in_the_batch_that_is_planned_next(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, sink = MockKafka(), Sink()
    kafka.produce(TOPIC, 10)
    with an_assigner(TOPIC) as assigner:
        old = ActedQuery(assigner, kafka, "old", TOPIC, sink)
        run_until(lambda: len(old.held) == 4, old)
        new = ActedQuery(assigner, kafka, "new", TOPIC, sink)
        run_until(lambda: len(old.held) == len(new.held) == 2, old, new)
        # These queries plan one after the other, so only now.
        monkeypatch.setattr(member, "ARRIVAL_SECONDS", 30.0)
        old.reader._planning().link.drain()
        wait(lambda: len(member_of(new)._coming) == len(member_of(old)._releasing) == 2)
        old.batch()
        new.batch()
        assert len(new.held) == 4
        new.stop()
        old.stop()


def test_what_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "ARRIVAL_SECONDS", 0.01)
    kafka = MockKafka()
    kafka.produce(TOPIC, 10)
    with an_assigner(TOPIC) as assigner:
        query = ActedQuery(assigner, kafka, "m", TOPIC, Sink())
        run_until(lambda: len(query.held) == 4, query)
        member_of(query)._coming[TopicPartition(TOPIC, 9)] = member.ARRIVAL_TURNS
        for _ in range(member.ARRIVAL_TURNS):
            assert member_of(query)._coming
            query.batch()
        assert not member_of(query)._coming
        query.stop()
