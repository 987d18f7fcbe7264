"""The streaming reader against a real assigner and a mock cluster, called as Spark calls it, without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from assigner.api import NewOffset
from assigner.client import Unavailable
from assigner.embedded import EmbeddedAssigner
from assigner.errors import InvalidInput, Superseded
from assigner.model.keys import TopicPartition
from assigner.model.records import HandoffMode
from assigner.spark.kafka_offsets import DataLost
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import GROUP, ActedQuery, Checkpoint, Sink, Step, an_assigner, run_until

pytestmark = pytest.mark.slow

TTL = 3.0
"""Seconds, where a lease has to end."""
BOTH_MODES = [HandoffMode.EXCLUSIVE, HandoffMode.OVERLAP]


@pytest.fixture(scope="module")
def kafka() -> MockKafka:
    return MockKafka()


@pytest.fixture
def topic(kafka: MockKafka, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with 10 records in each of 4 partitions."""
    name = f"t{abs(hash(request.node.nodeid))}"
    kafka.produce(name, 10)
    return name


@pytest.fixture
def assigner(topic: str) -> Iterator[EmbeddedAssigner]:
    with an_assigner(topic) as running:
        yield running


def test_a_reader_joins_no_group_before_a_batch_is_planned(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str
) -> None:
    query = ActedQuery(assigner, kafka, "m", topic, Sink())
    query.reader.initialOffset()
    pickle.dumps(query.reader)
    assert not assigner.call(lambda service: service.instance.operations.describe(GROUP)).members
    query.stop()


def test_all_records_are_read_once_and_progress_is_reported(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str
) -> None:
    sink = Sink()
    query = ActedQuery(assigner, kafka, "m", topic, sink)
    run_until(lambda: not sink.missing(kafka, topic), query)
    kafka.produce(topic, 5)
    run_until(lambda: not sink.missing(kafka, topic), query)
    query.batch()
    assert not sink.repeated
    query.stop()
    # Another one, with another checkpoint, goes on where this one ended.
    other = ActedQuery(assigner, kafka, "n", topic, sink)
    run_until(lambda: len(other.held) == 4, other)
    kafka.produce(topic, 5)
    run_until(lambda: not sink.missing(kafka, topic), other)
    assert not sink.repeated
    other.stop()


@pytest.mark.parametrize("mode", BOTH_MODES)
def test_partitions_move_between_running_queries_and_nothing_is_lost(
    kafka: MockKafka, topic: str, mode: HandoffMode
) -> None:
    sink = Sink()
    with an_assigner(topic, mode=mode) as assigner:
        first = ActedQuery(assigner, kafka, "m1", topic, sink)
        run_until(lambda: len(first.held) == 4, first)
        second = ActedQuery(assigner, kafka, "m2", topic, sink)
        run_until(lambda: len(first.held) == len(second.held) == 2, first, second)
        kafka.produce(topic, 5)
        run_until(lambda: not sink.missing(kafka, topic), first, second)
        second.reader.planner.member_thread.drain()
        run_until(lambda: len(first.held) == 4 and not second.held, first, second)
        kafka.produce(topic, 5)
        run_until(lambda: not sink.missing(kafka, topic), first, second)
        assert mode is HandoffMode.OVERLAP or not sink.repeated
        assert all(epochs == sorted(epochs) for epochs in sink.epochs.values())
        second.stop()
        first.stop()


def test_no_more_rows_are_planned_than_the_limit_allows(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str
) -> None:
    sink = Sink()
    query = ActedQuery(assigner, kafka, "m", topic, sink)
    run_until(lambda: query.batch(limit=ReadMaxRows(8)) is Step.FINISHED)
    assert len(sink.rows) == 8
    query.stop()


def test_available_now_ends_where_the_topics_ended(assigner: EmbeddedAssigner, kafka: MockKafka, topic: str) -> None:
    sink = Sink()
    query = ActedQuery(assigner, kafka, "m", topic, sink)
    query.reader.prepareForTriggerAvailableNow()
    kafka.produce(topic, 5)
    while query.batch(limit=ReadMaxRows(16)) is Step.FINISHED:
        pass
    assert len(sink.rows) == 40
    query.stop()


# --- restarts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "died"),
    [
        (HandoffMode.EXCLUSIVE, Step.PLANNED),
        (HandoffMode.EXCLUSIVE, Step.WRITTEN),
        (HandoffMode.EXCLUSIVE, Step.FINISHED),
        (HandoffMode.OVERLAP, Step.WRITTEN),
    ],
)
def test_a_killed_query_goes_on_from_its_checkpoint_without_reading_again_what_it_finished(
    kafka: MockKafka, topic: str, mode: HandoffMode, died: Step
) -> None:
    sink = Sink()
    with an_assigner(topic, mode=mode, ttl=TTL) as assigner:
        query = ActedQuery(assigner, kafka, "m", topic, sink)
        run_until(lambda: len(query.held) == 4 and not sink.missing(kafka, topic), query)
        kafka.produce(topic, 10)
        run_until(lambda: query.batch(upto=died) is died)
        query.cut_off()
        again = ActedQuery(assigner, kafka, "m", topic, sink, query.checkpoint)
        kafka.produce(topic, 10)
        run_until(lambda: not sink.missing(kafka, topic), again)
        # What was written, but not known to be, is written again by the batch that is repeated, and nothing else is.
        assert len(sink.repeated) == (40 if died is Step.WRITTEN else 0)
        assert all(len(epochs) == 2 for epochs in sink.epochs.values())
        again.stop()
        query.bury()


def test_of_an_unfinished_batch_only_what_nobody_took_over_is_read_again(kafka: MockKafka, topic: str) -> None:
    sink = Sink()
    with an_assigner(topic, ttl=TTL) as assigner:
        query = ActedQuery(assigner, kafka, "m1", topic, sink)
        run_until(lambda: len(query.held) == 4 and not sink.missing(kafka, topic), query)
        kafka.produce(topic, 10)
        run_until(lambda: query.batch(upto=Step.PLANNED) is Step.PLANNED)
        query.cut_off()
        other = ActedQuery(assigner, kafka, "m2", topic, sink)
        run_until(lambda: not sink.missing(kafka, topic), other)
        again = ActedQuery(assigner, kafka, "m1", topic, sink, query.checkpoint)
        assert again.batch() is Step.FINISHED
        assert not sink.repeated
        run_until(lambda: len(again.held) == len(other.held) == 2, again, other)
        kafka.produce(topic, 10)
        run_until(lambda: not sink.missing(kafka, topic), again, other)
        assert not sink.repeated
        again.stop()
        other.stop()
        query.bury()


def test_an_unfinished_batch_is_repeated_before_its_partitions_are_released(kafka: MockKafka, topic: str) -> None:
    sink = Sink()
    with an_assigner(topic, ttl=TTL) as assigner:
        query = ActedQuery(assigner, kafka, "m1", topic, sink)
        run_until(lambda: len(query.held) == 4 and not sink.missing(kafka, topic), query)
        kafka.produce(topic, 10)
        run_until(lambda: query.batch(upto=Step.PLANNED) is Step.PLANNED)
        query.cut_off()
        again = ActedQuery(assigner, kafka, "m1", topic, sink, query.checkpoint)
        planner = again.reader.planner
        run_until(lambda: len(planner.statistics().held) == 4)
        other = ActedQuery(assigner, kafka, "m2", topic, sink)
        other.reader.planner.statistics()
        run_until(lambda: len(planner.statistics().releasing) == 2)
        run_until(lambda: len(again.held) == len(other.held) == 2, again, other)
        assert not sink.missing(kafka, topic)
        assert not sink.repeated
        again.stop()
        other.stop()
        query.bury()


def test_a_member_that_left_before_an_unfinished_batch_was_repeated_does_not_count_it_as_read(
    kafka: MockKafka, topic: str
) -> None:
    sink = Sink()
    with an_assigner(topic, ttl=TTL) as assigner:
        query = ActedQuery(assigner, kafka, "m", topic, sink)
        run_until(lambda: query.batch(upto=Step.PLANNED) is Step.PLANNED)
        query.cut_off()
        again = ActedQuery(assigner, kafka, "m", topic, sink, query.checkpoint)
        planner = again.reader.planner
        planner.member_thread.call(lambda member: member.leave())
        run_until(lambda: planner.statistics().has_left)
        with pytest.raises(Unavailable, match="start the query again"):
            again.batch()
        assert query.checkpoint.finished == 0
        again.stop()
        query.bury()


def test_an_offset_that_an_operator_set_counts_more_than_the_checkpoint(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str
) -> None:
    sink = Sink()
    query = ActedQuery(assigner, kafka, "m", topic, sink)
    run_until(lambda: not sink.missing(kafka, topic), query)
    query.stop()
    back = {TopicPartition(topic, partition): NewOffset(7) for partition in range(4)}
    assigner.call(lambda service: service.instance.operations.set_offsets(GROUP, back, force=True))
    again = ActedQuery(assigner, kafka, "m", topic, sink, query.checkpoint)
    run_until(lambda: len(sink.repeated) == 12, again)
    assert {offset for _, _, offset in sink.repeated} == {7, 8, 9}
    again.stop()


def test_a_query_that_loses_contact_for_a_while_neither_loses_nor_repeats(kafka: MockKafka, topic: str) -> None:
    sink = Sink()
    with an_assigner(topic, ttl=TTL) as assigner:
        query = ActedQuery(assigner, kafka, "m", topic, sink)
        run_until(lambda: len(query.held) == 4 and not sink.missing(kafka, topic), query)
        before = dict(query.held)
        query.cut_off()
        planner = query.reader.planner
        run_until(lambda: not planner.statistics().held, query)
        assert query.held == before
        _, _, port = query.options.assigner[0].partition(":")
        assigner.call(lambda service: query._proxy.start(int(port)))
        kafka.produce(topic, 10)
        run_until(lambda: not sink.missing(kafka, topic), query)
        assert not sink.repeated
        query.stop()


# --- refusals ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_group_or_member_is_refused(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str
) -> None:
    query = ActedQuery(assigner, kafka, "m", topic, Sink())
    run_until(lambda: bool(query.held), query)
    other = ActedQuery(assigner, kafka, "n", topic, Sink(), query.checkpoint)
    with pytest.raises(InvalidInput, match="belongs to member 'm', but option member is 'n'"):
        other.batch()
    other.stop()
    query.stop()


def test_of_two_queries_with_one_member_the_older_fails(kafka: MockKafka, topic: str) -> None:
    with an_assigner(topic, ttl=TTL) as assigner:
        older = ActedQuery(assigner, kafka, "m", topic, Sink())
        run_until(lambda: bool(older.held), older)
        newer = ActedQuery(assigner, kafka, "m", topic, Sink())
        newer.batch()
        with pytest.raises(Superseded, match="member 'm' of group 'g' is now another query's"):
            run_until(lambda: False, older)
        run_until(lambda: len(newer.held) == 4, newer)
        newer.stop()
        older.stop()


def test_progress_written_asynchronously_is_refused(assigner: EmbeddedAssigner, kafka: MockKafka, topic: str) -> None:
    query = ActedQuery(assigner, kafka, "m", topic, Sink())
    run_until(lambda: len(query.held) == 4, query)
    kafka.produce(topic, 1)
    query.reader.commit = lambda end: None  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="asyncProgressTrackingEnabled"):
        run_until(lambda: False, query)
    query.stop()


def test_an_assigner_that_is_not_there_is_named(kafka: MockKafka, topic: str, assigner: EmbeddedAssigner) -> None:
    query = ActedQuery(assigner, kafka, "m", topic, Sink(), assigner="127.0.0.1:1", assignerTimeout="0.5")
    with pytest.raises(Exception, match=r"assigner at 127\.0\.0\.1:1 is not reached.*option assigner"):
        query.batch()
    query.stop()


def test_a_broker_that_is_not_there_is_named(kafka: MockKafka, topic: str, assigner: EmbeddedAssigner) -> None:
    more = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaTimeout": "0.5", "kafka.log_level": "0"}
    query = ActedQuery(assigner, kafka, "m", topic, Sink(), None, **more)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1 did not answer.*option kafka\.bootstrap\.servers"):
        query.batch()
    query.stop()


def test_a_log_that_ends_before_what_was_read_is_a_loss(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str
) -> None:
    query = ActedQuery(assigner, kafka, "m", topic, Sink())
    run_until(lambda: len(query.held) == 4, query)
    query.batch()
    end = query.checkpoint.end
    assert end is not None
    far = {key: at if key == "~" else {**at, "o": at["o"] + 1000} for key, at in end.items()}
    query.checkpoint = Checkpoint([(end, far)], 1)
    with pytest.raises(DataLost, match="the log ends at"):
        query.batch()
    query.stop()
