"""The page for users of Kafka clients does what it shows: its programs and commands are run as typed there, with a real
broker and with a confluent-kafka, a Java and a gRPC consumer in one group."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.kafka_groups.members import java_missing
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.mock_kafka import LOGGED
from tests.support.service_processes import UP_WITHIN, until
from tests.support.typed_page import GATEWAY, TypedPage
from tests.unit.project.test_docs import ROOT, blocks
from tools.install_kafka import kafka_home

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PAGE = ROOT / "docs/how-to/use-with-any-kafka-client.md"
KAFKA = 9092


class Reader:
    """The page as its reader follows it."""

    def __init__(self, folder: Path, broker: KafkaBroker) -> None:
        self.page = TypedPage(PAGE, folder, KAFKA, GATEWAY)
        self.page.ports[KAFKA] = broker.port
        self.broker = broker
        self.commands = self.page.typed()
        self.page.save(0, "reader.py")
        (source,) = blocks(PAGE, "java")
        assert "`Reader.java`" in PAGE.read_text()
        (self.page.folder / "Reader.java").write_text(self.page.replaced(source))
        (self.page.folder / "kafka_2.13-4.3.1").symlink_to(kafka_home())

    def command(self, begin: str) -> str:
        """The first command of the page that begins so, and is not yet typed."""
        found = next(command for command in self.commands if command.startswith(begin))
        self.commands.remove(found)
        return found

    def described(self, group: str) -> dict[str, Any]:
        done = self.page.run(f"assigner describe {group} -o json")
        return json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.fixture
def reader(tmp_path: Path, kafka_broker: KafkaBroker) -> Reader:
    return Reader(tmp_path, kafka_broker)


@contextmanager
def java(page: TypedPage, command: str) -> Iterator[None]:
    """A Java program ends by a signal with a status of its own."""
    with subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=page.folder, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def test_the_page_is_true(reader: Reader) -> None:
    if shutil.which("java") is None or (missing := java_missing()):
        pytest.skip("the page's Java program needs a JDK" if shutil.which("java") is None else str(missing))
    page = reader.page
    assert "pip install" in reader.command("pip install")
    create = reader.command("kafka-topics.sh")
    assert "--topic orders --partitions 12" in create
    reader.broker.create_topic("orders", 12)
    with page.running(reader.command("assigner serve")):
        until(lambda: page.prints("assigner groups", ""), UP_WITHIN, "the service answers", every=0.2)
        share_a_group(reader)
        move_a_group_in_and_out(reader)
    user = page.run(reader.command("assigner token user"), typed="secret\n")
    assert user.returncode == 0, user.stderr
    assert user.stdout.startswith("[[user]]")
    assert reader.commands == [], "each command of the page was typed"


def share_a_group(reader: Reader) -> None:
    page = reader.page
    with (
        page.running(reader.command("python reader.py")),
        java(page, reader.command("java")),
        page.running(reader.command("assigner consume")),
    ):
        until(lambda: shares(reader.described("billing")) == [4, 4, 4], 2 * UP_WITHIN, "they share it", every=0.5)
        members = {one["kind"]: one for one in reader.described("billing")["consumers"]}
        assert set(members) == {"kafka", ""}
        producer: Any = Producer({"bootstrap.servers": reader.broker.bootstrap, **LOGGED})
        for number in range(120):
            producer.produce("orders", value=f"order {number}", partition=number % 12)
        assert producer.flush(60) == 0
        describe = reader.command("assigner describe")
        until(lambda: page.prints(describe, "java-reader/"), UP_WITHIN, "members are shown", every=0.5)
        shown = page.run(describe).stdout
        assert "lag" in shown
        assert "grpc" in shown
    until(lambda: not reader.described("billing")["consumers"], 2 * UP_WITHIN, "they have left", every=0.5)


def shares(described: dict[str, Any]) -> list[int]:
    return sorted(one["owned"] for one in described.get("consumers", [])) if not described.get("handoffs") else []


def move_a_group_in_and_out(reader: Reader) -> None:
    page, admin = reader.page, AdminClient({"bootstrap.servers": reader.broker.bootstrap, **LOGGED})
    offsets = [TopicPartition("orders", number, number) for number in range(12)]

    def committed() -> bool:
        request = [ConsumerGroupTopicPartitions("invoices", offsets)]
        found: Any = admin.alter_consumer_group_offsets(request)["invoices"].result(30)
        return all(one.error is None for one in found.topic_partitions)

    until(committed, UP_WITHIN, "the group has offsets in Kafka", every=0.5)
    assert page.prints(reader.command("assigner offsets import"), "12 offsets would be set")
    assert page.prints(reader.command("assigner offsets import"), "12 offsets set: invoices in Kafka -> invoices")
    assert page.prints(reader.command("assigner offsets show"), "orders/11")
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{page.ports[GATEWAY]}",
            "group.id": "invoices",
            "enable.auto.commit": False,
            **LOGGED,
        }
    )
    found = consumer.committed(offsets, timeout=60)
    assert [one.offset for one in found] == list(range(12)), "a member begins where the group was in Kafka"
    consumer.close()
    export = page.run(reader.command("assigner offsets export"))
    assert "12 offsets set: invoices -> invoices in Kafka" in export.stdout, export.stderr
