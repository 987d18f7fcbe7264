"""State that is handed over with its partition, between queries that join, restart, drain and die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assigner.embedded import EmbeddedAssigner
from assigner.errors import InvalidInput, SourceUnavailable
from assigner.model.keys import TopicPartition
from assigner.model.records import HandoffMode
from assigner.spark.kafka_offsets import DataLost, KafkaLog
from assigner.spark.positions import HeldPartition, Holdings, Owner, Position, Positions
from assigner.spark.schema import ControlKind
from assigner.spark.sinks.fence import Fence
from assigner.spark.source.tasks import TASK_BYTES, control_tasks
from assigner.spark.state.handover import Control, controls_again, controls_between
from assigner.spark.state.sink_record import EpochsWentBack, SinkUnreadable
from tests.support.servers.mock_kafka import PARTITIONS, MockKafka
from tests.support.spark.fake_query import ActedQuery, Sink, Step, an_assigner, run_until
from tests.support.spark.fake_state import StatefulQuery, TallyTable

pytestmark = pytest.mark.slow

TP = TopicPartition("t", 0)
EVERY = 100
RESTORE, RESUME = ControlKind.RESTORE, ControlKind.RESUME
SNAPSHOT, RELEASE = ControlKind.SNAPSHOT, ControlKind.RELEASE


def at(position: Position | None) -> Positions:
    return Positions(Owner("g", "m"), {} if position is None else {TP: position})


def kinds(start: Position | None, end: Position) -> list[ControlKind]:
    return [one.kind for one in controls_between(at(start), at(end), EVERY)]


# --- which rows a batch holds ----------------------------------------------------------------------------------------


def test_a_new_partition_is_restored_and_its_beginning_put_on_record() -> None:
    assert kinds(None, Position(1, 0, 10)) == [RESTORE, SNAPSHOT]


def test_a_partition_that_is_read_on_needs_no_control_rows() -> None:
    assert kinds(Position(1, 0, 10), Position(1, 0, 20)) == []


def test_after_so_many_records_the_state_is_asked_for() -> None:
    assert kinds(Position(1, 0, 90), Position(1, 0, 110)) == [SNAPSHOT]
    assert kinds(Position(1, 0, 110), Position(1, 0, 190)) == []


def test_what_was_kept_over_a_restart_is_resumed() -> None:
    assert kinds(Position(1, 0, 10), Position(2, 10, 20, kept=True)) == [RESUME]


def test_what_was_lost_in_between_is_restored() -> None:
    assert kinds(Position(1, 0, 10), Position(3, 10, 20)) == [RESTORE, SNAPSHOT]


def test_a_partition_to_be_released_hands_its_state_over_once() -> None:
    assert kinds(Position(1, 0, 10), Position(1, 0, 110, released=True)) == [RELEASE]
    assert kinds(Position(1, 0, 10), Position(2, 10, 10, kept=True, released=True)) == [RESUME, RELEASE]


def test_a_partition_that_stays_after_its_state_went_is_restored() -> None:
    assert kinds(Position(1, 0, 10, released=True), Position(1, 10, 20)) == [RESTORE, SNAPSHOT]


def test_a_repeated_batch_says_the_same_under_the_new_epoch() -> None:
    holdings = Holdings({TP: HeldPartition(5, 1, 0)})
    goes_on = controls_again(at(Position(4, 0, 90)), at(Position(4, 0, 110)), holdings, EVERY)
    assert goes_on == [Control(RESUME, TP, 5, 90), Control(SNAPSHOT, TP, 5, 110)]
    begins = controls_again(at(None), at(Position(4, 0, 10)), holdings, EVERY)
    assert begins == [Control(RESTORE, TP, 5, 0), Control(SNAPSHOT, TP, 5, 10)]


def test_a_repeated_batch_says_nothing_of_what_others_took_over() -> None:
    start, end = at(Position(4, 0, 90)), at(Position(4, 0, 110))
    assert controls_again(start, end, Holdings({}), EVERY) == []
    assert controls_again(start, end, Holdings({TP: HeldPartition(6, 6, 0)}), EVERY) == []


def test_large_states_are_handed_out_by_tasks_of_their_own() -> None:
    large = Control(RESTORE, TP, 1, 0, bytes(TASK_BYTES))
    small = Control(RESTORE, TP, 1, 0, b"s")
    assert [len(task.value) for task in control_tasks([small, small, large, large, small])] == [3, 1, 1]
    assert control_tasks([]) == []


# --- states that move ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka() -> MockKafka:
    return MockKafka()


@pytest.fixture
def topic(kafka: MockKafka, request: pytest.FixtureRequest) -> str:
    name = f"h{abs(hash(request.node.nodeid))}"
    kafka.produce(name, 10)
    return name


@pytest.fixture
def table(tmp_path: Path) -> TallyTable:
    return TallyTable(tmp_path)


@pytest.fixture
def assigner(topic: str) -> Iterator[EmbeddedAssigner]:
    with an_assigner(topic) as running:
        yield running


def a_query(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, table: TallyTable, **options: str
) -> StatefulQuery:
    """It owns everything, has counted what is there, and stores no state again until it is told to."""
    options = {"snapshotEvery": "1000000", **options}
    query = StatefulQuery(assigner, kafka, "m", topic, table, None, **options)
    run_until(lambda: len(query.held) == PARTITIONS and table.is_complete(kafka, topic), query)
    return query


@pytest.mark.parametrize("mode", [HandoffMode.EXCLUSIVE, HandoffMode.OVERLAP])
def test_counts_go_on_when_partitions_move_to_a_query_that_joins(
    kafka: MockKafka, topic: str, table: TallyTable, mode: HandoffMode
) -> None:
    with an_assigner(topic, mode=mode) as assigner:
        old = a_query(assigner, kafka, topic, table)
        new = StatefulQuery(assigner, kafka, "new", topic, table)
        run_until(lambda: len(old.held) == len(new.held) == 2, old, new)
        kafka.produce(topic, 10)
        run_until(lambda: table.is_complete(kafka, topic), old, new)
        assert not table.wrong()
        # Given away, not only copied: two queries do not grow old states of each other's partitions.
        if mode is HandoffMode.EXCLUSIVE:
            assert len(old.checkpoint.states) == len(new.checkpoint.states) == 2
        old.stop()
        new.stop()


def test_a_release_is_answered_only_after_the_state_is_in_the_sink(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, table: TallyTable
) -> None:
    old = a_query(assigner, kafka, topic, table)
    kafka.produce(topic, 5)
    run_until(lambda: table.is_complete(kafka, topic), old)
    planner = old.reader.planner
    new = StatefulQuery(assigner, kafka, "new", topic, table)
    new.reader.planner.statistics()
    run_until(lambda: len(planner.statistics().releasing) == 2)
    leaving = planner.statistics().releasing
    assert old.batch(upto=Step.PLANNED) is Step.PLANNED
    assert planner.statistics().releasing == leaving
    assert {_end(table, tp) for tp in leaving} == {10}
    assert old.batch() is Step.FINISHED
    assert {_end(table, tp) for tp in leaving} == {15}
    assert planner.statistics().releasing == leaving
    old.batch()
    assert not planner.statistics().releasing
    old.stop()
    new.stop()


def _end(table: TallyTable, tp: TopicPartition) -> int:
    return table.ledger.states([tp])[tp].next_offset


def test_when_a_query_dies_another_one_goes_on_from_the_last_snapshot(
    kafka: MockKafka, topic: str, table: TallyTable
) -> None:
    with an_assigner(topic, ttl=1.5) as assigner:
        old = a_query(assigner, kafka, topic, table)
        kafka.produce(topic, 10)
        run_until(lambda: table.is_complete(kafka, topic), old)
        assert _end(table, TopicPartition(topic, 0)) == 10
        old.cut_off()
        new = StatefulQuery(assigner, kafka, "new", topic, table)
        kafka.produce(topic, 10)
        run_until(lambda: table.is_complete(kafka, topic), new)
        assert not table.wrong()
        new.stop()
        old.bury()


@pytest.mark.parametrize("died", [Step.PLANNED, Step.WRITTEN, Step.FINISHED])
def test_a_restarted_query_goes_on_with_the_states_of_its_checkpoint(
    kafka: MockKafka, topic: str, table: TallyTable, died: Step
) -> None:
    with an_assigner(topic, ttl=1.5) as assigner:
        query = a_query(assigner, kafka, topic, table)
        kafka.produce(topic, 10)
        run_until(lambda: query.batch(upto=died) is died)
        query.cut_off()
        again = StatefulQuery(assigner, kafka, "m", topic, table, query.checkpoint, snapshotEvery="1000000")
        kafka.produce(topic, 10)
        run_until(lambda: table.is_complete(kafka, topic), again)
        assert not table.wrong()
        # It never asked the sink for them.
        assert _end(table, TopicPartition(topic, 0)) == 10
        again.stop()
        query.bury()


def test_a_drained_query_leaves_all_its_states_in_the_sink(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, table: TallyTable
) -> None:
    query = a_query(assigner, kafka, topic, table)
    kafka.produce(topic, 7)
    run_until(lambda: table.is_complete(kafka, topic), query)
    query.reader.planner.member_thread.drain()
    run_until(lambda: not query.held, query)
    assert not query.checkpoint.states
    assert {_end(table, TopicPartition(topic, partition)) for partition in range(4)} == {17}
    query.stop()


def test_a_log_that_is_shorter_than_its_state_is_refused(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, table: TallyTable
) -> None:
    query = a_query(assigner, kafka, topic, table, failOnDataLoss="false")
    start, end = query.checkpoint.batches[-1]
    query.checkpoint.batches[-1] = start, {key: {**at, "o": 99} if key != "~" else at for key, at in end.items()}
    with pytest.raises(DataLost, match=r"ledger\.reset"):
        query.batch()
    query.stop()


# --- what the sink has -----------------------------------------------------------------------------------------------


def test_without_states_a_new_owner_begins_after_what_the_sink_has(
    kafka: MockKafka, topic: str, table: TallyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(fenced=True)
    with an_assigner(topic, ttl=1.5) as assigner:
        old = ActedQuery(assigner, kafka, "old", topic, sink)
        run_until(lambda: old.batch(upto=Step.WRITTEN) is Step.WRITTEN and len(old.held) == 4)
        old.cut_off()
        fences = {TopicPartition(topic, partition): Fence(epoch=1, next_offset=10) for partition in range(4)}
        monkeypatch.setattr(type(table.ledger), "fences", lambda _: fences)
        new = ActedQuery(assigner, kafka, "new", topic, sink, None, **table.options)
        kafka.produce(topic, 10)
        run_until(lambda: not sink.missing(kafka, topic), new)
        assert sink.turned_away == 0
        new.stop()
        old.bury()


def test_a_sink_that_was_written_under_a_later_epoch_ends_the_query_at_once(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, table: TallyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences = {TopicPartition(topic, 0): Fence(epoch=99, next_offset=10)}
    monkeypatch.setattr(type(table.ledger), "fences", lambda _: fences)
    query = ActedQuery(assigner, kafka, "m", topic, Sink(), None, **table.options)
    with pytest.raises(EpochsWentBack, match=r"epoch 99 .*reset the sink's fences"):
        run_until(lambda: False, query)
    query.stop()


def test_a_sink_that_can_not_be_read_ends_the_query(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, table: TallyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: object) -> None:
        raise OSError("no such host")

    monkeypatch.setattr(type(table.ledger), "fences", lost)
    query = ActedQuery(assigner, kafka, "m", topic, Sink(), None, **table.options)
    with pytest.raises(SinkUnreadable, match=r"fence\.\*.*no such host"):
        run_until(lambda: False, query)
    query.stop()


def test_offsets_that_say_nothing_about_a_partition_end_the_query(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str
) -> None:
    query = ActedQuery(assigner, kafka, "m", topic, Sink(), startingOffsets=f'{{"{topic}": {{"0": 3}}}}')
    with pytest.raises(InvalidInput, match="startingOffsets says nothing about"):
        run_until(lambda: False, query)
    query.stop()


def test_a_broker_that_does_not_answer_while_partitions_are_taken_ends_the_query(
    assigner: EmbeddedAssigner, kafka: MockKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise SourceUnavailable("Kafka did not answer")

    monkeypatch.setattr(KafkaLog, "resolved", silent)
    query = ActedQuery(assigner, kafka, "m", topic, Sink())
    with pytest.raises(SourceUnavailable, match="did not answer"):
        run_until(lambda: False, query)
    query.stop()
