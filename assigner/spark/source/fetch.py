"""Reads ranges of offsets from Kafka into Arrow record batches. Runs on executors, a consumer for each task.

A range ends by position: offsets have gaps where a topic is compacted or written in transactions, so the last offset of
a range may not exist. The range then ends at a later record, or when the broker reports the end of the partition.

Not promised: one record batch for each chunk. An empty range yields nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from assigner.errors import SourceUnavailable
from assigner.logs import get_logger
from assigner.spark.kafka_offsets import report_loss
from assigner.spark.options import SourceOptions
from assigner.spark.positions import OffsetRange
from assigner.spark.source.rows import batches_of

CHUNK = 10_000
"""Records asked for at a time."""
POLL_SECONDS = 0.1
"""How long a chunk waits to be full."""
_LOW_LATENCY = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 10}
"""Defaults, which options kafka.* override. The records of a range exist already, so waiting for a fuller fetch only
delays the next range; and a full queue is emptied at once."""
_RETRIED = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE})
"""librdkafka retries these by itself; kafkaTimeout limits how long."""

_log = get_logger(__name__)


def read_ranges(ranges: Iterable[OffsetRange], options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with closing(new_consumer(options)) as consumer:
        for one in ranges:
            yield from _RangeReader(one, options, consumer).batches(schema)


def new_consumer(options: SourceOptions) -> Any:
    settings = {
        **_LOW_LATENCY,
        **options.kafka,
        # Demanded by librdkafka; the consumer never joins a group.
        "group.id": options.group or "assigned_kafka",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "logger": logging.getLogger("librdkafka"),
    }
    try:
        return Consumer(settings)
    except KafkaException as error:
        raise SourceUnavailable(f"an option kafka.* is not accepted by librdkafka: {error.args[0].str()}") from error


class _RangeReader:
    """Reads one range with a consumer that other ranges use too."""

    def __init__(self, one: OffsetRange, options: SourceOptions, consumer: Any) -> None:
        self._range = one
        self._options = options
        self._consumer = consumer
        self._position = one.first
        """The next offset to read."""
        self._log_end: int | None = None
        """The end of the partition that the broker reported, if that was before the range's end."""
        self._last_error = "no answer"

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self._begin_at(self._position)
        progress_at = time.monotonic()
        while self._position < self._range.end:
            before = self._position
            found = self._consumer.consume(min(CHUNK, self._range.end - self._position), POLL_SECONDS)
            yield from batches_of(self._records(found), self._range, schema)
            if self._position > before:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > self._options.kafka_timeout:
                self._time_out()

    def _begin_at(self, offset: int) -> None:
        tp = self._range.tp
        self._consumer.assign([TopicPartition(tp.topic, tp.partition, offset)])

    def _records(self, found: list[Any]) -> list[Any]:
        """Select the records of the range among the messages."""
        records = [message for message in found if message.error() is None]
        if records:
            records = self._within(records)
        if len(records) < len(found):
            for message in found:
                if message.error() is not None:
                    self._on_error(message)
        return records

    def _within(self, records: list[Any]) -> list[Any]:
        last = records[-1].offset()
        self._position = max(self._position, min(last + 1, self._range.end))
        if last < self._range.end:
            return records
        return [message for message in records if message.offset() < self._range.end]

    def _on_error(self, message: Any) -> None:
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            if message.offset() >= self._range.end:
                self._position = self._range.end
            else:
                self._log_end = message.offset()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._skip_lost()
        elif error.code() in _RETRIED or error.retriable():
            self._last_error = error.str()
        else:
            raise SourceUnavailable(f"{self._range} can't be read from Kafka: {error.str()}")

    def _skip_lost(self) -> None:
        tp, end = self._range.tp, self._range.end
        # Not from librdkafka's cache, which may be older than the loss.
        first, log_end = self._watermarks()
        if log_end < self._position:
            report_loss(tp, self._position, end, _shrunk(log_end), fail=self._options.fail_on_data_loss)
            self._position = end
            return
        why = f"the log begins at {first}, older records were deleted"
        report_loss(tp, self._position, min(first, end), why, fail=self._options.fail_on_data_loss)
        self._position = min(first, end)
        self._begin_at(self._position)

    def _watermarks(self) -> tuple[int, int]:
        tp = self._range.tp
        try:
            found: tuple[int, int] = self._consumer.get_watermark_offsets(
                TopicPartition(tp.topic, tp.partition), timeout=self._options.kafka_timeout, cached=False
            )
        except KafkaException as error:
            raise SourceUnavailable(f"Kafka does not say what is left of {tp}: {error.args[0].str()}") from error
        return found

    def _time_out(self) -> None:
        if self._log_end is None:
            raise SourceUnavailable(
                f"nothing of {self._range} was heard from Kafka for {self._options.kafka_timeout:g} s "
                f"({self._last_error}); check that executors reach option kafka.bootstrap.servers, "
                f"or raise option kafkaTimeout"
            )
        fail = self._options.fail_on_data_loss
        report_loss(self._range.tp, self._position, self._range.end, _shrunk(self._log_end), fail=fail)
        self._position = self._range.end


def _shrunk(log_end: int) -> str:
    return f"the log ends at {log_end}: the topic was made anew or truncated"
