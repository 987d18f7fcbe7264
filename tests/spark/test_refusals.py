"""What a user of Spark sees when a query can't go on: it ends, and its error says what to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from assigner.spark import register
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.fake_query import GROUP, an_assigner

PATIENCE = 90
NOBODY = "127.0.0.1:1"
BEYOND = '{"lost": {"0": 999, "1": 999, "2": 999, "3": 999}}'


@pytest.fixture
def stop_queries(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


def test_a_query_that_can_not_go_on_ends_and_names_the_option_and_the_remedy(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    register(spark)
    kafka = MockKafka()
    for topic in ("found", "lost"):
        kafka.produce(topic, 5)

    def run(member: str, **more: str) -> None:
        given = {"assigner": assigner.address, "group": GROUP, "member": member, "subscribe": "found"}
        given |= {"kafka.bootstrap.servers": kafka.bootstrap, "kafka.log_level": "0"}
        given |= {name.replace("__", "."): value for name, value in more.items()}
        rows = spark.readStream.format("assigned_kafka").options(**given).load()
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / member)).start()
        assert query.awaitTermination(PATIENCE), "the query goes on"

    with an_assigner("found", "lost") as assigner:
        with pytest.raises(StreamingQueryException, match=r"127\.0\.0\.1:1 is not reached: .*check option assigner"):
            run("alone", assigner=NOBODY, assignerTimeout="0.5")
        with pytest.raises(
            StreamingQueryException, match=r"Kafka at 127\.0\.0\.1:1 did .*option kafka\.bootstrap\.servers"
        ):
            run("dry", kafka__bootstrap__servers=NOBODY, kafkaTimeout="0.5")
        with pytest.raises(
            StreamingQueryException, match=r"offsets 5 to 999 of lost/. are gone .*option failOnDataLoss"
        ):
            run("late", subscribe="lost", startingOffsets=BEYOND)
