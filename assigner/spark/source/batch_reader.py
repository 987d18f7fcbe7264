"""Implements `spark.read.format("assigned_kafka")`: reads between two offsets of each partition. It joins no group.

`committed` as an end stands for the group's committed offsets, so that records which a group has processed, or has not
yet processed, can be read without disturbing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import anyio
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from assigner.model.keys import TopicPartition
from assigner.spark.errors import without_traceback
from assigner.spark.kafka_offsets import KafkaLog
from assigner.spark.options import COMMITTED, EARLIEST, SourceOptions
from assigner.spark.positions import OffsetRange
from assigner.spark.schema import arrow_schema
from assigner.spark.source.fetch import read_ranges
from assigner.spark.source.tasks import tasks_for


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @without_traceback
    def partitions(self) -> list[InputPartition]:
        log, options = KafkaLog(self._options), self._options
        known = log.partitions(options.topics)
        done = self._committed(known)
        first = log.resolved({tp: _resolved_committed(options.starting.of(tp), tp, done) for tp in known})
        end = log.resolved({tp: _resolved_committed(options.ending.of(tp, "endingOffsets"), tp, done) for tp in known})
        ranges = [OffsetRange(tp, 0, first[tp], end[tp]) for tp in known if first[tp] < end[tp]]
        return tasks_for(ranges, options)

    def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        options = self._options
        if not options.group:
            return {}
        from assigner.spark.member.admin_calls import committed_at

        fetch = partial(committed_at, token_file=options.token_file)
        return anyio.run(fetch, options.assigner, options.tls, options.group, partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes an empty partition if there is none.
        if partition.value is None:
            return iter(())
        return read_ranges(partition.value, self._options, arrow_schema(self._schema))


def _resolved_committed(offset: int, tp: TopicPartition, committed: Mapping[TopicPartition, int]) -> int:
    """Replace COMMITTED by the committed offset. A group without one has processed nothing yet."""
    return committed.get(tp, EARLIEST) if offset == COMMITTED else offset
