"""A query that drains while it is alone in its group: nobody takes over, yet all progress is reported."""

from __future__ import annotations

import time

import pytest

from assigner.embedded import EmbeddedAssigner
from assigner.spark.member import member
from assigner.spark.member.thread import MemberThread
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import GROUP, ActedQuery, Sink, Step, an_assigner, run_until

TOPIC = "alone"


def names(assigner: EmbeddedAssigner) -> list[str]:
    described = assigner.call(lambda service: service.instance.operations.describe(GROUP))
    return [one.consumer.consumer_name for one in described.members]


def wait_until_it_drains(thread: MemberThread) -> None:
    """Until the member has received its releases, or has left."""
    deadline = time.monotonic() + 30
    while not (thread.statistics().releasing or thread.statistics().has_left):
        assert time.monotonic() < deadline, "the member does not begin to drain"
        time.sleep(0.01)


def finish(query: ActedQuery) -> None:
    """Let the batch that was written be in the commit log."""
    query.checkpoint.finished = len(query.checkpoint.batches)
    query._unfinished = False


def test_a_batch_that_takes_longer_than_a_close_may_is_reported_before_the_member_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member, "CLOSE_SECONDS", 0.0)
    kafka, sink = MockKafka(), Sink()
    kafka.produce(TOPIC, 10)
    with an_assigner(TOPIC) as assigner:
        query = ActedQuery(assigner, kafka, "m", TOPIC, sink)
        run_until(lambda: len(query.held) == 4 and not sink.missing(kafka, TOPIC), query)
        kafka.produce(TOPIC, 10)
        assert query.batch(Step.WRITTEN) is Step.WRITTEN
        thread = query.reader.planner.member_thread
        thread.drain()
        wait_until_it_drains(thread)
        assert names(assigner) == ["m"]
        finish(query)
        run_until(lambda: not names(assigner), query)
        assert query.held == {}
        other = ActedQuery(assigner, kafka, "n", TOPIC, sink)
        run_until(lambda: len(other.held) == 4, other)
        other.stop()
        query.stop()
    assert not sink.missing(kafka, TOPIC)
    assert not sink.repeated
