"""Spark queries in one group, while records keep coming: one joins, one is killed with -9 and restarted, one drains.
No record is lost, and in the fenced table none is there twice; in a plain one beside it, some are.

The query that is killed has a driver, a JVM and all the rest to itself; the kill ends them all, after the sink's
transaction and before anybody is told of it. The others run in the session of the tests. How a driver of its own
drains: see `test_driver_end.py`.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from sqlalchemy import text

from assigner.embedded import EmbeddedAssigner
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions, HandoffMode
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, Settings
from assigner.spark.sinks import SqlLedger, next_offsets, sql_place
from assigner.spark.sinks.sql.database import open_database
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED, MockKafka
from tests.support.servers.postgres import PostgresServer
from tests.support.spark.driver_process import TABLE, Order
from tests.support.spark.drivers import Driver, Member, SessionQuery
from tests.support.spark.load import Load

GROUP = "billing"
TOPICS = [f"orders-{number}" for number in range(4)]
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(4)]
SHARED = {"first": 8, "second": 8}
RATE = 20
"""Records per second and partition."""

Rows = Counter[tuple[str, int, int]]
"""How often each (topic, partition, offset) is there."""


class Scene:
    """A group over 16 partitions, queries that read it, and the tables they write."""

    def __init__(
        self, spark: SparkSession, assigner: EmbeddedAssigner, bootstrap: str, url: str, directory: Path
    ) -> None:
        self._spark = spark
        self._assigner = assigner
        self.bootstrap = bootstrap
        self._url = url
        self._directory = directory
        self._members: list[Member] = []

    def query(self, member: str) -> SessionQuery:
        """A query of a member, which starts at once. Of several with one name, each is a restart of the last one."""
        query = SessionQuery(self._order(member), self._spark)
        self._members.append(query)
        return query

    def driver(self, member: str) -> Driver:
        """A driver for a query of a member, which is still to start."""
        driver = Driver(self._order(member))
        self._members.append(driver)
        return driver

    def _order(self, member: str) -> Order:
        name = f"{member}-{len(self._members)}"
        return Order(
            directory=str(self._directory / name),
            options={
                "assigner": self._assigner.address,
                "group": GROUP,
                "member": member,
                "kafka.bootstrap.servers": self.bootstrap,
                "subscribe": ",".join(TOPICS),
                "includeEpoch": "true",
            },
            checkpoint=str(self._directory / "checkpoints" / member),
            url=self._url,
            plain=str(self._directory / "plain" / name),
        )

    def owned(self) -> Counter[str]:
        """How many partitions each member has."""
        described = self._assigner.call(lambda service: service.instance.operations.describe(GROUP))
        return Counter(one.owner for one in described.ownership)

    def next_offsets(self) -> dict[TopicPartition, int]:
        return next_offsets(SqlLedger(sql_place(self._url, TABLE, group=GROUP)))

    def fenced(self) -> Rows:
        with open_database(self._url).connect() as connection:
            found = connection.execute(text(f'SELECT topic, "partition", "offset" FROM {TABLE}'))
            return Counter((topic, partition, offset) for topic, partition, offset in found)

    def plain(self) -> Rows:
        found: Rows = Counter()
        for directory in (self._directory / "plain").iterdir():
            table = pyarrow.dataset.dataset(directory, format="parquet").to_table()
            found.update(zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))
        return found

    def close(self) -> None:
        for member in self._members:
            member.close()


@pytest.fixture
def scenes(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str, str, HandoffMode], Scene]]:
    made: list[tuple[EmbeddedAssigner, Scene]] = []

    def make(bootstrap: str, url: str, mode: HandoffMode) -> Scene:
        settings = Settings(
            grpc=ServerSettings(port=0),
            http=HttpSettings(port=0),
            consumer_ttl=6.0,
            group=GroupOptions(debounce=0.2, handoff_mode=mode),
            topics={GROUP: dict.fromkeys(TOPICS, 4)},
        )
        assigner = EmbeddedAssigner(settings).__enter__()
        made.append((assigner, Scene(spark, assigner, bootstrap, url, tmp_path)))
        return made[-1][1]

    yield make
    for assigner, scene in made:
        scene.close()
        assigner.close()


# --- the course of events ------------------------------------------------------------------------------------------


def act(scene: Scene, load: Load) -> int:
    """Let it all happen. Returns how many records were produced."""
    with load:
        first = one_joins_and_is_killed(scene)
        restarted = scene.query("second")
        restarted.until(lambda: scene.owned() == SHARED and restarted.written > 0, "it has its share again")
        first.drain()
        restarted.until(lambda: scene.owned() == {"second": 16}, "it has what was let go")
        produced = load.stop()
    write_the_rest(scene, restarted, produced)
    return produced


def one_joins_and_is_killed(scene: Scene) -> SessionQuery:
    """Returns the query that was there first and goes on alone."""
    second = scene.driver("second")
    # Queries that run meanwhile would only take from it what it needs to get ready.
    second.wait_until_up()
    first = scene.query("first")
    first.until(lambda: len(scene.next_offsets()) == len(PARTITIONS), "it has rows of all partitions")
    second.go()
    second.until(lambda: scene.owned() == SHARED and second.written > 0, "it has its share")
    assert second.die_after_writing() == -signal.SIGKILL
    before = first.written
    first.until(lambda: scene.owned() == {"first": 16} and first.written > before, "it goes on alone")
    return first


def write_the_rest(scene: Scene, last: SessionQuery, produced: int) -> None:
    last.until(lambda: sum(scene.next_offsets().values()) == produced, "everything is written")
    last.drain()


def check(scene: Scene, load: Load, produced: int, report: Callable[[str], None]) -> None:
    expected = {(topic, partition, offset) for (topic, partition), n in load.produced.items() for offset in range(n)}
    fenced, plain = scene.fenced(), scene.plain()
    lost, twice = len(expected - fenced.keys()), fenced.total() - len(fenced)
    plain_twice = plain.total() - len(plain)
    report(
        f"{produced} records over {len(PARTITIONS)} partitions: {lost} lost, {twice} duplicates; "
        f"without fences {plain_twice} duplicates"
    )
    assert fenced.keys() <= expected
    assert (lost, twice) == (0, 0)
    # The kill came after rows were written: without fences they are there twice.
    assert plain_twice > 0


def test_nothing_is_lost_or_twice_on_the_mock_cluster(
    scenes: Callable[[str, str, HandoffMode], Scene], tmp_path: Path, figures: Callable[[str], None]
) -> None:
    kafka = MockKafka()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, **LOGGED})
    for topic in TOPICS:
        assert len(producer.list_topics(topic, timeout=30).topics[topic].partitions) == 4
    load = Load(producer, PARTITIONS, RATE)
    scene = scenes(kafka.bootstrap, f"sqlite:///{tmp_path / 'sink.db'}", HandoffMode.OVERLAP)
    produced = act(scene, load)
    check(scene, load, produced, figures)


@pytest.mark.slow
def test_nothing_is_lost_or_twice_on_a_real_broker(
    scenes: Callable[[str, str, HandoffMode], Scene],
    kafka_broker: KafkaBroker,
    postgres_server: PostgresServer,
    figures: Callable[[str], None],
) -> None:
    for topic in TOPICS:
        kafka_broker.create_topic(topic, 4)
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap, "linger.ms": 5, "enable.idempotence": True, **LOGGED}
    )
    load = Load(producer, PARTITIONS, RATE)
    scene = scenes(kafka_broker.bootstrap, postgres_server.new_schema(), HandoffMode.EXCLUSIVE)
    produced = act(scene, load)
    check(scene, load, produced, figures)
