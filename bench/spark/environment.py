"""What the measurements of Spark share: a real broker with full topics, an assigner, and a session on two cores."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import assigner.spark
from assigner.embedded import EmbeddedAssigner
from assigner.model.records import GroupOptions, HandoffMode
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, Settings
from tests.support.servers.kafka import KafkaBroker
from tools import install_spark_kafka

CORES = 2
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    spark: SparkSession
    broker: KafkaBroker
    assigner: EmbeddedAssigner
    directory: Path
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def new_checkpoint(self) -> str:
        return str(self.directory / f"checkpoint-{next(self.numbers)}")

    def create(self, topic: str, partitions: int) -> None:
        self.broker.create_topic(topic, partitions)

    def fill(self, topic: str, rows: int, size: int, partitions: int) -> None:
        """A topic with so many records of so many bytes, and keys of 8."""
        self.create(topic, partitions)
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 50, "batch.size": 500_000})
        value = os.urandom(size)
        for number in range(rows):
            while True:
                try:
                    producer.produce(topic, value, number.to_bytes(8), number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(300) == 0

    def assigned(self, topic: str, group: str, member: str, **options: str) -> DataFrame:
        given = {
            "assigner": self.assigner.address,
            "group": group,
            "member": member,
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": topic,
            **options,
        }
        return self.spark.readStream.format("assigned_kafka").options(**given).load()

    def jvm(self, **options: str) -> DataFrame:
        """Spark's own source; `subscribe` or `assign` is among the options."""
        given = {"kafka.bootstrap.servers": self.bootstrap, "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("kafka").options(**given).load()


@contextmanager
def environment(mode: HandoffMode) -> Iterator[Environment]:
    options = Settings(
        grpc=ServerSettings(port=0), http=HttpSettings(port=0), group=GroupOptions(handoff_mode=mode, debounce=0.1)
    )
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with KafkaBroker(directory / "kafka") as broker, EmbeddedAssigner(options) as running:
            spark = session(directory)
            try:
                yield Environment(spark, broker, running, directory)
            finally:
                spark.stop()


def session(directory: Path) -> SparkSession:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.jars": ",".join(map(str, install_spark_kafka.jars())),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    assigner.spark.register(spark)
    return spark
