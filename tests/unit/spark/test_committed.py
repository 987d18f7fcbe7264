"""Batch reads that begin or end where a group has committed. They ask the assigner, over TLS too, and join nothing."""

from __future__ import annotations

from assigner.spark.options import read_options
from assigner.spark.positions import OffsetRange
from assigner.spark.schema import row_schema
from assigner.spark.source.batch_reader import BatchReader
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import GROUP, ActedQuery, Sink, an_assigner, run_until

TOPIC = "looked-at"


def test_what_a_group_has_done_and_has_not_done_yet_can_be_read() -> None:
    kafka, sink = MockKafka(), Sink()
    kafka.produce(TOPIC, 10)
    with an_assigner(TOPIC) as assigner:
        query = ActedQuery(assigner, kafka, "m", TOPIC, sink)
        run_until(lambda: not sink.missing(kafka, TOPIC), query)
        query.stop()
        kafka.produce(TOPIC, 5)
        given = {"assigner": assigner.address, "group": GROUP, "subscribe": TOPIC}
        given["kafka.bootstrap.servers"] = kafka.bootstrap

        def planned(**more: str) -> set[tuple[int, int]]:
            options = read_options({**given, **more}, streaming=False)
            tasks = BatchReader(options, row_schema(headers=False, epoch=False, control=False)).partitions()
            ranges: list[OffsetRange] = [one for task in tasks for one in task.value]
            return {(one.first, one.end) for one in ranges}

        assert planned(endingOffsets="committed") == {(0, 10)}
        assert planned(startingOffsets="committed") == {(10, 15)}
