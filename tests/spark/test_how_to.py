"""The pages about Spark do what they say: two members run what a page shows, and every record is there once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from assigner.api import WantedOffsets
from assigner.embedded import EmbeddedAssigner
from assigner.records import GroupOptions, HandoffMode
from assigner.server import ServerSettings
from assigner.settings import HttpSection, Settings
from tests.mock_kafka import PARTITIONS, MockKafka
from tests.spark.pages import names_of

GROUP = "billing"
TOPICS = ("orders", "payments")
PATIENCE = 300.0


class Scene:
    """A group of two topics, the assigner and the Kafka that the pages speak of, and directories for what they write."""

    def __init__(self, spark: SparkSession, assigner: EmbeddedAssigner, kafka: MockKafka, directory: Path) -> None:
        self.spark, self._assigner, self._kafka = spark, assigner, kafka
        self.instead = {
            "127.0.0.1:50051": assigner.address,
            "127.0.0.1:9092": kafka.bootstrap,
            "/lake/": f"{directory}/lake/",
            "/checkpoints/": f"{directory}/checkpoints/",
        }

    def produce(self, *topics: str) -> None:
        for topic in topics:
            self._kafka.produce(topic, 10)

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
            http=HttpSection(port=0),
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


def two_members_read_everything(scene: Scene, start: Callable[[str], StreamingQuery], *topics: str) -> None:
    """One member has had some batches when another joins; records come before, between and after."""
    scene.produce(*topics)
    first = start("etl-1")
    while batches(first) < 4:
        before = batches(first)
        scene.produce(*topics)
        eventually(lambda before=before: batches(first) > before, "a batch with these", first)  # type: ignore[misc]
    second = start("etl-2")
    half = len(topics) * PARTITIONS // 2
    eventually(lambda: scene.owned() == {"etl-1": half, "etl-2": half}, "each has half", first, second)
    scene.produce(*topics)
    eventually(lambda: scene.committed() == scene.produced(*topics), "all is read and committed", first, second)


def each_once(rows: DataFrame, wanted: int) -> None:
    assert rows.count() == rows.select("topic", "partition", "offset").distinct().count() == wanted


def test_two_members_of_the_page_on_reading_a_group_write_every_record_once(scene: Callable[..., Scene]) -> None:
    here = scene(*TOPICS)
    page = names_of("spark.md", having="def run(", instead=here.instead)
    two_members_read_everything(here, lambda member: page["start"](here.spark, member), *TOPICS)
    assert page["count"](here.spark) == here.produced(*TOPICS)
