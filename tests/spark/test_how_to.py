"""The pages about Spark do what they say: two members run what a page shows, and every record is there once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import LongType, StringType, StructField, StructType
from sqlalchemy import text

from assigner.api import WantedOffsets
from assigner.embedded import EmbeddedAssigner
from assigner.model.records import GroupOptions, HandoffMode
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, Settings
from assigner.spark import register
from assigner.spark.sinks.sql.database import open_database
from tests.support.servers.mock_kafka import PARTITIONS, MockKafka
from tests.support.spark.pages import names_of

GROUP = "billing"
PATIENCE = 300.0


class Scene:
    """A group, the assigner and the Kafka that the pages speak of, and directories for what they write."""

    def __init__(self, spark: SparkSession, assigner: EmbeddedAssigner, kafka: MockKafka, directory: Path) -> None:
        self.spark, self._assigner, self._kafka = spark, assigner, kafka
        self.instead = {
            "127.0.0.1:50051": assigner.address,
            "127.0.0.1:9092": kafka.bootstrap,
            "/lake/": f"{directory}/lake/",
            "/checkpoints/": f"{directory}/checkpoints/",
        }

    def produce(self, *topics: str) -> None:
        """Payments of 1 to an account for each topic."""
        for topic in topics:
            self._kafka.produce(topic, 10, key=topic.encode(), value=b"1")

    def rows(self, member: str, **more: str) -> DataFrame:
        """What a member reads of the topic `orders`, for pages that begin with the rows."""
        return self.source(member, **more).load().select("topic", "partition", "offset", "epoch", "value")

    def source(self, member: str, **more: str) -> DataStreamReader:
        register(self.spark)
        addresses = {
            "assigner": self.instead["127.0.0.1:50051"],
            "kafka.bootstrap.servers": self.instead["127.0.0.1:9092"],
        }
        reader = self.spark.readStream.format("assigned_kafka").options(**addresses, group=GROUP, subscribe="orders")
        return reader.options(member=member, includeEpoch="true", **more)

    def produced(self, *topics: str) -> int:
        return sum(end for (topic, _), end in self._kafka.ends.items() if topic in topics)

    def owned(self) -> Counter[str]:
        found = self._assigner.call(lambda service: service.instance.operations.describe(GROUP))
        return Counter(one.owner for one in found.ownership)

    def committed(self) -> int:
        found = self._assigner.call(lambda service: service.instance.offsets.fetch(GROUP, WantedOffsets()))
        return sum(at.offset for _, at in found.offsets if at is not None)


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[EmbeddedAssigner] = []

    def make(*topics: str) -> Scene:
        settings = Settings(
            grpc=ServerSettings(port=0),
            http=HttpSettings(port=0),
            group=GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE, debounce=0.05),
        )
        made.append(EmbeddedAssigner(settings, topics={GROUP: dict.fromkeys(topics, PARTITIONS)}).__enter__())
        return Scene(spark, made[-1], MockKafka(), tmp_path)

    yield make
    for query in spark.streams.active:
        query.stop()
    for assigner in made:
        assigner.close()


def eventually(condition: Callable[[], Any], what: str, *queries: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for query in queries:
            assert query.isActive, f"{query.exception()} before {what}"
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.1)


def batches(query: StreamingQuery) -> int:
    return -1 if query.lastProgress is None else int(query.lastProgress["batchId"])


def two_members_read_everything(
    scene: Scene, start: Callable[[str], StreamingQuery], *topics: str, ahead: int = 0
) -> None:
    """One member is some batches ahead when another joins; records come before, between and after."""
    scene.produce(*topics)
    first = start("etl-1")
    eventually(lambda: batches(first) >= 0, "a first batch", first)
    for _ in range(ahead):
        before = batches(first)
        scene.produce(*topics)
        eventually(lambda before=before: batches(first) > before, "a batch with these", first)  # type: ignore[misc]
    second = start("etl-2")
    half = len(topics) * PARTITIONS // 2
    eventually(lambda: scene.owned() == {"etl-1": half, "etl-2": half}, "each has half", first, second)
    scene.produce(*topics)
    eventually(lambda: scene.committed() == scene.produced(*topics), "all is read and committed", first, second)


def in_table(url: str, table: str) -> list[tuple[Any, ...]]:
    with open_database(url).connect() as connection:
        found = connection.execute(text(f'SELECT topic, "partition", "offset" FROM {table}'))
        return [tuple(row) for row in found]


def test_members_of_the_page_on_reading_a_group_write_every_record_once(scene: Callable[..., Scene]) -> None:
    here = scene("orders", "payments")
    page = names_of("spark.md", having="def run(", instead=here.instead)
    start = partial(page["start"], here.spark)
    two_members_read_everything(here, start, "orders", "payments", ahead=4)
    assert page["count"](here.spark) == here.produced("orders", "payments")


def test_members_with_plain_directories_of_their_own_write_every_record_once(scene: Callable[..., Scene]) -> None:
    here = scene("orders")
    page = names_of("spark.md", having="def start_plain(", instead=here.instead)
    two_members_read_everything(here, lambda member: page["start_plain"](here.rows(member), member), "orders", ahead=4)
    assert page["count_plain"](here.spark) == here.produced("orders")


def test_members_that_write_to_a_table_as_shown_write_every_record_once(
    scene: Callable[..., Scene], tmp_path: Path
) -> None:
    here, url = scene("orders"), f"sqlite:///{tmp_path / 'sink.db'}"
    page = names_of("exactly-once-with-spark.md", having="def start(spark, member, url)", instead=here.instead)
    two_members_read_everything(here, lambda member: page["start"](here.spark, member, url), "orders")
    found = in_table(url, "payments")
    assert len(found) == len(set(found)) == here.produced("orders")


def test_members_that_write_by_the_format_as_shown_write_every_record_once(
    scene: Callable[..., Scene], tmp_path: Path
) -> None:
    here, url = scene("orders"), f"sqlite:///{tmp_path / 'sink.db'}"
    page = names_of("exactly-once-with-spark.md", having="def write(rows, member, url)", instead=here.instead)
    two_members_read_everything(here, lambda member: page["write"](here.rows(member), member, url), "orders")
    found = in_table(url, "payments")
    assert len(found) == len(set(found)) == here.produced("orders")


def test_members_that_write_to_parquet_as_shown_write_every_record_once(scene: Callable[..., Scene]) -> None:
    here = scene("orders")
    page = names_of("exactly-once-with-spark.md", having="def upkeep(", instead=here.instead)
    two_members_read_everything(here, lambda member: page["start"](here.rows(member), member), "orders")
    page["upkeep"]()
    assert page["count"](here.spark) == here.produced("orders")


def test_members_whose_state_moves_as_shown_count_every_record_once(
    scene: Callable[..., Scene], tmp_path: Path, stateful: SparkSession
) -> None:
    here, url = scene("orders"), f"sqlite:///{tmp_path / 'sink.db'}"
    page = names_of("exactly-once-with-spark.md", having="class Balances", instead=here.instead)
    output = StructType([StructField("account", StringType()), StructField("balance", LongType())])
    two_members_read_everything(here, lambda member: page["start"](here.source(member), member, url, output), "orders")
    found = in_table(url, "balances")
    assert len(found) == len(set(found)) == here.produced("orders")
    with open_database(url).connect() as connection:
        per_partition = connection.execute(text('SELECT MAX(balance), COUNT(*) FROM balances GROUP BY "partition"'))
        assert all(balance == count for balance, count in per_partition)


def test_members_that_share_a_plain_directory_are_told_that_rows_are_lost(
    scene: Callable[..., Scene], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, shared = scene("orders"), str(tmp_path / "shared")

    def start(member: str) -> StreamingQuery:
        writer = here.rows(member).writeStream.format("parquet")
        return writer.option("checkpointLocation", str(tmp_path / member)).start(shared)

    two_members_read_everything(here, start, "orders", ahead=4)
    assert here.spark.read.parquet(shared).count() < here.produced("orders")
    eventually(lambda: "file_sink_rows_lost" in caplog.text and shared in caplog.text, "it is said")
    assert "fenced_parquet" in caplog.text
