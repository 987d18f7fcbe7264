"""`assigner offsets import` and `export`, between a real Kafka and a running service."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from assigner.cli import main
from assigner.cli.exit_codes import REFUSED, UNREACHABLE
from assigner.embedded import EmbeddedAssigner
from assigner.server import ServerSettings
from assigner.settings import HttpSettings, KafkaSection, Settings
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED
from tests.support.servers.ports import free_port
from tests.support.service_processes import until

Run = Callable[..., Result]
EPOCH = 4


class KafkaSide:
    """What an operator does with groups in Kafka itself."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self._admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap, **LOGGED})

    def commit(self, group: str, *offsets: TopicPartition) -> None:
        """Commit for a group without members. The first group of a broker waits for its coordinator."""
        request = [ConsumerGroupTopicPartitions(group, list(offsets))]

        def is_done() -> bool:
            found = self._admin.alter_consumer_group_offsets(request)[group].result(30)
            return all(one.error is None for one in found.topic_partitions)

        until(is_done, 60, f"offsets of {group} are committed")

    def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str, int | None]]:
        future = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        return {
            (one.topic, one.partition): (one.offset, one.metadata or "", one.leader_epoch)
            for one in future.result(30).topic_partitions
        }


class Member:
    """A consumer that is a member of a group in Kafka until it is closed."""

    def __init__(self, kafka: KafkaSide, group: str, topic: str, protocol: str) -> None:
        self._joined = threading.Event()
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "client.id": "old\x1b[2Jreader",
                **LOGGED,
            }
        )
        self._consumer.subscribe([topic], on_assign=lambda *_: self._joined.set())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._joined.wait(60), f"{protocol} member did not join"

    def _run(self) -> None:
        while not self._stop.is_set():
            self._consumer.poll(0.1)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@pytest.fixture
def kafka(kafka_broker: KafkaBroker) -> KafkaSide:
    return KafkaSide(kafka_broker)


@pytest.fixture
def assigner() -> Iterator[EmbeddedAssigner]:
    with EmbeddedAssigner() as running:
        yield running


@pytest.fixture
def run(assigner: EmbeddedAssigner) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner(env={"ASSIGNER_ADDRESS": assigner.address, "COLUMNS": "160"}).invoke(
            main, ["offsets", *arguments]
        )

    return invoke


def stored(run: Run, group: str) -> dict[tuple[str, int], tuple[int, str, int]]:
    result = run(group, "-o", "json")
    assert result.exit_code == 0, result.output
    return {
        (one["topic"], one["partition"]): (one["offset"], one["metadata"], one["leader_epoch"])
        for one in json.loads(result.stdout)["offsets"]
    }


@pytest.fixture
def moved(kafka: KafkaSide) -> tuple[str, str]:
    """A group in Kafka that has committed offsets of a topic, with metadata and a leader epoch, and is empty now."""
    topic, group = f"orders-{free_port()}", f"billing-{free_port()}"
    kafka.broker.create_topic(topic, 3)
    kafka.commit(group, TopicPartition(topic, 0, 17, metadata="from[red]é", leader_epoch=EPOCH))
    kafka.commit(group, TopicPartition(topic, 2, 5))
    return topic, group


def test_offsets_come_in_with_their_metadata_and_leader_epochs(
    run: Run, kafka: KafkaSide, moved: tuple[str, str]
) -> None:
    topic, group = moved
    result = run("import", "--from-kafka", kafka.bootstrap, "--group", group)
    assert result.exit_code == 0, result.output
    assert f"2 offsets set: {group} in Kafka -> {group}" in result.stdout
    assert stored(run, group) == {(topic, 0): (17, "from[red]é", EPOCH), (topic, 2): (5, "", -1)}


def test_metadata_that_the_service_does_not_keep_is_named_and_can_be_left_out(
    run: Run, kafka: KafkaSide, moved: tuple[str, str]
) -> None:
    topic, group = moved
    kafka.commit(group, TopicPartition(topic, 1, 9, metadata="\x1b[2J"))
    arguments = ("import", "--from-kafka", kafka.bootstrap, "--group", group)
    result = run(*arguments)
    assert result.exit_code == REFUSED
    assert f"the metadata of {topic}/1 holds characters" in result.output
    assert "\x1b" not in result.output
    assert run(*arguments, "--without-metadata").exit_code == 0
    assert stored(run, group)[topic, 1] == (9, "", -1)


def test_a_dry_run_shows_all_and_changes_nothing(run: Run, kafka: KafkaSide, moved: tuple[str, str]) -> None:
    topic, group = moved
    result = run("import", "--from-kafka", kafka.bootstrap, "--group", group, "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"{topic}/0" in result.stdout
    assert f"2 offsets would be set: {group} in Kafka -> {group}" in result.stdout
    assert run(group).exit_code == REFUSED, "not even the group was made"


def test_what_is_on_record_already_is_shown_beside_what_comes(
    run: Run, kafka: KafkaSide, moved: tuple[str, str]
) -> None:
    topic, group = moved
    arguments = ("import", "--from-kafka", kafka.bootstrap, "--group", group, "--into", "readers")
    assert run(*arguments).exit_code == 0
    kafka.commit(group, TopicPartition(topic, 0, 20), TopicPartition(topic, 1, 1))
    result = run(*arguments, "-o", "json")
    rows = {one["partition"]: (one["before"], one["offset"]) for one in json.loads(result.stdout)["offsets"]}
    assert rows == {0: (17, 20), 1: (None, 1), 2: (5, 5)}
    assert stored(run, "readers")[topic, 0][0] == 20


def test_only_the_topics_that_are_named_are_moved(run: Run, kafka: KafkaSide, moved: tuple[str, str]) -> None:
    _, group = moved
    other = f"refunds-{free_port()}"
    kafka.broker.create_topic(other, 1)
    kafka.commit(group, TopicPartition(other, 0, 3))
    assert run("import", "--from-kafka", kafka.bootstrap, "--group", group, "--topic", other).exit_code == 0
    assert stored(run, group) == {(other, 0): (3, "", -1)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_in_kafka_is_refused_unless_forced(
    run: Run, kafka: KafkaSide, moved: tuple[str, str], protocol: str
) -> None:
    topic, group = moved
    member = Member(kafka, group, topic, protocol)
    try:
        arguments = ("import", "--from-kafka", kafka.bootstrap, "--group", group)
        result = run(*arguments)
        assert result.exit_code == REFUSED
        assert f"group '{group}' has members in Kafka" in result.output
        assert "stop them first, or --force" in result.output
        assert "\x1b" not in result.output
        assert run(*arguments, "--force").exit_code == 0
    finally:
        member.close()
    assert (topic, 0) in stored(run, group)


def test_a_group_that_kafka_does_not_have_is_refused(run: Run, kafka: KafkaSide) -> None:
    result = run("import", "--from-kafka", kafka.bootstrap, "--group", "biling")
    assert result.exit_code == REFUSED
    assert "group 'biling' does not exist there" in result.output


def test_a_broker_that_can_not_be_reached_is_named(run: Run) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    result = run("import", "--from-kafka", nowhere, "--group", "g", "--timeout", "2")
    assert result.exit_code == UNREACHABLE
    assert nowhere in result.output


def test_offsets_go_out_with_their_metadata_and_leader_epochs(
    run: Run, kafka: KafkaSide, moved: tuple[str, str]
) -> None:
    topic, group = moved
    assert run("import", "--from-kafka", kafka.bootstrap, "--group", group).exit_code == 0
    result = run("export", "--to-kafka", kafka.bootstrap, "--group", group, "--into", f"{group}-back")
    assert result.exit_code == 0, result.output
    assert kafka.committed(f"{group}-back") == {(topic, 0): (17, "from[red]é", EPOCH), (topic, 2): (5, "", None)}


def test_kafka_takes_no_offsets_of_a_group_that_has_members(run: Run, kafka: KafkaSide, moved: tuple[str, str]) -> None:
    topic, group = moved
    assert run("import", "--from-kafka", kafka.bootstrap, "--group", group, "--into", "readers").exit_code == 0
    member = Member(kafka, group, topic, "classic")
    try:
        result = run("export", "--to-kafka", kafka.bootstrap, "--group", "readers", "--into", group, "--force")
    finally:
        member.close()
    assert result.exit_code == REFUSED
    assert "group that has members; stop them first" in result.output


def test_more_offsets_than_fit_into_one_call_arrive(run: Run, kafka: KafkaSide) -> None:
    topic, group = f"wide-{free_port()}", f"many-{free_port()}"
    kafka.broker.create_topic(topic, 300)
    padding = "x" * 2_000
    kafka.commit(group, *(TopicPartition(topic, number, number, metadata=padding) for number in range(300)))
    result = run("import", "--from-kafka", kafka.bootstrap, "--group", group)
    assert result.exit_code == 0, result.output
    assert "and 260 more" in result.stdout
    assert stored(run, group) == {(topic, number): (number, padding, -1) for number in range(300)}


def test_a_service_that_asks_kafka_finds_the_topics_itself_and_follows_them(
    kafka: KafkaSide, moved: tuple[str, str]
) -> None:
    topic, group = moved
    settings = Settings(
        grpc=ServerSettings(port=0), http=HttpSettings(port=0), kafka=KafkaSection(bootstrap_servers=kafka.bootstrap)
    )
    with EmbeddedAssigner(settings) as assigner:
        environment = {"ASSIGNER_ADDRESS": assigner.address}
        arguments = ["offsets", "import", "--from-kafka", kafka.bootstrap, "--group", group]
        result = CliRunner(env=environment).invoke(main, arguments)
        assert result.exit_code == 0, result.output
        listed = json.loads(CliRunner(env=environment).invoke(main, ["topics", "list", group, "-o", "json"]).stdout)
        lag = CliRunner(env=environment).invoke(main, ["offsets", group, "--kafka", kafka.bootstrap, "-o", "json"])
    (found,) = listed["topics"]
    assert (found["name"], found["partitions"], found["source"]) == (topic, 3, "kafka")
    assert {one["partition"]: one["lag"] for one in json.loads(lag.stdout)["offsets"]} == {0: 0, 2: 0}
