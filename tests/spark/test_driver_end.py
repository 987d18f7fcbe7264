"""SIGTERM of a driver, as a deployment or an eviction sends it: the batch is finished, everything is handed over, and
the process ends as if its work were done.

Whether Python started the JVM or `spark-submit` started Python: the one that gets the signal is the driver.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assigner.api import WantedOffsets
from assigner.embedded import EmbeddedAssigner
from assigner.model.keys import TopicPartition
from assigner.spark.sinks import SqlLedger, next_offsets, sql_place
from tests.support.servers.mock_kafka import MockKafka
from tests.support.spark.driver_process import TABLE, Order
from tests.support.spark.drivers import SPARK_SUBMIT, Driver
from tests.support.spark.fake_query import GROUP, an_assigner

TOPIC = "orders"


@pytest.fixture
def kafka() -> MockKafka:
    return MockKafka()


@pytest.fixture
def assigner() -> Iterator[EmbeddedAssigner]:
    with an_assigner(TOPIC) as running:
        yield running


@pytest.fixture(params=[(sys.executable,), SPARK_SUBMIT], ids=["python", "spark-submit"])
def driver(
    request: pytest.FixtureRequest, kafka: MockKafka, assigner: EmbeddedAssigner, url: str, tmp_path: Path
) -> Iterator[Driver]:
    options = {
        "assigner": assigner.address,
        "group": GROUP,
        "member": "only",
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": TOPIC,
        "includeEpoch": "true",
    }
    order = Order(
        directory=str(tmp_path / "driver"),
        options=options,
        checkpoint=str(tmp_path / "checkpoint"),
        url=url,
        plain=str(tmp_path / "plain"),
    )
    started = Driver(order, request.param)
    yield started
    started.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'sink.db'}"


def committed(assigner: EmbeddedAssigner) -> dict[TopicPartition, int]:
    wanted = WantedOffsets(tuple(TopicPartition(TOPIC, partition) for partition in range(4)))
    found = assigner.call(lambda service: service.instance.offsets.fetch(GROUP, wanted))
    return {tp: one.offset for tp, one in found.offsets if one is not None}


def members(assigner: EmbeddedAssigner) -> list[str]:
    described = assigner.call(lambda service: service.instance.operations.describe(GROUP))
    return [one.consumer.consumer_name for one in described.members]


def test_a_driver_told_to_stop_finishes_its_batch_and_hands_over(
    driver: Driver, kafka: MockKafka, assigner: EmbeddedAssigner, url: str
) -> None:
    kafka.produce(TOPIC, 50)
    driver.go()
    driver.until(lambda: driver.written == 200, "it has written what there was")
    driver.hold()
    kafka.produce(TOPIC, 50)
    driver.wait_until_held()
    driver.signal(signal.SIGTERM)
    # It is in the middle of a batch, and nobody else is there: it stays what it is.
    assert members(assigner) == ["only"]
    driver.go_on()
    assert driver.ended() == 0, driver.log()
    assert members(assigner) == []
    reached = next_offsets(SqlLedger(sql_place(url, TABLE, group=GROUP)))
    assert reached == committed(assigner)
    # Of the second lot, what was there already when the batch began.
    assert 200 < sum(reached.values()) == driver.written <= 400
