"""A streaming query without Spark: calls a reader as Spark does, and keeps a checkpoint as Spark does.

Each step of a batch can be the last one, so a test can let a query die between any two of them and start another on
the same checkpoint. A proxy stands between the query and the assigner: to kill the query is to cut it off.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from assigner.embedded import EmbeddedAssigner
from assigner.errors import AssignerError
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions, HandoffMode
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, Settings
from assigner.spark.options import read_options
from assigner.spark.schema import row_schema
from assigner.spark.source.reader import StreamReader
from tests.support.network.tcp_proxy import TcpProxy
from tests.support.servers.mock_kafka import PARTITIONS, MockKafka

GROUP = "g"
Json = dict[str, Any]
Row = tuple[str, int, int]
"""Topic, partition, offset."""


def an_assigner(*topics: str, mode: HandoffMode = HandoffMode.EXCLUSIVE, ttl: float = 30.0) -> EmbeddedAssigner:
    settings = Settings(
        grpc=ServerSettings(port=0),
        http=HttpSettings(port=0),
        group=GroupOptions(handoff_mode=mode, debounce=0.05),
        consumer_ttl=ttl,
    )
    return EmbeddedAssigner(settings, topics={GROUP: dict.fromkeys(topics, PARTITIONS)})


class Checkpoint(msgspec.Struct):
    """What outlives a query: the planned batches, and how many of them are finished."""

    batches: list[tuple[Json, Json]] = []
    finished: int = 0

    @property
    def end(self) -> Json | None:
        return self.batches[-1][1] if self.batches else None


class Sink:
    """Takes every row, and counts how often. With a fence: only rows of the highest epoch, and none twice."""

    def __init__(self, *, fenced: bool = False) -> None:
        self.rows: Counter[Row] = Counter()
        self.epochs: dict[tuple[str, int], list[int]] = {}
        self.turned_away = 0
        self._fenced = fenced
        self._fences: dict[tuple[str, int], tuple[int, int]] = {}

    def write(self, rows: list[tuple[str, int, int, int]]) -> None:
        for topic, partition, offset, epoch in rows:
            highest, next_offset = self._fences.get((topic, partition), (0, 0))
            if self._fenced and (epoch < highest or offset < next_offset):
                self.turned_away += 1
                continue
            self._fences[topic, partition] = epoch, offset + 1
            self.rows[topic, partition, offset] += 1
            seen = self.epochs.setdefault((topic, partition), [])
            if not seen or seen[-1] != epoch:
                seen.append(epoch)

    @property
    def repeated(self) -> list[Row]:
        return [row for row, times in self.rows.items() if times > 1]

    def missing(self, kafka: MockKafka, *topics: str) -> list[Row]:
        wanted = {(t, p, o) for (t, p), end in kafka.ends.items() for o in range(end) if t in topics}
        return sorted(wanted - self.rows.keys())


class Step(IntEnum):
    """How far a batch gets."""

    NOTHING = 0
    PLANNED = 1
    WRITTEN = 2
    FINISHED = 3


class ActedQuery:
    def __init__(
        self,
        service: EmbeddedAssigner,
        kafka: MockKafka,
        member: str,
        topics: str,
        sink: Sink,
        checkpoint: Checkpoint | None = None,
        **options: str,
    ) -> None:
        self._service = service
        self._proxy = TcpProxy(service.address)
        service.call(lambda running: self._proxy.start())
        given = {
            "assigner": self._proxy.endpoint,
            "group": GROUP,
            "member": member,
            "kafka.bootstrap.servers": kafka.bootstrap,
            "subscribe": topics,
            "includeEpoch": "true",
            "kafkaTimeout": "20",
            **options,
        }
        self.options = read_options(given, streaming=True)
        schema = row_schema(headers=self.options.headers, epoch=True, control=self.options.control_rows)
        self.reader = StreamReader(self.options, schema)
        self.checkpoint = checkpoint if checkpoint is not None else Checkpoint()
        self._sink = sink
        self._unfinished = len(self.checkpoint.batches) > self.checkpoint.finished
        self._committed = True

    @property
    def held(self) -> dict[TopicPartition, int]:
        """Partitions that the last batch knew of, with their epochs."""
        return {_tp(key): at["e"] for key, at in (self.checkpoint.end or {}).items() if key != "~"}

    # --- a batch ---------------------------------------------------------------------------------------------------

    def batch(self, upto: Step = Step.FINISHED, limit: ReadLimit | None = None) -> Step:
        """One round; how far it got. `NOTHING`: there was nothing new, or no further step was wanted."""
        if self._unfinished:
            return self._run(*self.checkpoint.batches[-1], upto)
        start = self.checkpoint.end or self.reader.initialOffset()
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        if end == start or upto is Step.NOTHING:
            return Step.NOTHING
        self.checkpoint.batches.append((start, end))
        self._unfinished = True
        if len(self.checkpoint.batches) > 1:
            self.reader.commit(start)
        return self._run(start, end, upto)

    def _run(self, start: Json, end: Json, upto: Step) -> Step:
        if upto is Step.PLANNED:
            return Step.PLANNED
        planned = self.reader.partitions(start, end)
        # Executors get a copy.
        copy = pickle.loads(pickle.dumps(self.reader))
        self._write([batch for one in pickle.loads(pickle.dumps(planned)) for batch in copy.read(one)])
        if upto is Step.WRITTEN:
            return Step.WRITTEN
        self._finish()
        self._unfinished = False
        return Step.FINISHED

    def finish_what_an_earlier_process_began(self) -> None:
        if self._unfinished:
            self.batch()

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        self._sink.write([row for batch in batches for row in _rows(batch)])

    def _finish(self) -> None:
        self.checkpoint.finished = len(self.checkpoint.batches)

    # --- the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """In good order: the last batch is known to be finished."""
        if self.reader.statistics() is not None and not self._unfinished:
            with suppress(AssignerError):
                self.batch(upto=Step.NOTHING)
        self.reader.stop()
        self._stop_proxy()

    def cut_off(self) -> None:
        """Kill it, as far as anybody else can tell. Its thread goes on in vain until `bury`."""
        self._stop_proxy()

    def bury(self) -> None:
        if self.reader.statistics() is not None:
            self.reader.planner.member_thread.end_batch()
        self.reader.stop()

    def _stop_proxy(self) -> None:
        self._service.call(lambda running: self._proxy.stop())


def _tp(key: str) -> TopicPartition:
    topic, _, partition = key.rpartition("-")
    return TopicPartition(topic, int(partition))


def _rows(batch: pa.RecordBatch) -> list[tuple[str, int, int, int]]:
    return [
        (row["topic"], row["partition"], row["offset"], row["epoch"])
        for row in batch.select(["topic", "partition", "offset", "epoch"]).to_pylist()
    ]


def run_until(condition: Callable[[], bool], *queries: ActedQuery, within: float = 30.0) -> None:
    """Let the queries run batches in turn until the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        for query in queries:
            query.batch()
        time.sleep(0.01)
